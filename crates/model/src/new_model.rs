//! Makes a new model with random weights, in a folder that Hugging Face loads as it is.
//!
//! Takes a [`Preset`] and a seed, and writes a folder with configuration, weights, tokenizer, processor
//! settings and chat template. It is made under another name and renamed when it is whole, and the same seed
//! gives the same bytes.

mod preset;
mod tokenizer;
mod weights;

pub use preset::Preset;

use crate::config::{CHANNEL_DEVIATION, CHANNEL_MEAN, ConfigError, ModelConfig, VisionConfig};
use crate::parameters::parameters;
use crate::tensor_file::TensorFileError;
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokenizer::Tokenizer;

/// Deviation of every drawn weight, Qwen's `initializer_range`.
const DEVIATION: f32 = 0.02;
const CHAT_TEMPLATE: &str = include_str!("new_model/chat_template.jinja");

/// Why a model could not be made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The folder is taken.
    #[error("{}: is there already and is not an empty folder", .0.display())]
    Exists(PathBuf),
    /// The disk is too small.
    #[error("{}: {needed} bytes are needed, the disk has {free} free", path.display())]
    DiskFull {
        /// The folder that was to be.
        path: PathBuf,
        /// Bytes of the weights.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The weights cannot be written.
    #[error(transparent)]
    Weights(#[from] TensorFileError),
    /// The preset's own configuration does not hold together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewModel {
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of the weights.
    pub bytes: u64,
}

/// What a model will be, before it is made.
pub struct Plan {
    preset: Preset,
    tokenizer: Tokenizer,
    config: ModelConfig,
    last_norm: f32,
}

impl Plan {
    /// Prepares `preset`: trains its tokenizer and settles its configuration.
    pub fn new(preset: Preset) -> Result<Self, InitError> {
        let tokenizer = Tokenizer::train(preset.vocabulary());
        let text = preset.config(&|name| tokenizer.id(name)).to_string();
        let config = ModelConfig::parse(&text, Path::new("config.json"))?;
        Ok(Self { preset, tokenizer, config, last_norm: 1.0 })
    }

    /// Begins with these weights in the norm before the head, instead of ones. They bound how sure a model
    /// can be while its head stays as it is: the largest logit is their size times the lengths of a normed
    /// row and of a row of the head. With ones, a `tiny` model gives a token at most 0.3 %, and no loss below
    /// 5.7, however right it is; trained models have larger ones.
    pub fn with_last_norm(mut self, weights: f32) -> Self {
        self.last_norm = weights;
        self
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What will be made.
    pub fn size(&self) -> NewModel {
        let elements = parameters(&self.config).iter().map(|parameter| parameter.elements() as u64).sum();
        NewModel { parameters: elements, bytes: weights::total_bytes(&self.config, self.preset.dtype()) }
    }

    /// Makes the folder `output`; `progress` is told the bytes of weights written so far.
    pub fn write(
        &self,
        output: &Path,
        seed: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<NewModel, InitError> {
        let io_error = |source| InitError::Io { path: output.to_owned(), source };
        if output.exists() && !is_empty_folder(output) {
            return Err(InitError::Exists(output.to_owned()));
        }
        let parent =
            output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        garden_files::create_folder(parent).map_err(io_error)?;
        self.check_space(output, parent)?;
        let partial = tempfile::Builder::new()
            .prefix(".init-")
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(io_error)?;
        let start = weights::Start { seed, last_norm: self.last_norm };
        weights::write(partial.path(), &self.config, self.preset.dtype(), start, &mut progress)?;
        self.write_small_files(partial.path())?;
        garden_files::rename(partial.path(), output).map_err(io_error)?;
        // Renamed away: nothing is left for the guard to remove.
        let _ = partial.keep();
        Ok(self.size())
    }

    fn check_space(&self, output: &Path, parent: &Path) -> Result<(), InitError> {
        let needed = self.size().bytes;
        let Ok(disk) = rustix::fs::statvfs(parent) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        match free > needed {
            true => Ok(()),
            false => Err(InitError::DiskFull { path: output.to_owned(), needed, free }),
        }
    }

    fn write_small_files(&self, dir: &Path) -> Result<(), InitError> {
        let [end_of_text, end_of_turn] = ["<|endoftext|>", "<|im_end|>"].map(|name| self.tokenizer.id(name));
        let generation = json!({
            "bos_token_id": end_of_text, "pad_token_id": end_of_text, "eos_token_id": [end_of_turn, end_of_text]
        });
        let pretty = |value: Value| format!("{value:#}\n");
        for (name, text) in [
            ("config.json", pretty(self.preset.config(&|name| self.tokenizer.id(name)))),
            ("generation_config.json", pretty(generation)),
            ("preprocessor_config.json", pretty(preprocessor(&self.config.vision))),
            ("tokenizer.json", self.tokenizer.to_json().to_string()),
            ("tokenizer_config.json", pretty(self.tokenizer.to_config_json())),
            ("chat_template.jinja", CHAT_TEMPLATE.to_owned()),
        ] {
            let path = dir.join(name);
            garden_files::write(&path, text.as_bytes()).map_err(|source| InitError::Io { path, source })?;
        }
        Ok(())
    }
}

fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// `preprocessor_config.json` with the published limits.
fn preprocessor(vision: &VisionConfig) -> Value {
    json!({
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size, "merge_size": vision.merge_size,
        "image_mean": CHANNEL_MEAN, "image_std": CHANNEL_DEVIATION
    })
}
