//! Lays resized pixels out as patches, in HF's order.
//!
//! Takes bands of an image, each as high as a patch, and gives patches of `[channel][y][x]` bytes, block by
//! block of merge size squared, blocks in reading order. HF's `pixel_values` repeat each channel's square for
//! every frame and are normalised in f32; they are derived from the compact form and equal HF's bit for bit.

use super::{Grid, ProcessorConfig, config::CHANNELS, resize::Band};

/// Sides of a patch and of a block of all published checkpoints, for which the copies are unrolled.
const USUAL_SIZES: (usize, usize) =
    (ProcessorConfig::PUBLISHED.patch_size as usize, ProcessorConfig::PUBLISHED.merge_size as usize);

/// Cuts a band of a resized image into row `row` of the image's patches.
pub(super) fn put_row(row: usize, band: &Band, grid: Grid, config: &ProcessorConfig, patches: &mut [u8]) {
    let (side, merge) = (config.patch_size as usize, config.merge_size as usize);
    let row_bytes = grid.columns as usize * config.patch_bytes();
    let blocks = &mut patches[row / merge * merge * row_bytes..][..merge * row_bytes];
    match (side, merge) {
        USUAL_SIZES => cut(row % merge, band, USUAL_SIZES, blocks),
        sizes => cut(row % merge, band, sizes, blocks),
    }
}

/// Fills row `row` of each of a row of blocks. Inlined so that constant sizes unroll the copies.
#[inline(always)]
fn cut(row: usize, band: &Band, (side, merge): (usize, usize), blocks: &mut [u8]) {
    let patch_bytes = CHANNELS * side * side;
    for (block, patches) in blocks.chunks_exact_mut(merge * merge * patch_bytes).enumerate() {
        let patches = patches.chunks_exact_mut(patch_bytes).skip(row * merge).take(merge);
        for (column, patch) in patches.enumerate() {
            let x = (block * merge + column) * side;
            for (channel, plane) in patch.chunks_exact_mut(side * side).enumerate() {
                for (y, samples) in plane.chunks_exact_mut(side).enumerate() {
                    samples.copy_from_slice(&band.row(y, channel)[x..][..side]);
                }
            }
        }
    }
}

/// Writes HF's `pixel_values` of compact patches into space that is there already: no value is moved twice.
pub(super) fn put_normalised(patches: &[u8], config: &ProcessorConfig, values: &mut [f32]) {
    pulp::Arch::new().dispatch(|| put_values(patches, config, values));
}

#[inline(always)]
fn put_values(patches: &[u8], config: &ProcessorConfig, values: &mut [f32]) {
    let (square, frames) = (config.patch_square(), config.temporal_patch_size as usize);
    let planes = patches.chunks_exact(square).zip(values.chunks_exact_mut(square * frames));
    for (index, (plane, values)) in planes.enumerate() {
        let (mean, std) = scaled(config, index % CHANNELS);
        let (first, others) = values.split_at_mut(square);
        for (value, &sample) in first.iter_mut().zip(plane) {
            *value = (f32::from(sample) - mean) / std;
        }
        others.chunks_exact_mut(square).for_each(|frame| frame.copy_from_slice(first));
    }
}

/// Mean and deviation of a channel on the scale of bytes: HF folds the division by 255 into them, in f32.
fn scaled(config: &ProcessorConfig, channel: usize) -> (f32, f32) {
    (config.mean[channel] * 255.0, config.std[channel] * 255.0)
}

/// Appends HF's `pixel_values` of compact patches.
pub(super) fn append_normalised(patches: &[u8], config: &ProcessorConfig, values: &mut Vec<f32>) {
    let start = values.len();
    values.resize(start + patches.len() * config.temporal_patch_size as usize, 0.0);
    put_normalised(patches, config, &mut values[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patches of 2x2 pixels in merged squares of 2x2: 4 x 8 pixels, each its own number.
    fn small() -> (ProcessorConfig, Vec<u8>) {
        let config = ProcessorConfig { patch_size: 2, merge_size: 2, ..ProcessorConfig::default() };
        let grid = Grid { rows: 2, columns: 4 };
        let mut patches = vec![0; 8 * 12];
        for row in 0..2 {
            let samples: Vec<u8> = (2 * row..2 * row + 2)
                .flat_map(|y| [0, 100, 200].into_iter().flat_map(move |from| from + 8 * y..from + 8 * y + 8))
                .collect();
            put_row(row.into(), &Band::of(&samples, 8), grid, &config, &mut patches);
        }
        (config, patches)
    }

    #[test]
    fn patches_come_block_by_block_and_channel_by_channel() {
        let (_, patches) = small();
        let reds: Vec<_> = patches.chunks(12).map(|patch| patch[..4].to_vec()).collect();
        assert_eq!(reds[0], [0, 1, 8, 9], "the first square");
        assert_eq!(reds[1], [2, 3, 10, 11], "its right neighbour in the block");
        assert_eq!(reds[2], [16, 17, 24, 25], "then the block's second row");
        assert_eq!(reds[4], [4, 5, 12, 13], "then the next block");
        assert_eq!(patches[4..8], [100, 101, 108, 109], "green after red");
        assert_eq!(patches[8..12], [200, 201, 208, 209], "then blue");
    }

    #[test]
    fn values_repeat_each_channel_for_both_frames() {
        let (config, patches) = small();
        let mut values = Vec::new();
        append_normalised(&patches, &config, &mut values);
        assert_eq!(values.len(), 2 * patches.len());
        assert_eq!(values[..4], values[4..8], "two frames of red");
        let (mean, std) = (f64::from(config.mean[1]), f64::from(config.std[1]));
        let expected = (f64::from(patches[4]) / 255.0 - mean) / std;
        assert!((f64::from(values[8]) - expected).abs() < 1e-6, "then green, normalised");
    }
}
