//! A checkpoint's `preprocessor_config.json`.
//!
//! In comes the file, in its published form (`min_pixels`, `max_pixels`) or the newer one (`size.shortest_edge`,
//! `size.longest_edge`), and the user's own limits; out goes a checked [`ProcessorConfig`]. A configuration that asks
//! for steps not done here is refused, never approximated.

use serde::Deserialize;
use std::{fs, io, path::Path, path::PathBuf};

const FILE_NAME: &str = "preprocessor_config.json";
/// Patches are some thousand bytes and merged in small squares; anything larger is a broken file.
const MAX_PATCH_SIZE: u32 = 256;
const MAX_MERGE_SIZE: u32 = 16;
/// Larger limits would overflow what a grid can hold; 2^32 pixels is far beyond any image.
const MAX_PIXELS: u64 = 1 << 32;
/// Files give a channel's figures to seven digits or more; what is closer than this is the same figure.
const SAME_FIGURE: f32 = 1e-6;

/// Why a processor cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProcessorError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A value in the file that makes no sense, or that is not supported.
    #[error("{}: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which, and what would be right.
        reason: String,
    },
    /// The user's limits make no sense.
    #[error("image processor: {0}")]
    Limits(String),
}

/// How images become patches.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessorConfig {
    /// Smaller images are enlarged to this many pixels.
    pub min_pixels: u64,
    /// Larger images are shrunk to this many pixels.
    pub max_pixels: u64,
    /// Pixels along a side of a patch.
    pub patch_size: u32,
    /// Patches along a side of the square that becomes one token.
    pub merge_size: u32,
    /// How often a still frame is repeated in `pixel_values`.
    pub temporal_patch_size: u32,
    /// Subtracted from each channel, on a scale of 0 to 1.
    pub mean: [f32; 3],
    /// Divides each channel after that.
    pub std: [f32; 3],
}

impl Default for ProcessorConfig {
    /// What the published Qwen2.5-VL checkpoints say.
    fn default() -> Self {
        Self {
            min_pixels: 3136,
            max_pixels: 12_845_056,
            patch_size: 14,
            merge_size: 2,
            temporal_patch_size: 2,
            mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
        }
    }
}

/// Limits a user sets over the checkpoint's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PixelLimits {
    /// `--min-pixels`.
    pub min: Option<u64>,
    /// `--max-pixels`.
    pub max: Option<u64>,
}

/// The file as written; what is absent keeps the class's default.
#[derive(Deserialize)]
struct Raw {
    min_pixels: Option<u64>,
    max_pixels: Option<u64>,
    size: Option<RawSize>,
    patch_size: Option<u32>,
    merge_size: Option<u32>,
    temporal_patch_size: Option<u32>,
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    resample: Option<u32>,
    rescale_factor: Option<f64>,
    do_resize: Option<bool>,
    do_rescale: Option<bool>,
    do_normalize: Option<bool>,
    do_convert_rgb: Option<bool>,
}

#[derive(Deserialize, Default)]
struct RawSize {
    shortest_edge: Option<u64>,
    longest_edge: Option<u64>,
    min_pixels: Option<u64>,
    max_pixels: Option<u64>,
}

impl ProcessorConfig {
    /// Reads `preprocessor_config.json` in a checkpoint's folder.
    pub fn from_dir(folder: &Path) -> Result<Self, ProcessorError> {
        let path = folder.join(FILE_NAME);
        let text = fs::read(&path).map_err(|source| ProcessorError::Io { path: path.clone(), source })?;
        let raw: Raw = serde_json::from_slice(&text)
            .map_err(|source| ProcessorError::Json { path: path.clone(), source })?;
        let read = Self::from_raw(raw).and_then(Self::checked);
        read.map_err(|reason| ProcessorError::Value { path, reason })
    }

    /// Replaces the checkpoint's limits by the user's.
    pub fn with_limits(mut self, limits: PixelLimits) -> Result<Self, ProcessorError> {
        self.min_pixels = limits.min.unwrap_or(self.min_pixels);
        self.max_pixels = limits.max.unwrap_or(self.max_pixels);
        self.checked().map_err(ProcessorError::Limits)
    }

    /// The bytes of one compact patch: 588 for patches of 14 pixels.
    pub fn patch_bytes(&self) -> usize {
        3 * self.patch_size as usize * self.patch_size as usize
    }

    fn from_raw(raw: Raw) -> Result<Self, String> {
        let off = |step: Option<bool>| step == Some(false);
        if off(raw.do_resize) || off(raw.do_rescale) || off(raw.do_normalize) || off(raw.do_convert_rgb) {
            return Err("do_resize, do_rescale, do_normalize and do_convert_rgb must all be true".into());
        }
        const BICUBIC: u32 = 3;
        if raw.resample.is_some_and(|filter| filter != BICUBIC) {
            return Err("only bicubic resizing (resample 3) is supported".into());
        }
        if raw.rescale_factor.is_some_and(|factor| (factor * 255.0 - 1.0).abs() > 1e-9) {
            return Err("only a rescale_factor of 1/255 is supported".into());
        }
        let size = raw.size.unwrap_or_default();
        let published = Self::default();
        // The model normalises patches with the published figures, wherever they come from.
        only("image_mean", raw.image_mean, published.mean)?;
        only("image_std", raw.image_std, published.std)?;
        Ok(Self {
            // The order in which HF lets one key override another.
            min_pixels: raw
                .min_pixels
                .or(size.shortest_edge)
                .or(size.min_pixels)
                .unwrap_or(published.min_pixels),
            max_pixels: raw
                .max_pixels
                .or(size.longest_edge)
                .or(size.max_pixels)
                .unwrap_or(published.max_pixels),
            patch_size: raw.patch_size.unwrap_or(published.patch_size),
            merge_size: raw.merge_size.unwrap_or(published.merge_size),
            temporal_patch_size: raw.temporal_patch_size.unwrap_or(published.temporal_patch_size),
            ..published
        })
    }

    fn checked(self) -> Result<Self, String> {
        if !(1..=MAX_PATCH_SIZE).contains(&self.patch_size) {
            return Err(format!("patch_size {} is not in 1..={MAX_PATCH_SIZE}", self.patch_size));
        }
        for (name, size) in
            [("merge_size", self.merge_size), ("temporal_patch_size", self.temporal_patch_size)]
        {
            if !(1..=MAX_MERGE_SIZE).contains(&size) {
                return Err(format!("{name} {size} is not in 1..={MAX_MERGE_SIZE}"));
            }
        }
        if self.min_pixels > self.max_pixels || self.max_pixels > MAX_PIXELS {
            let limits = format!("min {} and max {}", self.min_pixels, self.max_pixels);
            return Err(format!("pixel limits {limits}: min must not exceed max, nor max {MAX_PIXELS}"));
        }
        Ok(self)
    }
}

/// Refuses figures of the channels other than these; what the file does not say is these.
fn only(name: &str, given: Option<[f32; 3]>, published: [f32; 3]) -> Result<(), String> {
    match given {
        Some(given) if given.iter().zip(published).any(|(a, b)| (a - b).abs() > SAME_FIGURE) => {
            Err(format!("{name} {given:?} is not supported, only the published {published:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ProcessorConfig, ProcessorError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(FILE_NAME), json).expect("written");
        ProcessorConfig::from_dir(folder.path())
    }

    #[test]
    fn both_spellings_of_the_limits_are_read() {
        let published = read(r#"{"min_pixels": 3136, "max_pixels": 50176}"#).expect("valid");
        let newer = read(r#"{"size": {"shortest_edge": 3136, "longest_edge": 50176}}"#).expect("valid");
        assert_eq!((published.min_pixels, published.max_pixels), (3136, 50176));
        assert_eq!(published, newer);
        let both = read(r#"{"max_pixels": 7000, "size": {"longest_edge": 50176}}"#).expect("valid");
        assert_eq!(both.max_pixels, 7000, "the direct key wins, as in HF");
    }

    #[test]
    fn the_user_overrides_the_checkpoint() {
        let limits = PixelLimits { min: None, max: Some(100_352) };
        let config = ProcessorConfig::default().with_limits(limits).expect("valid");
        assert_eq!((config.min_pixels, config.max_pixels), (3136, 100_352));
        let crossed = PixelLimits { min: Some(10), max: Some(5) };
        assert!(ProcessorConfig::default().with_limits(crossed).is_err());
    }

    #[test]
    fn other_figures_of_the_channels_are_refused_by_name() {
        let published = r#"{"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#;
        assert_eq!(read(published).expect("valid"), ProcessorConfig::default());
        for (field, figures) in
            [("image_mean", "[0.5, 0.5, 0.5]"), ("image_std", "[0.26862954, 0.26130258, 0.5]")]
        {
            let error = read(&format!(r#"{{"{field}": {figures}}}"#)).expect_err(field).to_string();
            assert!(
                error.contains(&format!("{FILE_NAME}: {field} [")) && error.contains("0.5] is not"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for json in [
            r#"{"do_resize": false}"#,
            r#"{"resample": 2}"#,
            r#"{"rescale_factor": 1.0}"#,
            r#"{"patch_size": 0}"#,
            r#"{"merge_size": 0}"#,
            r#"{"image_std": [1.0, 0.0, 1.0]}"#,
            r#"{"min_pixels": -1}"#,
            "[]",
            "",
        ] {
            assert!(read(json).is_err(), "{json}");
        }
        assert!(ProcessorConfig::from_dir(Path::new("/nonexistent")).is_err());
    }
}
