//! One answer while it grows.
//!
//! Takes the logits after each token, and gives the next token, the text that may be told and the end. It chooses
//! as `garden_train::Interpreter` does, from the same sampler.

use crate::{
    grammar::{Grammar, Grammars},
    request::{Fault, Finish, Reply, TokenLikelihood, TopToken, Usage},
    stop::Stopper,
};
use garden_model::{LogProbabilities, Sampler, SequenceUse};
use garden_train::{Interpreter, Words};
use std::collections::VecDeque;

/// What an answer is made with.
pub(crate) struct Answer {
    /// Question and answer.
    seen: Vec<u32>,
    prompt: usize,
    max_tokens: usize,
    sampler: Sampler,
    grammar: Option<Grammar>,
    logprobs: Option<usize>,
    words: Words,
    stopper: Stopper,
    /// Bytes of text that the tokens gave, and those that were told.
    written: usize,
    told: usize,
    /// Tokens that were not told, each with where its text begins.
    waiting: VecDeque<(usize, TokenLikelihood)>,
}

/// What an answer is made with.
pub(crate) struct Making {
    pub ids: Vec<u32>,
    pub max_tokens: usize,
    pub sampler: Sampler,
    pub grammar: Option<Grammar>,
    pub logprobs: Option<usize>,
    pub stop: Vec<String>,
}

/// What comes after some logits.
pub(crate) enum Next {
    /// This token is to be read.
    Token(u32),
    /// The answer is complete.
    End(Finish),
}

impl Answer {
    pub fn new(making: Making) -> Self {
        let Making { ids, max_tokens, sampler, grammar, logprobs, stop } = making;
        Self {
            prompt: ids.len(),
            words: Words::after(ids.len()),
            seen: ids,
            max_tokens,
            sampler,
            grammar,
            logprobs,
            stopper: Stopper::new(&stop),
            written: 0,
            told: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Chooses the token after these logits; what may be told goes to `say`.
    pub fn go_on(
        &mut self,
        interpreter: &Interpreter,
        grammars: &Grammars,
        logits: &[f32],
        say: &mut dyn FnMut(Reply),
    ) -> Result<Next, Fault> {
        let token = self.choose(logits)?;
        if interpreter.ends().contains(&token) {
            return self.finish(interpreter, say, Finish::Stop);
        }
        if let Some(top) = self.logprobs {
            let likelihood = likelihood(interpreter, grammars, logits, token, top);
            self.waiting.push_back((self.written, likelihood));
        }
        self.seen.push(token);
        let complete = self.grammar.as_mut().map_or(Ok(false), |grammar| grammar.push(token))?;
        if self.tell(interpreter, false, say)? {
            return Ok(Next::End(Finish::Stop));
        }
        if complete {
            return self.finish(interpreter, say, Finish::Stop);
        }
        if self.seen.len() - self.prompt == self.max_tokens {
            return self.finish(interpreter, say, Finish::Length);
        }
        Ok(Next::Token(token))
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32, Fault> {
        let token = match &mut self.grammar {
            None => self.sampler.choose(logits, &self.seen),
            Some(grammar) => {
                let allowed = grammar.allowed()?;
                let inside = |token| (token as usize) < allowed.len() && allowed.is_allowed(token);
                self.sampler.choose_allowed(logits, &self.seen, inside)
            }
        };
        token.map_err(Fault::model)
    }

    fn finish(
        &mut self,
        interpreter: &Interpreter,
        say: &mut dyn FnMut(Reply),
        finish: Finish,
    ) -> Result<Next, Fault> {
        if self.tell(interpreter, true, say)? {
            return Ok(Next::End(Finish::Stop));
        }
        let text = self.stopper.finish();
        self.say(text, true, say);
        Ok(Next::End(finish))
    }

    /// Tells the text of new tokens; whether a stop text came.
    fn tell(
        &mut self,
        interpreter: &Interpreter,
        last: bool,
        say: &mut dyn FnMut(Reply),
    ) -> Result<bool, Fault> {
        let piece = self.words.next(interpreter.encoder(), &self.seen, last).map_err(Fault::model)?;
        self.written += piece.len();
        let told = self.stopper.push(&piece);
        self.say(told.text, false, say);
        Ok(told.stopped)
    }

    fn say(&mut self, text: String, all: bool, say: &mut dyn FnMut(Reply)) {
        self.told += text.len();
        let mut tokens = Vec::new();
        while self.waiting.front().is_some_and(|(begins, _)| all || *begins < self.told) {
            tokens.extend(self.waiting.pop_front().map(|(_, token)| token));
        }
        if !(text.is_empty() && tokens.is_empty()) {
            say(Reply::Piece { text, tokens });
        }
    }

    /// What it took so far.
    pub fn usage(&self, used: SequenceUse) -> Usage {
        Usage {
            prompt_tokens: self.prompt,
            completion_tokens: self.seen.len() - self.prompt,
            cached_tokens: used.cached_tokens,
            image_tokens: used.image_tokens,
        }
    }
}

fn likelihood(
    interpreter: &Interpreter,
    grammars: &Grammars,
    logits: &[f32],
    token: u32,
    top: usize,
) -> TokenLikelihood {
    let told = |token: u32, logprob: f64| TopToken {
        token: interpreter.encoder().decode(&[token]).unwrap_or_default(),
        bytes: grammars.bytes(token).to_vec(),
        // JSON knows no infinity; OpenAI says this of what is impossible.
        logprob: logprob.max(-9999.0),
    };
    let LogProbabilities { chosen, top } = LogProbabilities::of(logits, token, top);
    TokenLikelihood {
        chosen: told(token, chosen),
        top: top.into_iter().map(|(token, logprob)| told(token, logprob)).collect(),
    }
}
