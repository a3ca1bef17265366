//! Generates one token after another.
//!
//! Takes a prompt of tokens and images, then one chosen token at a time, and gives the logits of the token
//! after them. The past is kept, so a further token costs one row of every product. Memory is laid out once,
//! for the longest prompt and the longest answer.

use super::batch::{BatchError, PackedBatch, Prepared};
use super::block::BlockShape;
use super::cache::Cache;
use super::model::Model;
use super::session::{SessionError, Step};
use super::slots::{Clock, Planned, Shapes, StepSlots, plan};
use super::training::Training;
use super::{text, vision};
use crate::positions::Grid;
use garden_engine::Arena;
use garden_engine::in_pool;

/// A model at work on an answer.
#[derive(Debug)]
pub struct Decoder {
    arena: Arena,
    slots: StepSlots,
    training: Training,
    cache: Cache,
    /// What was laid out for a prompt.
    shapes: Shapes,
    /// Tokens that the cache has room for, and those in it.
    room: usize,
    tokens: usize,
    /// Position of the next token, on all axes.
    position: u32,
}

impl Decoder {
    /// Lays out memory for prompts of up to `tokens` tokens and `patches` patches, and for answers of up to
    /// `answer` tokens.
    pub fn new(model: &Model, tokens: usize, patches: usize, answer: usize) -> Result<Self, SessionError> {
        let config = model.config();
        let training =
            Training { through_vision: false, dropout: false, backward: false, ..model.training() };
        let shapes = Shapes { tokens, patches, labels: 1 };
        let Planned { slots, layout } = plan(config, shapes, training, 0);
        let bytes = layout.bytes();
        let arena = Arena::new(layout).map_err(|source| SessionError::Memory { bytes, source })?;
        let room = tokens + answer;
        let cache = Cache::new(&BlockShape::text(config, training), config.text.layers, room);
        Ok(Self { arena, slots, training, cache, shapes, room, tokens: 0, position: 0 })
    }

    /// Forgets what was read, reads a prompt, and gives the logits of the token after it.
    pub fn prompt(
        &mut self,
        model: &Model,
        ids: &[u32],
        patches: &[u8],
        grids: &[Grid],
    ) -> Result<&[f32], SessionError> {
        let batch =
            PackedBatch { ids, labels: &vec![-100; ids.len()], segments: &[0, ids.len()], patches, grids };
        let mut prepared = Prepared::new(model.config(), &batch)?;
        let last = ids.len().checked_sub(1).ok_or(BatchError::Segments)?;
        prepared.predicting = vec![last];
        self.cache.clear();
        self.tokens = 0;
        let positions = prepared.positions.iter().flatten();
        self.position = positions.max().map_or(0, |position| position + 1);
        self.read(model, &batch, &prepared)
    }

    /// Reads one more token, and gives the logits of the token after it.
    pub fn next(&mut self, model: &Model, token: u32) -> Result<&[f32], SessionError> {
        let batch =
            PackedBatch { ids: &[token], labels: &[-100], segments: &[0, 1], patches: &[], grids: &[] };
        let axis = || vec![self.position];
        let prepared =
            Prepared { positions: [axis(), axis(), axis()], predicting: vec![0], ..Prepared::default() };
        self.position += 1;
        self.read(model, &batch, &prepared)
    }

    fn read(
        &mut self,
        model: &Model,
        batch: &PackedBatch<'_>,
        prepared: &Prepared,
    ) -> Result<&[f32], SessionError> {
        in_pool(|| self.read_in_pool(model, batch, prepared))
    }

    fn read_in_pool(
        &mut self,
        model: &Model,
        batch: &PackedBatch<'_>,
        prepared: &Prepared,
    ) -> Result<&[f32], SessionError> {
        let tokens = self.tokens + batch.ids.len();
        let counts = [
            ("tokens", self.shapes.tokens, batch.ids.len()),
            ("patches", self.shapes.patches, prepared.patches()),
            ("tokens", self.room, tokens),
        ];
        if let Some((what, limit, found)) = counts.into_iter().find(|(_, limit, found)| found > limit) {
            return Err(BatchError::TooLarge { what, limit, found }.into());
        }
        self.tokens = tokens;
        let config = model.config();
        let step = Step {
            model,
            slots: &self.slots,
            clock: Clock::of(config),
            training: self.training,
            prepared,
            segments: batch.segments,
            rows: batch.ids.len(),
            dropout: None,
        };
        vision::forward(&step, &mut self.arena, batch.patches, &mut |_, _| {});
        text::forward(&step, &mut self.arena, batch, Some(&mut self.cache), &mut |_, _| {})?;
        Ok(text::logits(&step, &mut self.arena))
    }
}
