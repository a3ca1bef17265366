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
/// Patches have a few hundred bytes and are merged in small squares; a larger size is a broken file.
const MAX_PATCH_SIZE: u32 = 256;
const MAX_MERGE_SIZE: u32 = 16;
/// Larger limits would overflow what a grid can hold; 2^32 pixels is far beyond any image.
const MAX_PIXELS: u64 = 1 << 32;
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
        let own = Self::in_file(&folder.join(FILE_NAME), Some)?;
        let joint = Self::in_file(&folder.join(JOINT_FILE), |joint: Joint| joint.image_processor)?;
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
        settings: impl FnOnce(T) -> Option<Raw>,
    ) -> Result<Option<Self>, ProcessorError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ProcessorError::Io { path: path.to_owned(), source }),
        };
        let file = serde_json::from_slice(&text)
            .map_err(|source| ProcessorError::Json { path: path.to_owned(), source })?;
        let read = settings(file).map(|raw| Self::from_raw(raw).and_then(Self::checked)).transpose();
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
        let published = Self::PUBLISHED;
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

/// Refuses other figures than the published ones; a file that gives none means the published ones.
fn only(name: &str, given: Option<[f32; 3]>, published: [f32; 3]) -> Result<(), String> {
    match given {
        Some(given) if given.iter().zip(published).any(|(a, b)| (a - b).abs() > SAME_FIGURE) => {
            Err(format!("{name} {given:?} is not supported, only the published {published:?}"))
        }
        _ => Ok(()),
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

    /// As transformers 5.22 saves it, shortened.
    const JOINT: &str = r#"{
        "image_processor": {
            "do_resize": true, "image_processor_type": "Qwen2VLImageProcessor", "merge_size": 2, "patch_size": 14,
            "resample": 3, "rescale_factor": 0.00392156862745098,
            "size": {"longest_edge": 50176, "shortest_edge": 3136}, "temporal_patch_size": 2
        },
        "processor_class": "Qwen2_5_VLProcessor",
        "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor", "min_frames": 4}
    }"#;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).expect("written"));
        folder
    }

    #[test]
    fn what_transformers_5_saves_is_read() {
        let saved = folder(&[(JOINT_FILE, JOINT)]);
        let config = ProcessorConfig::from_dir(saved.path()).expect("valid");
        assert_eq!((config.min_pixels, config.max_pixels), (3136, 50176));
        // Version 4 writes a file of this name too, without the settings.
        let of_version_4 =
            [(FILE_NAME, r#"{"max_pixels": 50176}"#), (JOINT_FILE, r#"{"processor_class": "Q"}"#)];
        assert_eq!(ProcessorConfig::from_dir(folder(&of_version_4).path()).expect("valid"), config);
        let neither = ProcessorConfig::from_dir(folder(&[of_version_4[1]]).path()).expect_err("none");
        assert!(neither.to_string().contains("no preprocessor_config.json, and no processor_config.json"));
    }

    #[test]
    fn two_files_must_agree() {
        let both =
            |own: &str| ProcessorConfig::from_dir(folder(&[(JOINT_FILE, JOINT), (FILE_NAME, own)]).path());
        assert!(both(r#"{"min_pixels": 3136, "max_pixels": 50176}"#).is_ok());
        let error = both(r#"{"max_pixels": 7000}"#).expect_err("7000 is not 50176").to_string();
        let said = "contradict each other: the largest image is 7000 and 50176";
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn both_versions_can_read_what_is_written_again() {
        let saved = folder(&[(JOINT_FILE, JOINT)]);
        let files = files_for_transformers_4(saved.path()).expect("a joint file");
        let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["preprocessor_config.json", "video_preprocessor_config.json"]);
        let written: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let of_version_4 = ProcessorConfig::from_dir(folder(&written).path()).expect("valid");
        assert_eq!(of_version_4, ProcessorConfig::from_dir(saved.path()).expect("valid"));
        assert!(written[0].1.contains("Qwen2_5_VLProcessor"), "{}", written[0].1);
        let whole = folder(&[(JOINT_FILE, JOINT), written[0], written[1]]);
        assert_eq!(files_for_transformers_4(whole.path()).expect("nothing is missing"), []);
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
