//! Encodes conversations as token ids and labels, with the model's own tokenizer and chat template.
//!
//! Takes a [`Conversation`] and the number of tokens of each of its images; gives ids equal to those of HF's
//! processor and, for each token, whether it has a label. Text of a row never becomes a control token: what
//! reads like `<|im_end|>` in a user's text is tokenised as the plain characters it is. Special tokens that
//! are words of a row, such as those around a box, are tokens as in HF.

mod bytes;
mod files;
mod guard;
mod shown;
mod template;
mod tojson;

pub use bytes::token_bytes;
pub use files::EncoderError;
pub use shown::{TokenRun, TokenRuns};

use crate::{
    error::counted,
    row::{Conversation, Role},
};
use guard::{Guard, Specials};
use serde::{Deserialize, Serialize};
use std::{ops::Range, path::Path};
use template::{Rendered, Template};
use tokenizers::Tokenizer;

/// Which tokens are trained on. Image placeholders never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum TrainOn {
    /// What the assistant says in every turn, with the token that ends the turn.
    #[default]
    Assistant,
    /// What the assistant says in the last of its turns, with the token that ends it.
    Last,
    /// Every token, but for the words of the assistant that a row itself excludes.
    All,
}

/// Why a row cannot be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TextError {
    /// The template failed.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The assistant's words are not found where the template put them.
    #[error(
        "the chat template rewrites what the assistant says (does it trim?), so labels cannot be placed; \
         remove blanks around the text, or learn every token"
    )]
    Rewritten,
    /// The row has tools, and the template leaves them out.
    #[error(
        "the chat template of this model shows no tools: remove 'tools' from the row, \
         or use a model whose template has them"
    )]
    NoTools,
    /// The row calls tools, and the template leaves the calls out.
    #[error(
        "the chat template of this model shows no tool calls: write the calls as text, \
         or use a model whose template has them"
    )]
    NoToolCalls,
    /// The template shows another number of images than the row has.
    #[error("the chat template shows {} where the row has {given}", counted(*shown as u64, "image"))]
    ImageCount {
        /// Placeholders in the rendered text.
        shown: usize,
        /// Images of the row.
        given: usize,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    /// Text that uses up every character we could mark text with.
    #[error("the text holds too many of Unicode's noncharacters (U+FDD0 to U+FDEF); remove them")]
    Noncharacters,
}

/// A row as the model reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether each token is a target.
    pub trained: Vec<bool>,
    /// The placeholders of each image: one span an image, in order.
    pub images: Vec<Range<usize>>,
}

impl Encoded {
    /// Whether anything in it can be learned: some token other than the first has a label.
    pub(crate) fn has_label(&self) -> bool {
        self.trained.iter().skip(1).any(|&trained| trained)
    }

    /// How many tokens have a label. Nothing precedes the first, so it is never predicted.
    pub(crate) fn labels(&self) -> usize {
        self.trained.iter().skip(1).filter(|&&trained| trained).count()
    }

    fn push(&mut self, id: u32, trained: bool) {
        self.ids.push(id);
        self.trained.push(trained);
    }
}

/// The tokenizer and the template of a checkpoint; shared by all workers.
pub struct Encoder {
    tokenizer: Tokenizer,
    template: Template,
    specials: Specials,
    image_token: Option<u32>,
    pad_token: Option<u32>,
}

impl Encoder {
    /// Reads the tokenizer and the template in a checkpoint's folder.
    pub fn from_dir(folder: &Path) -> Result<Self, EncoderError> {
        files::read(folder)
    }

    /// Encodes a row; `image_tokens` says how many placeholders each of its images takes.
    pub fn encode(
        &self,
        row: &Conversation,
        image_tokens: &[usize],
        train_on: TrainOn,
    ) -> Result<Encoded, TextError> {
        self.tokenise(&self.rendered(row, train_on, false)?, image_tokens)
    }

    /// Encodes a row that the model shall answer: the template opens the assistant's turn, and nothing is
    /// trained on.
    pub(crate) fn encode_prompt(
        &self,
        row: &Conversation,
        image_tokens: &[usize],
    ) -> Result<Encoded, TextError> {
        let mut encoded = self.tokenise(&self.rendered(row, TrainOn::All, true)?, image_tokens)?;
        encoded.trained.fill(false);
        Ok(encoded)
    }

    /// The text of some ids, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.tokenizer.decode(ids, false).map_err(|error| TextError::Tokenizer(error.to_string()))
    }

    /// The id of the token that stands for a piece of an image, if the tokenizer has one.
    pub fn image_token(&self) -> Option<u32> {
        self.image_token
    }

    /// The id of the token that fills short rows of a batch: the tokenizer's pad token, or the one that ends a text
    /// where it has none.
    pub fn pad_token(&self) -> Option<u32> {
        self.pad_token
    }

    /// The size of the vocabulary, added tokens included.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Every token that stands for text, as the vocabulary writes it; special tokens are left out.
    pub fn ordinary_tokens(&self) -> impl Iterator<Item = (u32, String)> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let special = move |id: &u32| added.get(id).is_some_and(|token| token.special);
        let vocabulary = self.tokenizer.get_vocab(true);
        vocabulary.into_iter().map(|(text, id)| (id, text)).filter(move |(id, _)| !special(id))
    }

    /// The id of a special token, by its text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.specials.id(text)
    }

    fn rendered(&self, row: &Conversation, train_on: TrainOn, prompt: bool) -> Result<Rendered, TextError> {
        let guard = Guard::for_row(row).ok_or(TextError::Noncharacters)?;
        let safe = self.specials.guarded(row, &guard);
        let said = |turn: usize, learned: bool| {
            row.turns[turn].role == Role::Assistant && row.turns[turn].learned == learned
        };
        let turns = 0..row.turns.len();
        let marked: Vec<bool> = match train_on {
            TrainOn::All if prompt => vec![false; row.turns.len()],
            TrainOn::All => turns.map(|turn| said(turn, false)).collect(),
            TrainOn::Assistant => turns.map(|turn| said(turn, true)).collect(),
            TrainOn::Last => {
                let last = turns.clone().rev().find(|&turn| said(turn, true));
                turns.map(|turn| Some(turn) == last).collect()
            }
        };
        let mut rendered = self.template.render(&safe, &marked, &self.specials, guard, prompt)?;
        rendered.all_but_spans = train_on == TrainOn::All;
        Ok(rendered)
    }

    /// Splits at the special tokens, the template's and the row's, and tokenises what lies between.
    fn tokenise(&self, rendered: &Rendered, image_tokens: &[usize]) -> Result<Encoded, TextError> {
        let mut out = Encoded::default();
        let mut done = 0;
        for (id, special) in self.specials.find(&rendered.text) {
            self.push_text(rendered, done..special.start, &mut out)?;
            done = special.end;
            if Some(id) == self.image_token {
                let start = out.ids.len();
                // Placeholders beyond the row's images are only counted, for the error below.
                let count = image_tokens.get(out.images.len()).copied().unwrap_or(0);
                (0..count).for_each(|_| out.push(id, false));
                out.images.push(start..start + count);
            } else {
                out.push(id, rendered.is_trained_special(&special));
            }
        }
        self.push_text(rendered, done..rendered.text.len(), &mut out)?;
        if out.images.len() != image_tokens.len() {
            return Err(TextError::ImageCount { shown: out.images.len(), given: image_tokens.len() });
        }
        Ok(out)
    }

    /// Tokenises text between special tokens. A token belongs to a span if any of its characters does, as in
    /// HF's mask.
    fn push_text(
        &self,
        rendered: &Rendered,
        range: Range<usize>,
        out: &mut Encoded,
    ) -> Result<(), TextError> {
        if range.is_empty() {
            return Ok(());
        }
        let (text, spans) = rendered.unguarded(range);
        let tokens =
            self.tokenizer.encode(&*text, false).map_err(|error| TextError::Tokenizer(error.to_string()))?;
        for (&id, &(start, end)) in tokens.get_ids().iter().zip(tokens.get_offsets()) {
            let said = spans.iter().any(|span| start < span.end && span.start < end);
            out.push(id, said != rendered.all_but_spans);
        }
        Ok(())
    }
}
