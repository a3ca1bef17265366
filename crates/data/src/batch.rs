//! Batches of rows laid end to end, and their padded form for PyTorch.
//!
//! Takes encoded rows with the patches of their images and packs them into a [`Batch`] without padding; its
//! segments say where each sequence begins. [`Padded`] is derived from a batch and has HF's names, shapes and
//! values.

use crate::{
    position::Position,
    processor::{Grid, Processor},
    recipe::EncodedRow,
    text::Encoded,
};
use std::ops::Range;

/// The label of a token that is not learned, as in PyTorch.
pub const NO_LABEL: i32 = -100;

/// Rows laid end to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids of all rows.
    pub ids: Vec<u32>,
    /// The label of each token: the token itself, or [`NO_LABEL`]. Not shifted.
    pub labels: Vec<i32>,
    /// Where each sequence begins in `ids`, and where the last one ends.
    pub segments: Vec<usize>,
    /// The images of all rows, in order.
    pub images: Vec<BatchImage>,
    /// The compact patches of all images.
    pub patches: Vec<u8>,
    /// The number of each row in its dataset.
    pub rows: Vec<u64>,
    /// The epoch that its rows belong to; a batch never spans two.
    pub epoch: u64,
    /// The row that comes after this batch: what a checkpoint saves. After the last usable row of an epoch,
    /// that is the first of the next epoch.
    pub end: Position,
}

/// An image of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchImage {
    /// Its patches in rows and columns.
    pub grid: Grid,
    /// Its placeholders in `ids`.
    pub tokens: Range<usize>,
    /// Its patches in `patches`.
    pub patches: Range<usize>,
}

/// A row that is ready for a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Its number in the dataset.
    pub row: u64,
    /// Its tokens.
    pub encoded: Encoded,
    /// The grid of each image.
    pub grids: Vec<Grid>,
    /// The compact patches of all images.
    pub patches: Vec<u8>,
}

impl Batch {
    /// The tokens of rows, without their patches: what a batch is before its images are decoded.
    pub fn of_tokens<'a>(rows: impl IntoIterator<Item = &'a EncodedRow>) -> Self {
        let mut batch = Self::default();
        for (number, row) in rows.into_iter().enumerate() {
            let grids = row.images.iter().map(|image| image.grid);
            batch.push_parts(number as u64, &row.tokens, grids, &[]);
        }
        batch
    }

    /// Appends a row.
    pub(crate) fn push(&mut self, sample: &Sample) {
        let Sample { row, encoded, grids, patches } = sample;
        self.push_parts(*row, encoded, grids.iter().copied(), patches);
    }

    fn push_parts(
        &mut self,
        row: u64,
        encoded: &Encoded,
        grids: impl Iterator<Item = Grid> + Clone,
        patches: &[u8],
    ) {
        if self.segments.is_empty() {
            self.segments.push(0);
        }
        let start = self.ids.len();
        let Encoded { ids, trained, images } = encoded;
        self.ids.extend_from_slice(ids);
        let label = |(id, trained): (&u32, &bool)| if *trained { *id as i32 } else { NO_LABEL };
        self.labels.extend(ids.iter().zip(trained).map(label));
        self.segments.push(self.ids.len());
        let all: usize = grids.clone().map(Grid::patches).sum();
        let patch_bytes = patches.len().checked_div(all).unwrap_or(0);
        let mut at = self.patches.len();
        for (grid, tokens) in grids.zip(images) {
            let end = at + grid.patches() * patch_bytes;
            let tokens = start + tokens.start..start + tokens.end;
            self.images.push(BatchImage { grid, tokens, patches: at..end });
            at = end;
        }
        self.patches.extend_from_slice(patches);
        self.rows.push(row);
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.labels.clear();
        self.segments.clear();
        self.images.clear();
        self.patches.clear();
        self.rows.clear();
        self.epoch = 0;
        self.end = Position::default();
    }
}

/// A batch as HF's models take it: every sequence padded to the longest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Padded {
    /// Rows.
    pub rows: usize,
    /// Tokens in each row.
    pub length: usize,
    /// `[rows, length]`.
    pub input_ids: Vec<i64>,
    /// `[rows, length]`: 1 where there is a token.
    pub attention_mask: Vec<i64>,
    /// `[rows, length]`: -100 where nothing is learned.
    pub labels: Vec<i64>,
    /// `[rows, length]`: 1 where an image is. Without it transformers 5 gives images one-dimensional
    /// positions.
    pub mm_token_type_ids: Vec<i64>,
    /// `[patches, 1176]`, normalised.
    pub pixel_values: Vec<f32>,
    /// `[images, 3]`.
    pub image_grid_thw: Vec<i64>,
}

impl Padded {
    /// Pads a batch on the right with a token that the mask hides.
    pub fn new(batch: &Batch, processor: &Processor, pad: u32) -> Self {
        let mut padded = Self::of_tokens(batch, pad);
        processor.append_pixel_values(&batch.patches, &mut padded.pixel_values);
        padded
    }

    /// The same without `pixel_values`, which whoever decodes the images puts in.
    pub fn of_tokens(batch: &Batch, pad: u32) -> Self {
        let spans: Vec<_> = batch.segments.windows(2).map(|span| span[0]..span[1]).collect();
        let length = spans.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let mut is_image = vec![0; batch.ids.len()];
        for image in &batch.images {
            is_image[image.tokens.clone()].fill(1);
        }
        let all_ones = vec![1; batch.ids.len()];
        let mut padded = Self { rows: spans.len(), length, ..Self::default() };
        pad_rows(&batch.ids, i64::from(pad), &spans, length, &mut padded.input_ids);
        pad_rows(&all_ones, 0, &spans, length, &mut padded.attention_mask);
        pad_rows(&batch.labels, i64::from(NO_LABEL), &spans, length, &mut padded.labels);
        pad_rows(&is_image, 0, &spans, length, &mut padded.mm_token_type_ids);
        let grid = |image: &BatchImage| [1, i64::from(image.grid.rows), i64::from(image.grid.columns)];
        padded.image_grid_thw = batch.images.iter().flat_map(grid).collect();
        padded
    }
}

fn pad_rows<T: Copy + Into<i64>>(
    values: &[T],
    pad: i64,
    spans: &[Range<usize>],
    length: usize,
    out: &mut Vec<i64>,
) {
    for span in spans {
        out.extend(values[span.clone()].iter().map(|value| (*value).into()));
        out.extend(std::iter::repeat_n(pad, length - span.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::ImageHeader;
    use crate::{image::DecodeLimits, processor::ProcessorConfig};

    /// A row of text with one image of 2x2 patches at its tokens 1..2.
    fn with_image(row: u64) -> Sample {
        let encoded = Encoded {
            ids: vec![1, 9, 2, 3],
            trained: vec![false, false, false, true],
            images: std::iter::once(1..2).collect(),
        };
        Sample { row, encoded, grids: vec![Grid { rows: 2, columns: 2 }], patches: vec![row as u8; 4 * 588] }
    }

    fn text_only(row: u64) -> Sample {
        let encoded = Encoded { ids: vec![4, 5], trained: vec![true, true], images: vec![] };
        Sample { row, encoded, ..Sample::default() }
    }

    fn batch() -> Batch {
        let mut batch = Batch::default();
        for sample in [text_only(7), with_image(8), with_image(9)] {
            batch.push(&sample);
        }
        batch
    }

    #[test]
    fn rows_lie_end_to_end_and_know_their_images() {
        let batch = batch();
        assert_eq!(batch.ids, [4, 5, 1, 9, 2, 3, 1, 9, 2, 3]);
        assert_eq!(batch.labels, [4, 5, -100, -100, -100, 3, -100, -100, -100, 3]);
        assert_eq!(batch.segments, [0, 2, 6, 10]);
        assert_eq!(batch.rows, [7, 8, 9]);
        let tokens: Vec<_> = batch.images.iter().map(|image| image.tokens.clone()).collect();
        assert_eq!(tokens, [3..4, 7..8]);
        for (image, row) in batch.images.iter().zip([8, 9]) {
            assert_eq!(batch.patches[image.patches.clone()], [row; 4 * 588]);
        }
    }

    #[test]
    fn the_padded_form_hides_its_padding() {
        let processor = Processor::new(ProcessorConfig::default(), DecodeLimits::default());
        let padded = Padded::new(&batch(), &processor, 0);
        assert_eq!((padded.rows, padded.length), (3, 4));
        assert_eq!(padded.input_ids, [4, 5, 0, 0, 1, 9, 2, 3, 1, 9, 2, 3]);
        assert_eq!(padded.attention_mask, [1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(padded.labels, [4, 5, -100, -100, -100, -100, -100, 3, -100, -100, -100, 3]);
        assert_eq!(padded.mm_token_type_ids, [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(padded.image_grid_thw, [1, 2, 2, 1, 2, 2]);
        assert_eq!(padded.pixel_values.len(), 8 * 1176);
    }

    #[test]
    fn tokens_without_patches_are_laid_and_padded_alike() {
        let samples = [text_only(0), with_image(1)];
        let mut whole = Batch::default();
        samples.iter().for_each(|sample| whole.push(sample));
        let rows = samples.map(|Sample { encoded, grids, .. }| EncodedRow {
            images: grids.into_iter().map(header).collect(),
            tokens: encoded,
            left_out: None,
        });
        let tokens = Batch::of_tokens(&rows);
        assert_eq!(
            (&tokens.ids, &tokens.labels, &tokens.segments),
            (&whole.ids, &whole.labels, &whole.segments)
        );
        let processor = Processor::new(ProcessorConfig::default(), DecodeLimits::default());
        let padded = Padded { pixel_values: Vec::new(), ..Padded::new(&whole, &processor, 9) };
        assert_eq!(Padded::of_tokens(&tokens, 9), padded);
    }

    fn header(grid: Grid) -> ImageHeader {
        ImageHeader { size: (28, 28), grid, tokens: 1, encoded_bytes: 0, decoding_bytes: 0 }
    }

    #[test]
    fn a_cleared_batch_keeps_its_buffers_and_nothing_else() {
        let mut used = batch();
        let capacity = used.patches.capacity();
        used.clear();
        assert_eq!(used, Batch::default());
        assert_eq!(used.patches.capacity(), capacity);
    }
}
