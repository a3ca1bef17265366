//! Generates one token after another.
//!
//! Takes a prompt of tokens and images, then one chosen token at a time, and gives the logits of the token
//! after them. It is a [`BatchDecoder`] with one sequence, so that an answer has the same bits alone and among
//! others. Memory is laid out once, for the longest prompt and the longest answer.

use super::batch::{BatchError, PackedBatch};
use super::batch_decode::{BatchDecoder, DecoderRoom, PromptImage, SequenceId};
use super::model::Model;
use super::session::SessionError;
use crate::positions::Grid;

/// A model at work on an answer.
#[derive(Debug)]
pub struct Decoder {
    batch: BatchDecoder,
    sequence: Option<SequenceId>,
    /// What memory was laid out for.
    tokens: usize,
    patches: usize,
    answer: usize,
}

impl Decoder {
    /// Lays out memory for prompts of up to `tokens` tokens and `patches` patches, and for answers of up to
    /// `answer` tokens.
    pub fn new(model: &Model, tokens: usize, patches: usize, answer: usize) -> Result<Self, SessionError> {
        let chunk = tokens.min(DecoderRoom::CHUNK);
        let all = tokens.saturating_add(answer);
        let room = DecoderRoom { sequences: 1, tokens: all, chunk, patches, image_tokens: 0 };
        Ok(Self { batch: BatchDecoder::new(model, room)?, sequence: None, tokens, patches, answer })
    }

    /// The same for one prompt with these images.
    pub fn for_images(
        model: &Model,
        tokens: usize,
        images: &[PromptImage],
        answer: usize,
    ) -> Result<Self, SessionError> {
        let largest = images.iter().map(|image| image.grid.iter().product()).max();
        Self::new(model, tokens, largest.unwrap_or(0), answer)
    }

    /// Forgets what was read, reads a prompt, and gives the logits of the token after it. It may have several
    /// images of as many patches as were laid out for.
    pub fn read(
        &mut self,
        model: &Model,
        ids: &[u32],
        images: Vec<PromptImage>,
    ) -> Result<&[f32], SessionError> {
        if let Some(before) = self.sequence.take() {
            self.batch.end(before);
        }
        self.batch.forget();
        if ids.len() > self.tokens {
            let (what, limit, found) = ("tokens", self.tokens, ids.len());
            return Err(BatchError::TooLarge { what, limit, found }.into());
        }
        let answer = self.tokens + self.answer - ids.len();
        let Some(id) = self.batch.begin(model, ids.to_vec(), images, answer)? else {
            // All of it is free: nothing else was begun.
            return Err(BatchError::Segments.into());
        };
        self.sequence = Some(id);
        while self.batch.read(model, id)?.is_none() {}
        Ok(self.batch.logits(model))
    }

    /// The same with the patches of all images together, of which there may be no more than were laid out for.
    pub fn prompt(
        &mut self,
        model: &Model,
        ids: &[u32],
        patches: &[u8],
        grids: &[Grid],
    ) -> Result<&[f32], SessionError> {
        let found = patches.len() / model.config().vision.patch_bytes().max(1);
        if ids.len() <= self.tokens && found > self.patches {
            return Err(BatchError::TooLarge { what: "patches", limit: self.patches, found }.into());
        }
        self.read(model, ids, split(model, ids, patches, grids)?)
    }

    /// Reads one more token, and gives the logits of the token after it.
    pub fn next(&mut self, model: &Model, token: u32) -> Result<&[f32], SessionError> {
        let id = self.sequence.ok_or(BatchError::Segments)?;
        self.batch.next(model, &[(id, token)])
    }
}

/// The patches of all images, image by image.
fn split(model: &Model, ids: &[u32], patches: &[u8], grids: &[Grid]) -> Result<Vec<PromptImage>, BatchError> {
    let labels = vec![-100; ids.len()];
    let segments = [0, ids.len()];
    super::batch::check(
        model.config(),
        &PackedBatch { ids, labels: &labels, segments: &segments, patches, grids },
    )?;
    let bytes = model.config().vision.patch_bytes();
    let mut rest = patches;
    let image = |grid: &Grid| {
        let (own, others) = rest.split_at(grid.iter().product::<usize>() * bytes);
        rest = others;
        PromptImage { patches: own.to_vec(), grid: *grid }
    };
    Ok(grids.iter().map(image).collect())
}
