//! The size that an image is resized to, and how many patches and tokens that makes.
//!
//! Takes a width, a height and the limits, and gives a [`Grid`] of patches whose sides are multiples of the
//! merge size. The arithmetic is HF's `smart_resize`: the same f64 operations in the same order, so it rounds
//! alike.

use super::ProcessorConfig;
use crate::image::ImageError;

/// The longest side may be this many times the shortest: HF's limit.
const MAX_ASPECT_RATIO: u32 = 200;

/// The patches of one image: HF's `image_grid_thw` is `[1, rows, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Rows of patches.
    pub rows: u32,
    /// Patches in a row.
    pub columns: u32,
}

impl Grid {
    /// How many patches.
    pub fn patches(self) -> usize {
        self.rows as usize * self.columns as usize
    }

    /// Width and height of the resized image, in patches of this many pixels a side.
    pub(crate) fn pixels(self, patch_size: u32) -> (u32, u32) {
        (self.columns * patch_size, self.rows * patch_size)
    }

    /// How many tokens stand for the image when `merge_size` squared patches become one.
    pub(crate) fn tokens(self, merge_size: u32) -> usize {
        self.patches() / (merge_size as usize * merge_size as usize)
    }
}

impl ProcessorConfig {
    /// The grid of an upright image of this size.
    pub fn grid(&self, width: u32, height: u32) -> Result<Grid, ImageError> {
        let (wide, high) = self.resized(width, height)?;
        Ok(Grid { rows: high / self.patch_size, columns: wide / self.patch_size })
    }

    /// The width and height an upright image is resized to.
    fn resized(&self, width: u32, height: u32) -> Result<(u32, u32), ImageError> {
        let (longest, shortest) = (width.max(height), width.min(height));
        if u64::from(longest) > u64::from(shortest) * u64::from(MAX_ASPECT_RATIO) {
            return Err(ImageError::AspectRatio { width, height, limit: MAX_ASPECT_RATIO });
        }
        let factor = f64::from(self.patch_size * self.merge_size);
        let (w, h) = (f64::from(width), f64::from(height));
        let (min, max) = (self.min_pixels as f64, self.max_pixels as f64);
        let nearest = |side: f64| (side / factor).round_ties_even() * factor;
        let (mut wide, mut high) = (nearest(w), nearest(h));
        if wide * high > max {
            let shrink = (h * w / max).sqrt();
            let below = |side: f64| ((side / shrink / factor).floor() * factor).max(factor);
            (wide, high) = (below(w), below(h));
        } else if wide * high < min {
            let grow = (min / (h * w)).sqrt();
            let above = |side: f64| (side * grow / factor).ceil() * factor;
            (wide, high) = (above(w), above(h));
        }
        if wide < factor || high < factor {
            return Err(ImageError::VanishingSide { width, height });
        }
        Ok((wide as u32, high as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(width: u32, height: u32, min_pixels: u64, max_pixels: u64) -> Result<(u32, u32), ImageError> {
        ProcessorConfig { min_pixels, max_pixels, ..ProcessorConfig::default() }.resized(width, height)
    }

    #[test]
    fn ties_round_to_even() {
        assert_eq!(resized(70, 98, 0, 1 << 30), Ok((56, 112)), "2.5 becomes 2, 3.5 becomes 4");
    }

    #[test]
    fn limits_hold_in_both_directions() {
        let max = 1280 * 28 * 28;
        assert_eq!(resized(3000, 2048, 3136, max), Ok((1204, 812)));
        assert_eq!(resized(10, 10, 3136, max), Ok((56, 56)));
        assert_eq!(resized(200, 1, 3136, max), Ok((812, 28)), "a thin line still gets a row of patches");
    }

    #[test]
    fn degenerate_sizes_are_refused_by_name() {
        let refused = ImageError::AspectRatio { width: 1024, height: 1, limit: 200 };
        assert_eq!(resized(1024, 1, 3136, 1 << 30), Err(refused));
        let vanishing = ImageError::VanishingSide { width: 100, height: 2 };
        assert_eq!(resized(100, 2, 0, 1 << 30), Err(vanishing));
    }
}
