//! How a model wants its images: `preprocessor_config.json`, or what `processor_config.json` says in its
//! place.
//!
//! Takes the files as transformers 4 and 5 write them (`min_pixels` and `max_pixels`, or `size.shortest_edge`
//! and `size.longest_edge`) and the user's own limits; gives a checked [`ProcessorConfig`]. A configuration
//! that asks for steps not done here is refused, never approximated, and so are two files that contradict
//! each other.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::{fs, io, path::Path, path::PathBuf};

/// Transformers 4 keeps the image processor's settings here, and version 5 still reads them.
const FILE_NAME: &str = "preprocessor_config.json";
/// Transformers 5 keeps the settings of all processors here, each under its own key.
const JOINT_FILE: &str = "processor_config.json";
/// The keys of the joint file, and the files that version 4 has for each.
const PARTS: [(&str, &str); 2] =
    [("image_processor", FILE_NAME), ("video_processor", "video_preprocessor_config.json")];
/// The classes of HF that resize and cut images as is done here; the second is what early files of Qwen2.5-VL say. Others
/// keep settings of the same names, and choose other sizes by them.
const CLASSES: [&str; 2] = ["Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"];
/// What transformers appends to the name of a class for the library that it computes with.
const BACKENDS: [&str; 2] = ["Fast", "Pil"];
/// Patches have a few hundred bytes and are merged in small squares; a larger size is a broken file.
const MAX_PATCH_SIZE: u32 = 256;
const MAX_MERGE_SIZE: u32 = 16;
/// Transformers hands what the tokenizer was made with on to the image processor, so its file can hold limits too.
const TOKENIZER_FILE: &str = "tokenizer_config.json";
/// Larger limits would overflow what a grid can hold; 2^32 pixels is far beyond any image.
const MAX_PIXELS: u64 = 1 << 32;
/// What HF's class goes by where a file names no largest image. Published checkpoints name one.
const CLASS_MAX_PIXELS: u64 = 28 * 28 * 1280;
/// Files give a channel's figures to seven digits or more; what is closer than this is the same figure.
const SAME_FIGURE: f32 = 1e-6;

/// Red, green and blue.
pub(super) const CHANNELS: usize = 3;

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
    /// There is no file, or none with settings of an image processor.
    #[error("{}: no preprocessor_config.json, and no processor_config.json with an image_processor", .0.display())]
    Missing(PathBuf),
    /// Two files say different things, and which one counts would depend on the reader.
    #[error(
        "{}: preprocessor_config.json and processor_config.json contradict each other: {difference}; \
         remove or correct one of them",
        folder.display()
    )]
    Contradiction {
        /// The folder.
        folder: PathBuf,
        /// What they disagree about.
        difference: String,
    },
    /// The tokenizer has another limit than the image processor.
    #[error(
        "{}: tokenizer_config.json says {name} {tokenizer}, and the image processor {processor}: transformers follows the \
         first without a word; correct one of them, or give {name} yourself",
        folder.display()
    )]
    TokenizerLimit {
        /// The folder.
        folder: PathBuf,
        /// Which limit.
        name: &'static str,
        /// What the tokenizer's file says.
        tokenizer: u64,
        /// What the image processor says.
        processor: u64,
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
    fn default() -> Self {
        Self::PUBLISHED
    }
}

/// Limits a user sets over the checkpoint's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PixelLimits {
    /// The fewest pixels of an image.
    pub min: Option<u64>,
    /// The most pixels of an image.
    pub max: Option<u64>,
}

/// `processor_config.json`, as far as it says how images are processed.
#[derive(Deserialize)]
struct Joint {
    image_processor: Option<Raw>,
}

/// The limits of the image processor that a tokenizer was made with.
#[derive(Deserialize, Default)]
struct TokenizerLimits {
    min_pixels: Option<u64>,
    max_pixels: Option<u64>,
}

/// The file as written; what is absent keeps the class's default.
#[derive(Deserialize)]
struct Raw {
    image_processor_type: Option<String>,
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
    /// What the published Qwen2.5-VL checkpoints say.
    pub(super) const PUBLISHED: Self = Self {
        min_pixels: 3136,
        max_pixels: 12_845_056,
        patch_size: 14,
        merge_size: 2,
        temporal_patch_size: 2,
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    };

    /// Reads the settings in a checkpoint's folder, from whichever file has them.
    pub fn from_dir(folder: &Path) -> Result<Self, ProcessorError> {
        Self::read(folder, Figures::Published)
    }

    /// Reads them for a model that is not ours to run, which may normalise its channels by any figures, and applies the
    /// user's own limits.
    pub fn of_any_model(folder: &Path, limits: PixelLimits) -> Result<Self, ProcessorError> {
        let config = Self::read(folder, Figures::Any)?;
        let tokenizer = json::<TokenizerLimits>(&folder.join(TOKENIZER_FILE))?.unwrap_or_default();
        let min = ("min_pixels", limits.min, tokenizer.min_pixels, config.min_pixels);
        let max = ("max_pixels", limits.max, tokenizer.max_pixels, config.max_pixels);
        for (name, of_user, of_tokenizer, processor) in [min, max] {
            if let (None, Some(tokenizer)) = (of_user, of_tokenizer)
                && tokenizer != processor
            {
                let folder = folder.to_owned();
                return Err(ProcessorError::TokenizerLimit { folder, name, tokenizer, processor });
            }
        }
        config.with_limits(limits)
    }

    fn read(folder: &Path, figures: Figures) -> Result<Self, ProcessorError> {
        let own = Self::in_file(&folder.join(FILE_NAME), figures, Some)?;
        let joint = Self::in_file(&folder.join(JOINT_FILE), figures, |joint: Joint| joint.image_processor)?;
        match (own, joint) {
            (Some(own), Some(joint)) if own != joint => Err(ProcessorError::Contradiction {
                folder: folder.to_owned(),
                difference: own.difference(&joint),
            }),
            (Some(config), _) | (None, Some(config)) => Ok(config),
            (None, None) => Err(ProcessorError::Missing(folder.to_owned())),
        }
    }

    /// The settings in a file, if it is there and has them.
    fn in_file<T: for<'a> Deserialize<'a>>(
        path: &Path,
        figures: Figures,
        settings: impl FnOnce(T) -> Option<Raw>,
    ) -> Result<Option<Self>, ProcessorError> {
        let Some(file) = json(path)? else { return Ok(None) };
        let read = settings(file).map(|raw| Self::from_raw(raw, figures).and_then(Self::checked)).transpose();
        read.map_err(|reason| ProcessorError::Value { path: path.to_owned(), reason })
    }

    /// The first setting that two configurations do not share.
    fn difference(&self, other: &Self) -> String {
        let settings = |config: &Self| {
            [
                ("the smallest image", config.min_pixels),
                ("the largest image", config.max_pixels),
                ("patch_size", config.patch_size.into()),
                ("merge_size", config.merge_size.into()),
                ("temporal_patch_size", config.temporal_patch_size.into()),
            ]
        };
        let mut pairs = settings(self).into_iter().zip(settings(other));
        let differs = pairs.find(|((_, own), (_, other))| own != other);
        differs.map_or_else(String::new, |((name, own), (_, other))| format!("{name} is {own} and {other}"))
    }

    /// Replaces the checkpoint's limits by the user's.
    pub fn with_limits(mut self, limits: PixelLimits) -> Result<Self, ProcessorError> {
        self.min_pixels = limits.min.unwrap_or(self.min_pixels);
        self.max_pixels = limits.max.unwrap_or(self.max_pixels);
        self.checked().map_err(ProcessorError::Limits)
    }

    /// The bytes of one compact patch, a byte a sample: 588 for patches of 14 pixels.
    pub fn patch_bytes(&self) -> usize {
        CHANNELS * self.patch_square()
    }

    /// The numbers of one patch in HF's `pixel_values`, which has the still frame several times: 1176 for
    /// patches of 14 pixels in two frames.
    pub fn patch_values(&self) -> usize {
        self.patch_bytes() * self.temporal_patch_size as usize
    }

    /// The samples of one channel of a patch.
    pub(super) fn patch_square(&self) -> usize {
        (self.patch_size as usize).pow(2)
    }

    fn from_raw(raw: Raw, figures: Figures) -> Result<Self, String> {
        if let Some(class) = &raw.image_processor_type {
            let name = BACKENDS.iter().find_map(|backend| class.strip_suffix(backend)).unwrap_or(class);
            if !CLASSES.contains(&name) {
                return Err(format!("images are processed as {} does, not as {class} does", CLASSES[0]));
            }
        }
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
        let published = Self::PUBLISHED;
        let mean = figures.of("image_mean", raw.image_mean, published.mean)?;
        let std = figures.of("image_std", raw.image_std, published.std)?;
        if !std.iter().all(|std| *std > 0.0) {
            return Err(format!("image_std {std:?} must be above 0"));
        }
        Ok(Self {
            // The order in which HF lets one key override another.
            min_pixels: raw
                .min_pixels
                .or(size.shortest_edge)
                .or(size.min_pixels)
                .unwrap_or(published.min_pixels),
            max_pixels: raw.max_pixels.or(size.longest_edge).or(size.max_pixels).unwrap_or(CLASS_MAX_PIXELS),
            patch_size: raw.patch_size.unwrap_or(published.patch_size),
            merge_size: raw.merge_size.unwrap_or(published.merge_size),
            temporal_patch_size: raw.temporal_patch_size.unwrap_or(published.temporal_patch_size),
            mean,
            std,
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

/// What a JSON file says, if it is there.
fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>, ProcessorError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ProcessorError::Io { path: path.to_owned(), source }),
    };
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|source| ProcessorError::Json { path: path.to_owned(), source })
}

/// Which means and deviations of the channels are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figures {
    /// Only the published ones: our model normalises patches with them, wherever they come from.
    Published,
    /// Any.
    Any,
}

impl Figures {
    /// The figures to go by. A file that gives none means the published ones.
    fn of(self, name: &str, given: Option<[f32; 3]>, published: [f32; 3]) -> Result<[f32; 3], String> {
        match given {
            Some(given) if given.iter().zip(published).any(|(a, b)| (a - b).abs() > SAME_FIGURE) => {
                match self {
                    Self::Published => {
                        Err(format!("{name} {given:?} is not supported, only the published {published:?}"))
                    }
                    Self::Any => Ok(given),
                }
            }
            _ => Ok(published),
        }
    }
}

/// The files that transformers 4 looks for and a folder of version 5 lacks, with their text: the parts of its
/// joint file. A folder with these beside its own files can be read by both.
pub fn files_for_transformers_4(folder: &Path) -> Result<Vec<(&'static str, String)>, ProcessorError> {
    let path = folder.join(JOINT_FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ProcessorError::Io { path, source }),
    };
    let joint: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|source| ProcessorError::Json { path, source })?;
    let missing = PARTS.iter().filter(|(_, file)| !folder.join(file).exists());
    let parts = missing.filter_map(|(key, file)| {
        let mut part = joint.get(*key)?.as_object()?.clone();
        if let Some(class) = joint.get("processor_class") {
            part.insert("processor_class".into(), class.clone());
        }
        Some((*file, format!("{:#}\n", Value::Object(part))))
    });
    Ok(parts.collect())
}

#[cfg(test)]
mod tests;
