//! The one path from a conversation to image grids, token ids and labels.
//!
//! A [`Recipe`] holds a model's processor and encoder and what its tokens are for. The loader, the survey and
//! generation all call [`Recipe::encode`]. It needs only the headers of images, since a header tells how many
//! tokens its image takes; [`Recipe::append_patches`] decodes the pixels afterwards, for rows that are kept.

use crate::{
    error::BadRow,
    processor::{ImageHeader, ImageWorkspace, Processor, ProcessorError},
    row::Conversation,
    text::{Encoded, Encoder, EncoderError, TrainOn},
};
use std::{path::Path, sync::Arc};

/// How conversations become tokens and patches; shared by all threads.
pub struct Recipe {
    /// Turns images into patches.
    pub processor: Processor,
    /// Turns text into tokens.
    pub encoder: Arc<Encoder>,
    /// What the tokens are for.
    pub purpose: Purpose,
}

/// What encoded conversations are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To be learned from.
    Learn {
        /// Which tokens get a label.
        train_on: TrainOn,
        /// Rows with more tokens than this are left out.
        max_tokens: Option<usize>,
    },
    /// To be answered: the template opens the assistant's turn, and no token gets a label.
    Answer,
}

impl Default for Purpose {
    /// Learn what the assistant says, in rows of any length.
    fn default() -> Self {
        Self::Learn { train_on: TrainOn::default(), max_tokens: None }
    }
}

/// Why a good row is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    /// It has more tokens than the user allows.
    #[error("{tokens} tokens, more than the {limit} that a row may have")]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// No token of it has a label.
    #[error("no token to learn: it has no words of the assistant")]
    NoLabel,
}

/// Why a model folder gives no recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The settings of its image processor cannot be used.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
    /// Its tokenizer or chat template cannot be used.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
}

/// A conversation as the model reads it, apart from the pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedRow {
    /// Its images, as their headers describe them.
    pub images: Vec<ImageHeader>,
    /// Its tokens, and which of them have a label.
    pub tokens: Encoded,
    /// Why it should be left out of training, if it should.
    pub left_out: Option<LeftOut>,
}

impl Recipe {
    /// Reads the processor, tokenizer and chat template of a model folder, with the limits of its own.
    pub fn from_dir(folder: &Path, purpose: Purpose) -> Result<Self, RecipeError> {
        let processor = Processor::from_dir(folder, Default::default(), Default::default())?;
        Ok(Self { processor, encoder: Arc::new(Encoder::from_dir(folder)?), purpose })
    }

    /// Encodes a conversation whose images, in order, have these headers.
    pub fn encode(
        &self,
        conversation: &Conversation,
        images: Vec<ImageHeader>,
    ) -> Result<EncodedRow, BadRow> {
        let counts: Vec<usize> = images.iter().map(|image| image.tokens).collect();
        let tokens = match self.purpose {
            Purpose::Learn { train_on, .. } => self.encoder.encode(conversation, &counts, train_on),
            Purpose::Answer => self.encoder.encode_prompt(conversation, &counts),
        };
        let tokens = tokens.map_err(BadRow::Text)?;
        let left_out = self.left_out(&tokens);
        Ok(EncodedRow { images, tokens, left_out })
    }

    /// Decodes the images of an encoded conversation and appends their patches, in order. It is an error if
    /// the header's size does not match the decoded image.
    pub fn append_patches<B: AsRef<[u8]>>(
        &self,
        row: &EncodedRow,
        images: &[B],
        work: &mut ImageWorkspace,
        patches: &mut Vec<u8>,
    ) -> Result<(), BadRow> {
        for (index, (header, bytes)) in row.images.iter().zip(images).enumerate() {
            let cut = self.processor.append_patches(bytes.as_ref(), work, patches);
            if cut.map_err(|error| BadRow::image(index, error))? != header.grid {
                return Err(BadRow::ImageHeader { number: index + 1 });
            }
        }
        Ok(())
    }

    fn left_out(&self, encoded: &Encoded) -> Option<LeftOut> {
        let Purpose::Learn { max_tokens, .. } = self.purpose else { return None };
        let tokens = encoded.ids.len();
        match max_tokens {
            Some(limit) if tokens > limit => Some(LeftOut::TooLong { tokens, limit }),
            _ if !encoded.has_label() => Some(LeftOut::NoLabel),
            _ => None,
        }
    }
}
