//! Upright pixels to the patches of Qwen2-VL's image processor.
//!
//! In come encoded images and the limits of a checkpoint's `preprocessor_config.json`; out go a [`Grid`] and its
//! patches, either compact (one byte a sample, the still frame once) or as HF's normalised f32 `pixel_values`. Given
//! equal decoded pixels, both equal HF's default (torchvision) processor bit for bit.

mod config;
mod patches;
mod resize;
mod size;

pub use config::{PixelLimits, ProcessorConfig, ProcessorError};
pub use size::Grid;

use crate::image::{self, DecodeLimits, ImageError, Pixels};
use resize::Resizer;
use std::path::Path;

/// Turns images into patches as one checkpoint wants them; shared by all workers.
#[derive(Debug, Clone)]
pub struct Processor {
    config: ProcessorConfig,
    limits: DecodeLimits,
}

/// The buffers one worker reuses from image to image.
#[derive(Default)]
pub struct Workspace {
    decoder: image::Decoder,
    resizer: Resizer,
}

impl Workspace {
    /// The bytes that the buffers hold.
    pub fn buffer_bytes(&self) -> usize {
        self.decoder.buffer_bytes() + self.resizer.buffer_bytes()
    }
}

impl Processor {
    /// A processor for a configuration that was checked.
    pub fn new(config: ProcessorConfig, limits: DecodeLimits) -> Self {
        Self { config, limits }
    }

    /// Reads `preprocessor_config.json` in a checkpoint's folder, then applies the user's own limits.
    pub fn from_dir(
        folder: &Path,
        pixels: PixelLimits,
        limits: DecodeLimits,
    ) -> Result<Self, ProcessorError> {
        Ok(Self::new(ProcessorConfig::from_dir(folder)?.with_limits(pixels)?, limits))
    }

    /// What the processor goes by.
    pub fn config(&self) -> &ProcessorConfig {
        &self.config
    }

    /// The grid an encoded image will have, from its header alone.
    pub fn grid_of(&self, encoded: &[u8]) -> Result<Grid, ImageError> {
        let (width, height) = image::dimensions(encoded, self.limits)?;
        self.config.grid(width, height)
    }

    /// Decodes, resizes and cuts an encoded image; its compact patches are appended to `patches`.
    pub fn append_patches(
        &self,
        encoded: &[u8],
        work: &mut Workspace,
        patches: &mut Vec<u8>,
    ) -> Result<Grid, ImageError> {
        let pixels = work.decoder.decode(encoded, self.limits)?;
        self.append_pixels(pixels, &mut work.resizer, patches)
    }

    /// Resizes and cuts decoded pixels; the compact patches are appended to `patches`.
    fn append_pixels(
        &self,
        pixels: &Pixels,
        resizer: &mut Resizer,
        patches: &mut Vec<u8>,
    ) -> Result<Grid, ImageError> {
        let grid = self.config.grid(pixels.width, pixels.height)?;
        let side = self.config.patch_size;
        let resized = resizer.resize(pixels, grid.columns * side, grid.rows * side);
        patches::append(resized, grid, &self.config, patches);
        Ok(grid)
    }

    /// Expands compact patches to HF's `pixel_values`, appended to `values`.
    pub fn append_pixel_values(&self, patches: &[u8], values: &mut Vec<f32>) {
        patches::append_normalised(patches, &self.config, values);
    }
}
