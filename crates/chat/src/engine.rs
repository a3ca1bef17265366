//! Owns a model and answers what is asked, many questions at once.
//!
//! Takes questions and calls to go on, and gives pieces of answers. Questions wait in one bounded row, first come
//! first served; prompts are read one at a time, a chunk between two passes of the others, and every pass gives
//! each answer one token. Nothing here waits or spawns: whoever owns it calls [`Engine::step`] while there is work.

use crate::{
    answer::{Answer, Making, Next},
    grammar::Grammars,
    plan::HostSettings,
    request::{ChatRequest, Fault, FaultKind, Finish, MessagePart, Reply, Speaker},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use garden_data::{BadRow, Conversation, ImageSource, Part, ProcessorConfig, ProcessorError, Role, Turn};
use garden_model::{BatchDecoder, Model, Precision, SequenceId, SessionError};
use garden_train::{GenerateError, Interpreter, ModelFolder, ModelFolderError, Question, load_model};
use std::{collections::VecDeque, path::Path};

/// Texts that may end an answer.
const STOPS: usize = 4;
/// Likeliest tokens that are told.
const TOP: usize = 20;

/// Why a model cannot be asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error(transparent)]
    Folder(#[from] ModelFolderError),
    #[error("the model's processor: {0}")]
    Processor(#[from] ProcessorError),
    #[error(transparent)]
    Load(#[from] GenerateError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{0}")]
    Tokenizer(Fault),
}

/// A question that waits.
struct Waiting {
    id: u64,
    question: Question,
    max_tokens: usize,
    answer: Answer,
    bytes: usize,
}

/// An answer that grows.
struct Running {
    id: u64,
    sequence: SequenceId,
    answer: Answer,
    /// The token to read next; none while the prompt is read.
    token: u32,
}

/// A model that answers.
pub struct Engine {
    model: Model,
    interpreter: Interpreter,
    grammars: Grammars,
    decoder: BatchDecoder,
    settings: HostSettings,
    waiting: VecDeque<Waiting>,
    reading: Option<Running>,
    running: Vec<Running>,
}

impl Engine {
    /// Loads a model; without settings those that suit it. `progress` is told the share loaded.
    pub fn load(
        model: &Path,
        adapter: Option<&Path>,
        precision: Precision,
        settings: Option<HostSettings>,
        progress: impl FnMut(f32),
    ) -> Result<Self, EngineError> {
        let folder = ModelFolder::open(model)?;
        let weights = folder.source().stored.clone().loaded(precision).bytes();
        let suiting = HostSettings::suiting(folder.config(), weights, &ProcessorConfig::from_dir(model)?);
        let settings = settings.unwrap_or(suiting);
        let interpreter = Interpreter::new(&folder, settings.pixels())?;
        let vocabulary = folder.config().text.vocab_size;
        let grammars = Grammars::new(interpreter.encoder(), interpreter.ends(), vocabulary);
        let grammars = grammars.map_err(EngineError::Tokenizer)?;
        let model = load_model(&folder, adapter, precision, progress)?;
        let decoder = BatchDecoder::new(&model, settings.room(model.config()))?;
        let (waiting, reading, running) = Default::default();
        Ok(Self { model, interpreter, grammars, decoder, settings, waiting, reading, running })
    }

    /// What was laid out.
    pub fn settings(&self) -> HostSettings {
        self.settings
    }

    /// Questions that wait, and answers at work.
    pub fn load_now(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len() + usize::from(self.reading.is_some()))
    }

    /// Takes a question in; `id` names it from now on. A question that cannot be answered is refused at once.
    pub fn ask(&mut self, id: u64, request: &ChatRequest) -> Result<(), Fault> {
        let known = |running: &Running| running.id == id;
        let twice =
            self.running.iter().chain(&self.reading).any(known) || self.waiting.iter().any(|w| w.id == id);
        if twice {
            return Err(Fault::request("id", format!("question {id} is being answered already")));
        }
        if self.waiting.len() >= self.settings.waiting {
            return Err(busy(format!("{} questions are waiting already", self.waiting.len())));
        }
        check(request)?;
        let grammar = self.grammars.grammar(&request.format)?;
        let sampler = self.interpreter.sampler(request.temperature, request.seed);
        let sampler = sampler.map_err(|error| Fault::request("temperature", error))?;
        let sampler = sampler.with_top_p(request.top_p).map_err(|error| Fault::request("top_p", error))?;
        let (conversation, images) = conversation(request)?;
        self.check_images(&images)?;
        let question = self.interpreter.read(&conversation, &images).map_err(unreadable)?;
        let max_tokens = self.max_tokens(request, question.ids.len())?;
        let bytes: usize = question.images.iter().map(|image| image.patches.len()).sum();
        let before: usize = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        if before > 0 && before + bytes > self.settings.waiting_images {
            return Err(busy(format!("{before} bytes of images are waiting already")));
        }
        let making = Making {
            ids: question.ids.clone(),
            max_tokens,
            sampler,
            grammar,
            logprobs: request.logprobs,
            stop: request.stop.clone(),
        };
        self.waiting.push_back(Waiting { id, question, max_tokens, answer: Answer::new(making), bytes });
        Ok(())
    }

    /// Refuses images by their headers that would take more than was planned for, before anything is decoded.
    fn check_images(&self, images: &[Vec<u8>]) -> Result<(), Fault> {
        let headers = self.interpreter.headers(images).map_err(unreadable)?;
        for (index, image) in headers.iter().enumerate() {
            let most = self.settings.decoding;
            if image.decoding_bytes > most {
                let (width, height) = image.size;
                let pixels = u64::from(width) * u64::from(height);
                // Bytes of a pixel differ from format to format: what is allowed is told for this one.
                let allowed =
                    (u128::from(pixels) * u128::from(most) / u128::from(image.decoding_bytes)) as u64;
                let words = format!(
                    "image {} of the messages has {width}x{height} = {pixels} pixels, and at most {allowed} of its kind \
                     are decoded; make it smaller",
                    index + 1
                );
                return Err(Fault::request("messages", words));
            }
        }
        let tokens = headers.iter().map(|image| image.tokens).sum();
        self.room_left(tokens).map(drop)
    }

    /// Tokens that an answer to a prompt of so many tokens may have.
    fn room_left(&self, prompt: usize) -> Result<usize, Fault> {
        let limit = self.interpreter.max_positions().min(self.settings.tokens);
        match limit.saturating_sub(prompt) {
            0 => {
                let words = format!(
                    "the messages have {prompt} tokens, and no more than {limit} are read and written"
                );
                Err(Fault::request("messages", words))
            }
            left => Ok(left),
        }
    }

    fn max_tokens(&self, request: &ChatRequest, prompt: usize) -> Result<usize, Fault> {
        let limit = self.interpreter.max_positions().min(self.settings.tokens);
        let left = self.room_left(prompt)?;
        match request.max_tokens {
            None => Ok(self.settings.answer.min(left)),
            Some(asked) if asked <= left => Ok(asked),
            Some(asked) => {
                let words = format!(
                    "{prompt} tokens of messages and {asked} of answer are more than {limit}; ask for {left} or fewer"
                );
                Err(Fault::request("max_tokens", words))
            }
        }
    }

    /// Forgets a question at any moment; nothing more is told of it.
    pub fn cancel(&mut self, id: u64) {
        self.waiting.retain(|waiting| waiting.id != id);
        let Self { reading, running, decoder, .. } = self;
        if let Some(gone) = reading.take_if(|reading| reading.id == id) {
            decoder.end(gone.sequence);
        }
        running.retain(|running| {
            if running.id == id {
                decoder.end(running.sequence);
            }
            running.id != id
        });
    }

    /// Goes on: reads a piece of a prompt, then gives every answer one more token. Whether there was work.
    pub fn step(&mut self, say: &mut dyn FnMut(u64, Reply)) -> bool {
        self.begin(say);
        let reading = self.reading.is_some();
        let going = !self.running.is_empty();
        self.read(say);
        if going {
            self.pass(say);
        }
        reading || going
    }

    /// Lets the next question in, if there is room.
    fn begin(&mut self, say: &mut dyn FnMut(u64, Reply)) {
        if self.reading.is_some() {
            return;
        }
        let fits = |waiting: &mut Waiting| {
            self.decoder.has_room(waiting.question.ids.len().saturating_add(waiting.max_tokens))
        };
        let Some(Waiting { id, question, max_tokens, answer, .. }) = self.waiting.pop_front_if(fits) else {
            return;
        };
        let Question { ids, images } = question;
        match self.decoder.begin(&self.model, ids, images, max_tokens) {
            Ok(Some(sequence)) => self.reading = Some(Running { id, sequence, answer, token: 0 }),
            Ok(None) => say(id, Reply::Fault(busy("there is no room for the question".into()))),
            Err(error) => say(id, Reply::Fault(Fault::request("messages", error))),
        }
    }

    fn read(&mut self, say: &mut dyn FnMut(u64, Reply)) {
        let Some(mut reading) = self.reading.take() else { return };
        let (id, sequence) = (reading.id, reading.sequence);
        let next = match self.decoder.read(&self.model, sequence) {
            Ok(None) => {
                self.reading = Some(reading);
                return;
            }
            Ok(Some(logits)) => {
                let mut say = |reply| say(id, reply);
                reading.answer.go_on(&self.interpreter, &self.grammars, logits, &mut say)
            }
            Err(error) => Err(Fault::model(error)),
        };
        if let Some(running) = settle(&mut self.decoder, reading, next, say) {
            self.running.push(running);
        }
    }

    fn pass(&mut self, say: &mut dyn FnMut(u64, Reply)) {
        let Self { model, interpreter, grammars, decoder, running, .. } = self;
        let tokens: Vec<_> = running.iter().map(|running| (running.sequence, running.token)).collect();
        let vocabulary = model.config().text.vocab_size;
        let nexts: Vec<Result<Next, Fault>> = match decoder.next(model, &tokens) {
            Ok(logits) => (running.iter_mut().zip(logits.chunks_exact(vocabulary)))
                .map(|(running, logits)| {
                    let (id, answer) = (running.id, &mut running.answer);
                    answer.go_on(interpreter, grammars, logits, &mut |reply| say(id, reply))
                })
                .collect(),
            Err(error) => running.iter().map(|_| Err(Fault::model(&error))).collect(),
        };
        let before = std::mem::take(running);
        *running = (before.into_iter().zip(nexts))
            .filter_map(|(running, next)| settle(decoder, running, next, say))
            .collect();
    }
}

/// An answer that goes on, with its next token; one that ended is told and let go.
fn settle(
    decoder: &mut BatchDecoder,
    mut running: Running,
    next: Result<Next, Fault>,
    say: &mut dyn FnMut(u64, Reply),
) -> Option<Running> {
    let last = match next {
        Ok(Next::Token(token)) => {
            running.token = token;
            return Some(running);
        }
        Ok(Next::End(finish)) => end(decoder, &running, finish),
        Err(fault) => Reply::Fault(fault),
    };
    decoder.end(running.sequence);
    say(running.id, last);
    None
}

fn end(decoder: &BatchDecoder, running: &Running, finish: Finish) -> Reply {
    Reply::End { finish, usage: running.answer.usage(decoder.used(running.sequence)) }
}

fn busy(message: String) -> Fault {
    Fault { kind: FaultKind::Busy, message, param: None }
}

fn check(request: &ChatRequest) -> Result<(), Fault> {
    if request.messages.is_empty() {
        return Err(Fault::request("messages", "there are no messages"));
    }
    if request.max_tokens == Some(0) {
        return Err(Fault::request("max_tokens", "an answer has one token at the least"));
    }
    if request.stop.len() > STOPS {
        let words = format!("{} stop texts are more than {STOPS}", request.stop.len());
        return Err(Fault::request("stop", words));
    }
    match request.logprobs {
        Some(top) if top > TOP => Err(Fault::request("top_logprobs", format!("{top} are more than {TOP}"))),
        _ => Ok(()),
    }
}

/// The turns of a request, and its images in order, still encoded.
fn conversation(request: &ChatRequest) -> Result<(Conversation, Vec<Vec<u8>>), Fault> {
    let mut images = Vec::new();
    let mut turns = Vec::with_capacity(request.messages.len());
    for (index, message) in request.messages.iter().enumerate() {
        let mut parts = Vec::with_capacity(message.parts.len());
        for part in &message.parts {
            parts.push(match part {
                MessagePart::Text(text) => Part::Text(text.clone()),
                MessagePart::Image(data) => {
                    let bytes = STANDARD.decode(data).map_err(|error| {
                        let number = images.len() + 1;
                        Fault::request(
                            &format!("messages[{index}]"),
                            format!("image {number} is no base64: {error}"),
                        )
                    })?;
                    images.push(bytes);
                    Part::Image(ImageSource::Bytes(Vec::new()))
                }
            });
        }
        let role = match message.role {
            Speaker::System => Role::System,
            Speaker::User => Role::User,
            Speaker::Assistant => Role::Assistant,
        };
        turns.push(Turn::new(role, parts));
    }
    Ok((Conversation::new(turns), images))
}

/// Words for a question that cannot be read.
fn unreadable(error: GenerateError) -> Fault {
    match error {
        GenerateError::Question(BadRow::Image { number, source }) => {
            Fault::request("messages", format!("image {number} of the messages: {source}"))
        }
        GenerateError::Question(other) => Fault::request("messages", other),
        other => Fault::request("messages", other),
    }
}
