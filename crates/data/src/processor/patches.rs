//! Resized pixels to patches, in the order in which HF lays them out.
//!
//! In come RGB rows whose sides are whole patches; out go patches of `[channel][y][x]` bytes, block by block of
//! merge size squared, blocks in reading order. HF's `pixel_values` have each channel's square repeated for every
//! frame and normalised in f32; they are derived from the compact form and equal HF's bit for bit.

use super::{Grid, ProcessorConfig};

/// The patch size of all published checkpoints, for which the loops are unrolled.
const USUAL_PATCH_SIZE: usize = 14;

/// Appends the patches of one resized image.
pub(super) fn append(rgb: &[u8], grid: Grid, config: &ProcessorConfig, patches: &mut Vec<u8>) {
    let start = patches.len();
    patches.resize(start + grid.patches() * config.patch_bytes(), 0);
    let out = &mut patches[start..];
    match config.patch_size as usize {
        USUAL_PATCH_SIZE => cut(rgb, grid, config.merge_size, USUAL_PATCH_SIZE, out),
        side => cut(rgb, grid, config.merge_size, side, out),
    }
}

/// Inlined so that a constant `side` unrolls the copy of a row.
#[inline(always)]
fn cut(rgb: &[u8], grid: Grid, merge: u32, side: usize, out: &mut [u8]) {
    let stride = grid.columns as usize * side * 3;
    for (patch, (row, column)) in out.chunks_exact_mut(3 * side * side).zip(reading_order(grid, merge)) {
        let corner = &rgb[row * side * stride + column * side * 3..];
        let (red, rest) = patch.split_at_mut(side * side);
        let (green, blue) = rest.split_at_mut(side * side);
        for y in 0..side {
            let pixels = &corner[y * stride..][..side * 3];
            let (red, green, blue) =
                (&mut red[y * side..][..side], &mut green[y * side..][..side], &mut blue[y * side..][..side]);
            for x in 0..side {
                red[x] = pixels[3 * x];
                green[x] = pixels[3 * x + 1];
                blue[x] = pixels[3 * x + 2];
            }
        }
    }
}

/// The row and column of each patch, in the order of the output.
fn reading_order(grid: Grid, merge: u32) -> impl Iterator<Item = (usize, usize)> {
    let (rows, columns, merge) = (grid.rows as usize, grid.columns as usize, merge as usize);
    let blocks =
        (0..rows).step_by(merge).flat_map(move |row| (0..columns).step_by(merge).map(move |c| (row, c)));
    blocks.flat_map(move |(row, column)| {
        (0..merge).flat_map(move |y| (0..merge).map(move |x| (row + y, column + x)))
    })
}

/// Appends HF's `pixel_values` of compact patches.
pub(super) fn append_normalised(patches: &[u8], config: &ProcessorConfig, values: &mut Vec<f32>) {
    let square = config.patch_size as usize * config.patch_size as usize;
    values.reserve(patches.len() * config.temporal_patch_size as usize);
    // HF folds the division by 255 into mean and deviation, in f32.
    let scaled = |channel: usize| (config.mean[channel] * 255.0, config.std[channel] * 255.0);
    for patch in patches.chunks_exact(3 * square) {
        for (channel, plane) in patch.chunks_exact(square).enumerate() {
            let (mean, std) = scaled(channel);
            let start = values.len();
            values.extend(plane.iter().map(|&sample| (f32::from(sample) - mean) / std));
            for _ in 1..config.temporal_patch_size {
                values.extend_from_within(start..start + square);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patches of 2x2 pixels in merged squares of 2x2: 4 x 8 pixels, each its own number.
    fn small() -> (ProcessorConfig, Grid, Vec<u8>) {
        let config = ProcessorConfig { patch_size: 2, merge_size: 2, ..ProcessorConfig::default() };
        let rgb = (0..32).flat_map(|n| [n, n + 100, n + 200]).collect();
        (config, Grid { rows: 2, columns: 4 }, rgb)
    }

    #[test]
    fn patches_come_block_by_block_and_channel_by_channel() {
        let (config, grid, rgb) = small();
        let mut patches = vec![7];
        append(&rgb, grid, &config, &mut patches);
        assert_eq!(patches.len(), 1 + 8 * 12, "appended");
        let reds: Vec<_> = patches[1..].chunks(12).map(|patch| patch[..4].to_vec()).collect();
        assert_eq!(reds[0], [0, 1, 8, 9], "the first square");
        assert_eq!(reds[1], [2, 3, 10, 11], "its right neighbour in the block");
        assert_eq!(reds[2], [16, 17, 24, 25], "then the block's second row");
        assert_eq!(reds[4], [4, 5, 12, 13], "then the next block");
        assert_eq!(patches[5..9], [100, 101, 108, 109], "green after red");
    }

    #[test]
    fn values_repeat_each_channel_for_both_frames() {
        let (config, grid, rgb) = small();
        let (mut patches, mut values) = (Vec::new(), Vec::new());
        append(&rgb, grid, &config, &mut patches);
        append_normalised(&patches, &config, &mut values);
        assert_eq!(values.len(), 2 * patches.len());
        assert_eq!(values[..4], values[4..8], "two frames of red");
        let (mean, std) = (f64::from(config.mean[1]), f64::from(config.std[1]));
        let expected = (f64::from(patches[4]) / 255.0 - mean) / std;
        assert!((f64::from(values[8]) - expected).abs() < 1e-6, "then green, normalised");
    }
}
