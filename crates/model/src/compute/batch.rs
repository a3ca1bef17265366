//! A batch as the model takes it, checked and prepared.
//!
//! Takes sequences laid end to end (ids, labels, bounds, compact patches, grids), and gives positions on
//! every axis, segments of attention, the order of windows, the rows of images and the rows that predict a
//! label. What does not fit together is refused here, before any arithmetic.

use crate::config::ModelConfig;
use crate::positions::{Grid, PositionError, mrope_positions};
use crate::windows::{WindowLayout, window_layout};

/// Sequences laid end to end, without padding.
#[derive(Debug, Clone, Copy)]
pub struct PackedBatch<'a> {
    /// Token ids of all sequences.
    pub ids: &'a [u32],
    /// The token itself where it is learned, a negative number elsewhere; not shifted.
    pub labels: &'a [i32],
    /// Where each sequence begins in `ids`, and where the last one ends.
    pub segments: &'a [usize],
    /// Compact patches of all images in order: channel by channel, one frame, as bytes.
    pub patches: &'a [u8],
    /// Grid of each image: frames, rows, columns.
    pub grids: &'a [Grid],
}

/// Why a batch cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Lengths that do not fit each other.
    #[error("the batch has {found} {what} where {expected} are expected")]
    Lengths {
        /// What was counted.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// The bounds of the sequences are not in order.
    #[error("the bounds of the batch's sequences are not ascending from 0")]
    Segments,
    /// A token or label that the vocabulary does not have.
    #[error("token {id} at place {place} is not below the vocabulary of {vocabulary}")]
    OutOfVocabulary {
        /// The id.
        id: u32,
        /// Where it stands in the batch.
        place: usize,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The images do not fit the tokens of their sequence.
    #[error("sequence {sequence} of the batch: {source}")]
    Positions {
        /// Which sequence, from 0.
        sequence: usize,
        /// What does not fit.
        source: PositionError,
    },
    /// The batch is larger than the memory that was laid out.
    #[error("the batch has {found} {what}, but memory was laid out for {limit}")]
    TooLarge {
        /// What there are too many of.
        what: &'static str,
        /// How many there may be.
        limit: usize,
        /// How many there are.
        found: usize,
    },
}

/// A batch ready to compute.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// Time, row and column of each token.
    pub positions: [Vec<u32>; 3],
    /// For each merged token of the images in order, the row of `ids` it fills.
    pub image_rows: Vec<usize>,
    /// Rows whose next token has a label, and that label.
    pub predicting: Vec<usize>,
    pub targets: Vec<u32>,
    /// Order of windows over merged tokens.
    pub order: Vec<u32>,
    /// Bounds of windows and of whole images, in patches.
    pub windows: Vec<usize>,
    pub images: Vec<usize>,
    /// Row and column of each patch, in window order.
    pub patch_positions: [Vec<u32>; 2],
}

impl Prepared {
    pub(super) fn new(config: &ModelConfig, batch: &PackedBatch<'_>) -> Result<Self, BatchError> {
        check(config, batch)?;
        let mut prepared = Self::default();
        prepared.place_tokens(config, batch)?;
        prepared.choose_targets(batch);
        prepared.place_patches(config, batch.grids);
        Ok(prepared)
    }

    pub(super) fn patches(&self) -> usize {
        self.patch_positions[0].len()
    }

    fn place_tokens(&mut self, config: &ModelConfig, batch: &PackedBatch<'_>) -> Result<(), BatchError> {
        let image = config.image_token_id;
        let mut grids = batch.grids;
        for (sequence, bounds) in batch.segments.windows(2).enumerate() {
            let tokens = &batch.ids[bounds[0]..bounds[1]];
            let starts = |at: &usize| tokens[*at] == image && (*at == 0 || tokens[*at - 1] != image);
            let images = (0..tokens.len()).filter(starts).count().min(grids.len());
            let last = sequence + 2 == batch.segments.len();
            let own = if last { grids } else { &grids[..images] };
            let positions = mrope_positions(tokens, own, image, config.vision.merge_size)
                .map_err(|source| BatchError::Positions { sequence, source })?;
            grids = &grids[own.len()..];
            for (axis, list) in self.positions.iter_mut().enumerate() {
                list.extend(positions.iter().map(|position| position[axis]));
            }
        }
        let rows = batch.ids.iter().enumerate().filter(|(_, id)| **id == image);
        self.image_rows = rows.map(|(row, _)| row).collect();
        Ok(())
    }

    /// A row predicts the token after it, within its own segment.
    fn choose_targets(&mut self, batch: &PackedBatch<'_>) {
        for bounds in batch.segments.windows(2) {
            for place in bounds[0] + 1..bounds[1] {
                if let Ok(label) = u32::try_from(batch.labels[place]) {
                    self.predicting.push(place - 1);
                    self.targets.push(label);
                }
            }
        }
    }

    pub(super) fn place_patches(&mut self, config: &ModelConfig, grids: &[Grid]) {
        let vision = &config.vision;
        let (merge, unit) = (vision.merge_size, vision.merge_unit());
        let layout: WindowLayout = window_layout(grids, vision.merged_window(), merge);
        let wide = |bounds: &[u32]| bounds.iter().map(|&bound| bound as usize).collect();
        self.windows = wide(&layout.window_bounds);
        self.images = wide(&layout.frame_bounds);
        let mut plain: Vec<[u32; 2]> = Vec::new();
        for &[frames, rows, columns] in grids {
            for merged in 0..frames * rows * columns / unit {
                let merged = merged % (rows * columns / unit);
                let (top, left) = (merged / (columns / merge) * merge, merged % (columns / merge) * merge);
                plain.extend((0..unit).map(|at| [(top + at / merge) as u32, (left + at % merge) as u32]));
            }
        }
        for &merged in &layout.order {
            for place in &plain[merged as usize * unit..][..unit] {
                self.patch_positions[0].push(place[0]);
                self.patch_positions[1].push(place[1]);
            }
        }
        self.order = layout.order;
    }
}

/// Whether lengths and ids of a batch fit each other.
pub(super) fn check(config: &ModelConfig, batch: &PackedBatch<'_>) -> Result<(), BatchError> {
    check_lengths(config, batch)?;
    check_ids(config, batch)
}

fn check_lengths(config: &ModelConfig, batch: &PackedBatch<'_>) -> Result<(), BatchError> {
    let check = |what, expected: usize, found: usize| match expected == found {
        true => Ok(()),
        false => Err(BatchError::Lengths { what, expected, found }),
    };
    check("labels", batch.ids.len(), batch.labels.len())?;
    check("tokens in its rows", batch.ids.len(), batch.segments.last().copied().unwrap_or(0))?;
    if batch.segments.first().is_none_or(|&first| first != 0) || !batch.segments.is_sorted() {
        return Err(BatchError::Segments);
    }
    let merge = config.vision.merge_size;
    for (index, grid) in batch.grids.iter().enumerate() {
        let fits = grid[0] > 0 && grid[1..].iter().all(|side| *side > 0 && side.is_multiple_of(merge));
        if !fits {
            let source = PositionError::BadGrid { index, grid: *grid, merge };
            return Err(BatchError::Positions { sequence: 0, source });
        }
    }
    let of_grid = |grid: &Grid| grid.iter().try_fold(1usize, |patches, side| patches.checked_mul(*side));
    let patches = batch.grids.iter().try_fold(0usize, |sum, grid| sum.checked_add(of_grid(grid)?));
    let bytes = patches.and_then(|patches| patches.checked_mul(config.vision.patch_bytes()));
    // No slice is as long as the largest number.
    check("bytes of patches", bytes.unwrap_or(usize::MAX), batch.patches.len())
}

fn check_ids(config: &ModelConfig, batch: &PackedBatch<'_>) -> Result<(), BatchError> {
    let vocabulary = config.text.vocab_size;
    let labels = batch.labels.iter().map(|&label| u32::try_from(label).unwrap_or(0));
    let fault = |(place, id): (usize, u32)| BatchError::OutOfVocabulary { id, place, vocabulary };
    let outside = |(_, id): &(usize, u32)| *id as usize >= vocabulary;
    let ids = batch.ids.iter().copied().enumerate();
    match ids.chain(labels.enumerate()).find(outside) {
        None => Ok(()),
        Some(found) => Err(fault(found)),
    }
}
