//! One row from its file to the sample that a batch takes in.
//!
//! In comes the number of a row; out goes a [`Sample`], or why the row is left out. Text is encoded before images are
//! decoded, since their headers already tell how many tokens they take: a row that is too long costs no decoding.

use crate::{
    batch::Sample,
    dataset::{Dataset, Row, RowReader},
    error::{BadRow, DataError},
    processor::{Grid, Processor, Workspace},
    row::RowId,
    text::{Encoded, Encoder, TrainOn},
};
use std::sync::Arc;

/// Everything that rows of a dataset need to become samples; shared by all threads.
pub struct Recipe {
    /// Where the rows are.
    pub dataset: Arc<Dataset>,
    /// What is done to images.
    pub processor: Processor,
    /// What is done to text.
    pub encoder: Arc<Encoder>,
    /// Which tokens are learned.
    pub train_on: TrainOn,
    /// The most tokens that a row may have.
    pub max_tokens: Option<usize>,
}

/// Why a good row is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    /// It has more tokens than the user allows.
    #[error("{tokens} tokens, more than the {limit} of --max-seq-length")]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// Nothing in it can be learned.
    #[error("no token to learn: it has no words of the assistant")]
    NoLabel,
}

/// What became of a row.
#[derive(Debug)]
pub enum Prepared {
    /// It can be learned from.
    Ready(Sample),
    /// It is good, and left out.
    LeftOut(RowId, LeftOut),
}

/// One thread's hands: a reader, and buffers that are used again for each row.
pub struct Preparer {
    recipe: Arc<Recipe>,
    reader: RowReader,
    work: Workspace,
}

impl Preparer {
    /// A preparer of a recipe.
    pub fn new(recipe: Arc<Recipe>) -> Self {
        Self { reader: RowReader::new(recipe.dataset.clone()), recipe, work: Workspace::default() }
    }

    /// Prepares a row; patches go to the given buffer, which must be empty.
    pub fn prepare(&mut self, row: u64, mut patches: Vec<u8>) -> Result<Prepared, DataError> {
        let Row { id, conversation, .. } = self.reader.read(row)?;
        let bad = |reason| DataError::Row { row: id.clone(), reason };
        let Recipe { processor, encoder, train_on, max_tokens, .. } = &*self.recipe;
        let mut encoded_images = Vec::new();
        let mut grids = Vec::new();
        for (number, source) in conversation.images().enumerate() {
            let bytes = self.reader.image_bytes(row, source)?;
            grids.push(processor.grid_of(&bytes).map_err(|error| bad(BadRow::image(number, error)))?);
            encoded_images.push(bytes);
        }
        let encoded = encode(encoder, processor, &conversation, &grids, *train_on).map_err(bad)?;
        if let Some(why) = left_out(&encoded, *max_tokens) {
            return Ok(Prepared::LeftOut(id, why));
        }
        for (number, (bytes, grid)) in encoded_images.iter().zip(&grids).enumerate() {
            let made = processor.append_patches(bytes, &mut self.work, &mut patches);
            let made = made.map_err(|error| bad(BadRow::image(number, error)))?;
            if made != *grid {
                return Err(bad(BadRow::ImageHeader { number: number + 1 }));
            }
        }
        Ok(Prepared::Ready(Sample { row, encoded, grids, patches }))
    }
}

/// Encodes the text of a row whose images have these grids.
pub(crate) fn encode(
    encoder: &Encoder,
    processor: &Processor,
    conversation: &crate::row::Conversation,
    grids: &[Grid],
    train_on: TrainOn,
) -> Result<Encoded, BadRow> {
    let merge = processor.config().merge_size;
    let tokens: Vec<_> = grids.iter().map(|grid| grid.tokens(merge)).collect();
    encoder.encode(conversation, &tokens, train_on).map_err(BadRow::Text)
}

/// Whether and why an encoded row is left out.
pub(crate) fn left_out(encoded: &Encoded, max_tokens: Option<usize>) -> Option<LeftOut> {
    let tokens = encoded.ids.len();
    match max_tokens {
        Some(limit) if tokens > limit => Some(LeftOut::TooLong { tokens, limit }),
        _ if !encoded.has_label() => Some(LeftOut::NoLabel),
        _ => None,
    }
}
