//! Several sequences of one model at once, each with its own past.
//!
//! Takes prompts of tokens and images that join and leave at any moment, and one further token of each sequence
//! a pass, and gives the logits after them. Prompts are read a chunk at a time, so that others go on between.
//! What a sequence gives is equal to the bit whatever runs beside it, however it was cut into chunks, and
//! whether a part of it was kept from an earlier one. Memory is laid out once and never grows.

use super::batch::{BatchError, PackedBatch, Prepared};
use super::block::BlockShape;
use super::cache::Cache;
use super::images::{self, ImageRows, Images};
use super::model::Model;
use super::pages::{Contents, ImageHash, Pages, pages_of};
use super::session::{SessionError, Step, prepare_threads};
use super::slots::{Clock, Planned, Shapes, StepSlots, plan};
use super::training::Training;
use super::{text, vision};
use crate::config::ModelConfig;
use crate::lora::{LoraError, LoraSettings};
use crate::positions::Grid;
use garden_engine::ops::attention::{PAGE, Reading};
use garden_engine::{Arena, in_pool};
use std::sync::Arc;

/// What memory is laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderRoom {
    /// Sequences at once.
    pub sequences: usize,
    /// Tokens of all sequences, and of prefixes that are kept.
    pub tokens: usize,
    /// Tokens of a prompt that are read in one pass.
    pub chunk: usize,
    /// Patches of the largest image.
    pub patches: usize,
    /// Tokens of images that are kept for the next prompt that shows them.
    pub image_tokens: usize,
}

impl DecoderRoom {
    /// Tokens of a prompt that are read in one pass, where nothing speaks for another number: as many rows as
    /// keep a product busy, and few enough to stay small.
    pub const CHUNK: usize = 512;

    fn shapes(&self) -> Shapes {
        let tokens = self.chunk.max(self.sequences).max(1);
        Shapes { tokens, patches: self.patches, labels: self.sequences.max(1) }
    }

    /// Bytes of the arena, of the keys and values, and of the images that are kept, for a model with or without
    /// an adapter.
    pub fn bytes(
        &self,
        config: &ModelConfig,
        adapter: Option<&LoraSettings>,
    ) -> Result<[usize; 3], LoraError> {
        let targets = adapter.map(|settings| settings.targets(config)).transpose()?.unwrap_or_default();
        let modules = targets.iter().map(|linear| linear.module.as_str());
        let training = decoding(Training::pairs(modules, adapter, false));
        let Planned { layout, .. } = plan(config, self.shapes(), training, 0);
        let shape = BlockShape::text(config, training);
        let cache = Cache::bytes(&shape, config.text.layers, pages_of(self.tokens));
        Ok([layout.bytes(), cache, self.image_values(config) * size_of::<f32>()])
    }

    fn image_values(&self, config: &ModelConfig) -> usize {
        self.image_tokens.saturating_mul(config.text.hidden_size)
    }
}

fn decoding(training: Training) -> Training {
    Training { through_vision: false, dropout: false, backward: false, ..training }
}

/// An image of a prompt.
#[derive(Debug, Clone)]
pub struct PromptImage {
    /// Its compact patches.
    pub patches: Vec<u8>,
    /// Its grid in patches.
    pub grid: Grid,
}

/// A sequence that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SequenceId(usize);

/// What a sequence took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceUse {
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those of them that were kept from an earlier sequence.
    pub cached_tokens: usize,
    /// Those of them that show images.
    pub image_tokens: usize,
}

/// An image on its way into a sequence.
#[derive(Debug)]
struct Image {
    hash: ImageHash,
    grid: Grid,
    /// Its tokens, from the first one on.
    first: usize,
    count: usize,
    /// Not needed any more once the rows are there or were read.
    patches: Vec<u8>,
    rows: Option<ImageRows>,
}

#[derive(Debug)]
struct Sequence {
    ids: Vec<u32>,
    /// Of the prompt's tokens; those of an answer count on from `next`.
    positions: [Vec<u32>; 3],
    next: u32,
    images: Vec<Image>,
    /// Tokens that are in the cache.
    read: usize,
    pages: Vec<u32>,
    /// Tokens that its pages were taken for.
    room: usize,
    /// Full pages that are known, and the serial number of the last one.
    known: usize,
    serial: u64,
    used: SequenceUse,
}

impl Sequence {
    /// What full page `index` holds.
    fn contents(&self, index: usize, before: u64) -> Contents {
        let range = index * PAGE..(index + 1) * PAGE;
        let on_page = |image: &&Image| image.first < range.end && image.first + image.count > range.start;
        let images = self.images.iter().filter(on_page).map(|image| image.hash).collect();
        Contents { before, tokens: self.ids[range.clone()].to_vec(), images }
    }
}

/// A model at work on several answers.
#[derive(Debug)]
pub struct BatchDecoder {
    arena: Arena,
    slots: StepSlots,
    training: Training,
    cache: Cache,
    pages: Pages,
    images: Images,
    room: DecoderRoom,
    sequences: Vec<Option<Sequence>>,
}

impl BatchDecoder {
    /// Lays out memory.
    pub fn new(model: &Model, room: DecoderRoom) -> Result<Self, SessionError> {
        let (config, training) = (model.config(), decoding(model.training()));
        let Planned { slots, layout } = plan(config, room.shapes(), training, 0);
        let bytes = layout.bytes();
        let arena = Arena::new(layout).map_err(|source| SessionError::Memory { bytes, source })?;
        let pages = pages_of(room.tokens);
        let cache = Cache::new(&BlockShape::text(config, training), config.text.layers, pages);
        prepare_threads(model);
        Ok(Self {
            arena,
            slots,
            training,
            cache,
            pages: Pages::new(pages),
            images: Images::new(room.image_values(config)),
            room,
            sequences: (0..room.sequences.max(1)).map(|_| None).collect(),
        })
    }

    /// What memory was laid out for.
    pub fn room(&self) -> DecoderRoom {
        self.room
    }

    /// Whether a sequence of `tokens` tokens, its answer included, could begin now.
    pub fn has_room(&self, tokens: usize) -> bool {
        self.sequences.iter().any(Option::is_none) && self.pages.free() >= pages_of(tokens)
    }

    /// Begins a sequence whose answer has up to `answer` tokens. Nothing is computed yet; room for all of it is
    /// taken, so that no sequence stops for want of room once it has begun. `None` while there is none.
    pub fn begin(
        &mut self,
        model: &Model,
        ids: Vec<u32>,
        images: Vec<PromptImage>,
        answer: usize,
    ) -> Result<Option<SequenceId>, SessionError> {
        let mut sequence = self.sequence(model, ids, images, answer)?;
        let Some(slot) = self.sequences.iter().position(Option::is_none) else { return Ok(None) };
        // The last token of a prompt is always read: its logits are what is asked for.
        let whole = (sequence.ids.len() - 1) / PAGE;
        while sequence.known < whole {
            let contents = sequence.contents(sequence.known, sequence.serial);
            let Some((page, serial)) = self.pages.find(&contents) else { break };
            sequence.pages.push(page);
            (sequence.known, sequence.serial) = (sequence.known + 1, serial);
        }
        let wanted = pages_of(sequence.room) - sequence.pages.len();
        let Some(rest) = self.pages.take(wanted) else {
            self.pages.release(&sequence.pages);
            return Ok(None);
        };
        sequence.pages.extend(rest);
        sequence.read = sequence.known * PAGE;
        sequence.used.cached_tokens = sequence.read;
        for image in sequence.images.iter_mut().filter(|image| image.first + image.count <= sequence.read) {
            image.patches = Vec::new();
        }
        self.sequences[slot] = Some(sequence);
        Ok(Some(SequenceId(slot)))
    }

    /// Checks a prompt.
    fn sequence(
        &self,
        model: &Model,
        ids: Vec<u32>,
        images: Vec<PromptImage>,
        answer: usize,
    ) -> Result<Sequence, SessionError> {
        let too_large = |what, limit, found| Err(BatchError::TooLarge { what, limit, found }.into());
        if ids.is_empty() {
            return Err(BatchError::Segments.into());
        }
        let room = ids.len().saturating_add(answer);
        if pages_of(room) > pages_of(self.room.tokens) {
            return too_large("tokens", self.room.tokens, room);
        }
        let grids: Vec<Grid> = images.iter().map(|image| image.grid).collect();
        let labels = vec![-100; ids.len()];
        let patches = images.iter().map(|image| image.patches.as_slice()).collect::<Vec<_>>().concat();
        let segments = [0, ids.len()];
        let batch =
            PackedBatch { ids: &ids, labels: &labels, segments: &segments, patches: &patches, grids: &grids };
        let prepared = Prepared::new(model.config(), &batch)?;
        let of_grid = |grid: &Grid| grid.iter().product::<usize>();
        let bytes = |image: &PromptImage| of_grid(&image.grid) * model.config().vision.patch_bytes();
        if let Some(image) = images.iter().find(|image| image.patches.len() != bytes(image)) {
            let (what, expected, found) = ("bytes of patches", bytes(image), image.patches.len());
            return Err(BatchError::Lengths { what, expected, found }.into());
        }
        if let Some(found) = grids.iter().map(of_grid).find(|count| *count > self.room.patches) {
            return too_large("patches", self.room.patches, found);
        }
        let unit = model.config().vision.merge_unit();
        let mut rows = prepared.image_rows.iter().copied();
        let mut place = |image: PromptImage| {
            let count = of_grid(&image.grid) / unit;
            let first = rows.next().unwrap_or(0);
            rows.by_ref().take(count - 1).for_each(drop);
            let hash = images::hash(image.grid, &image.patches);
            Image { hash, grid: image.grid, first, count, patches: image.patches, rows: None }
        };
        let images: Vec<Image> = images.into_iter().map(&mut place).collect();
        let used = SequenceUse {
            prompt_tokens: ids.len(),
            cached_tokens: 0,
            image_tokens: prepared.image_rows.len(),
        };
        let next = prepared.positions.iter().flatten().max().map_or(0, |position| position + 1);
        let positions = prepared.positions;
        let (pages, read, known, serial) = (Vec::new(), 0, 0, 0);
        Ok(Sequence { ids, positions, next, images, read, pages, room, known, serial, used })
    }

    /// Reads a further piece of a prompt: an image or a chunk of tokens. Gives the logits of the token after
    /// the prompt once all of it was read.
    pub fn read(&mut self, model: &Model, id: SequenceId) -> Result<Option<&[f32]>, SessionError> {
        in_pool(|| self.read_in_pool(model, id))
    }

    fn read_in_pool(&mut self, model: &Model, id: SequenceId) -> Result<Option<&[f32]>, SessionError> {
        let Some(sequence) = self.sequences[id.0].as_mut() else { return Err(BatchError::Segments.into()) };
        let (from, to) = (sequence.read, sequence.ids.len().min(sequence.read + self.room.chunk.max(1)));
        let shown = |image: &&mut Image| image.first < to && image.first + image.count > from;
        for image in sequence.images.iter_mut().filter(shown).filter(|image| image.rows.is_none()) {
            image.rows = self.images.find(&image.hash);
            if image.rows.is_none() {
                let patches = std::mem::take(&mut image.patches);
                let work = Work { model, slots: &self.slots, training: self.training };
                let rows = work.see(&mut self.arena, image.grid, &patches);
                self.images.keep(image.hash, &rows);
                image.rows = Some(rows);
                return Ok(None);
            }
        }
        let last = to == sequence.ids.len();
        let prepared = Prepared {
            positions: sequence.positions.each_ref().map(|axis| axis[from..to].to_vec()),
            predicting: if last { vec![to - from - 1] } else { Vec::new() },
            ..Prepared::default()
        };
        let width = model.config().text.hidden_size;
        let images: Vec<text::Shown<'_>> = (sequence.images.iter())
            .filter_map(|image| {
                let rows = image.rows.as_deref()?;
                let (first, end) = (image.first.max(from), (image.first + image.count).min(to));
                let rows = &rows[(first - image.first) * width..(end - image.first) * width];
                (first < end).then_some(text::Shown { row: first - from, rows })
            })
            .collect();
        let reading = Reading { row: 0, count: to - from, before: from, pages: &sequence.pages };
        let work = Work { model, slots: &self.slots, training: self.training };
        let ids = &sequence.ids[from..to];
        work.read(&mut self.arena, &prepared, ids, &images, &mut self.cache, &[reading])?;
        sequence.read = to;
        for image in sequence.images.iter_mut().filter(|image| image.first + image.count <= to) {
            (image.rows, image.patches) = (None, Vec::new());
        }
        settle(&mut self.pages, sequence);
        if !last {
            return Ok(None);
        }
        Ok(Some(work.logits(&mut self.arena, &prepared)))
    }

    /// Reads one more token of each of these sequences, whose prompts were read; gives the logits after them,
    /// one row of the vocabulary for each, in this order.
    pub fn next(&mut self, model: &Model, tokens: &[(SequenceId, u32)]) -> Result<&[f32], SessionError> {
        in_pool(|| self.next_in_pool(model, tokens))
    }

    fn next_in_pool(&mut self, model: &Model, tokens: &[(SequenceId, u32)]) -> Result<&[f32], SessionError> {
        let vocabulary = model.config().text.vocab_size;
        for (place, &(SequenceId(slot), token)) in tokens.iter().enumerate() {
            if token as usize >= vocabulary {
                return Err(BatchError::OutOfVocabulary { id: token, place, vocabulary }.into());
            }
            let again = tokens[..place].iter().any(|(other, _)| other.0 == slot);
            let sequence = self.sequences[slot]
                .as_ref()
                .filter(|sequence| sequence.read == sequence.ids.len() && !again);
            let Some(sequence) = sequence else { return Err(BatchError::Segments.into()) };
            if sequence.read >= sequence.room {
                let (limit, found) = (sequence.room, sequence.read + 1);
                return Err(BatchError::TooLarge { what: "tokens", limit, found }.into());
            }
        }
        let mut positions = Vec::with_capacity(tokens.len());
        for &(SequenceId(slot), token) in tokens {
            let sequence = self.sequences[slot].as_mut().expect("found above");
            sequence.ids.push(token);
            positions.push(sequence.next);
            sequence.next += 1;
        }
        let readings: Vec<Reading<'_>> = (tokens.iter().enumerate())
            .filter_map(|(row, (SequenceId(slot), _))| {
                let sequence = self.sequences[*slot].as_ref()?;
                Some(Reading { row, count: 1, before: sequence.read, pages: &sequence.pages })
            })
            .collect();
        let prepared = Prepared {
            positions: [positions.clone(), positions.clone(), positions],
            predicting: (0..tokens.len()).collect(),
            ..Prepared::default()
        };
        let ids: Vec<u32> = tokens.iter().map(|(_, token)| *token).collect();
        let work = Work { model, slots: &self.slots, training: self.training };
        work.read(&mut self.arena, &prepared, &ids, &[], &mut self.cache, &readings)?;
        for &(SequenceId(slot), _) in tokens {
            if let Some(sequence) = self.sequences[slot].as_mut() {
                sequence.read += 1;
                settle(&mut self.pages, sequence);
            }
        }
        Ok(work.logits(&mut self.arena, &prepared))
    }

    /// The logits that the last pass gave, of its first row.
    pub(super) fn logits(&mut self, model: &Model) -> &[f32] {
        let [scratch] = self.arena.get([self.slots.head_scratch]);
        &scratch[..model.config().text.vocab_size]
    }

    /// What a sequence took so far.
    pub fn used(&self, id: SequenceId) -> SequenceUse {
        self.sequences[id.0].as_ref().map(|sequence| sequence.used).unwrap_or_default()
    }

    /// Lets a sequence go, at any moment. What was read of it stays known until its room is needed.
    pub fn end(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences[id.0].take() {
            self.pages.release(&sequence.pages);
        }
    }

    /// Forgets all that is kept of earlier sequences and images.
    pub fn forget(&mut self) {
        self.pages.forget();
        self.images.forget();
    }
}

/// Makes the pages known that are full now.
fn settle(pages: &mut Pages, sequence: &mut Sequence) {
    while (sequence.known + 1) * PAGE <= sequence.read {
        let contents = sequence.contents(sequence.known, sequence.serial);
        sequence.serial = pages.fill(sequence.pages[sequence.known], contents);
        sequence.known += 1;
    }
}

/// What every pass needs.
#[derive(Clone, Copy)]
struct Work<'a> {
    model: &'a Model,
    slots: &'a StepSlots,
    training: Training,
}

impl<'a> Work<'a> {
    fn step(&self, prepared: &'a Prepared) -> Step<'a> {
        let Self { model, slots, training } = *self;
        let (clock, rows) = (Clock::of(model.config()), prepared.positions[0].len());
        Step { model, slots, clock, training, prepared, segments: &[], rows, dropout: None }
    }

    /// The rows of one image, in the order of its tokens.
    fn see(&self, arena: &mut Arena, grid: Grid, patches: &[u8]) -> ImageRows {
        let mut prepared = Prepared::default();
        prepared.place_patches(self.model.config(), &[grid]);
        let step = Work { ..*self }.step(&prepared);
        vision::forward(&step, arena, patches, &mut |_, _| {});
        let width = self.model.config().text.hidden_size;
        let [merged] = arena.get([self.slots.merged]);
        let mut rows = vec![0.0; prepared.order.len() * width];
        for (merged, &token) in merged.chunks_exact(width).zip(&prepared.order) {
            rows[token as usize * width..][..width].copy_from_slice(merged);
        }
        Arc::from(rows)
    }

    fn read(
        &self,
        arena: &mut Arena,
        prepared: &Prepared,
        ids: &[u32],
        images: &[text::Shown<'_>],
        cache: &mut Cache,
        readings: &[Reading<'_>],
    ) -> Result<(), SessionError> {
        text::read(&Work { ..*self }.step(prepared), arena, ids, images, cache, readings)
    }

    fn logits<'b>(&self, arena: &'b mut Arena, prepared: &Prepared) -> &'b [f32] {
        let step = Work { ..*self }.step(prepared);
        let count = prepared.predicting.len() * self.model.config().text.vocab_size;
        &text::logits(&step, arena)[..count]
    }
}
