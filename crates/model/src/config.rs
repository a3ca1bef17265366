//! `config.json`: every size of the model.
//!
//! Takes the file as Hugging Face writes it, nested (`text_config`) or flat as the first checkpoints had it,
//! and gives a [`ModelConfig`] in which all sizes divide as the model needs. What the engine cannot compute
//! (another activation, a scaled rotary, sliding windows) is refused here, by key.

mod file;

use crate::held::Held;
use crate::parameters::Parameter;
use garden_engine::StoredAs;
use serde::Deserialize;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

/// A config.json is a few kilobytes; anything beyond this is not one.
const LARGEST_FILE: u64 = 1 << 20;

/// Mean of the red, green and blue samples of an image, on a scale of 0 to 1, as all published models have
/// it. Patches reach the model as bytes, and the model normalises them itself.
pub const CHANNEL_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
/// Their standard deviation.
pub const CHANNEL_DEVIATION: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

/// Why a `config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is missing or unreadable.
    #[error("{}: cannot read the model's configuration: {source}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not JSON of the expected form.
    #[error("{}: not a model configuration: {source}", path.display())]
    Json {
        /// The file read.
        path: PathBuf,
        /// Line and column of the fault.
        source: serde_json::Error,
    },
    /// A key holds a value that this model cannot have.
    #[error("{}: `{key}` {problem}", path.display())]
    Value {
        /// The file read.
        path: PathBuf,
        /// The key at fault.
        key: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
}

/// The sizes of one model, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The language model.
    pub text: TextConfig,
    /// The vision tower and its merger.
    pub vision: VisionConfig,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// The token that stands for one merged patch of an image.
    pub image_token_id: u32,
    /// The token that stands for one merged patch of a film.
    pub video_token_id: u32,
    /// The token before an image.
    pub vision_start_token_id: u32,
    /// The token after an image.
    pub vision_end_token_id: u32,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// The dtype the checkpoint says it was saved in (`bfloat16`, ...), if it does.
    pub dtype: Option<String>,
    /// How the checkpoint says its weights are quantised, if they are.
    pub quantization: Option<Quantization>,
}

/// The language model's sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// How the half head is shared by time, row and column.
    pub mrope_section: [usize; 3],
    /// Standard deviation of a fresh model's weights.
    pub initializer_range: f32,
}

/// The vision tower's sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Number of blocks.
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of heads.
    pub heads: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Width of what the merger gives to the language model.
    pub out_hidden_size: usize,
    /// Colour channels.
    pub channels: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Frames a patch spans.
    pub temporal_patch_size: usize,
    /// Side of the square of patches that becomes one token.
    pub merge_size: usize,
    /// Side of an attention window in pixels.
    pub window_size: usize,
    /// Blocks that see the whole image instead of a window.
    pub full_attention_blocks: Vec<usize>,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
}

/// bitsandbytes' own words on how a checkpoint was quantised.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Quantization {
    /// Must be `bitsandbytes`.
    pub quant_method: String,
    /// Whether linear layers hold 4-bit codes.
    #[serde(default)]
    pub load_in_4bit: bool,
    /// Whether linear layers hold 8-bit codes.
    #[serde(default)]
    pub load_in_8bit: bool,
    /// `nf4` or `fp4`.
    #[serde(default)]
    pub bnb_4bit_quant_type: Option<String>,
    /// Whether the scales are quantised too.
    #[serde(default)]
    pub bnb_4bit_use_double_quant: bool,
}

impl ModelConfig {
    /// How `config.json` says the weights lie in the files; f32 where it says nothing. It does not say
    /// whether the merger is in 4 bits too, so that is taken as in 16: never less than there will be.
    pub fn stored(&self) -> Held {
        let others = match self.dtype.as_deref() {
            Some("bfloat16") => StoredAs::Bf16,
            Some("float16") => StoredAs::F16,
            _ => StoredAs::F32,
        };
        let four_bits = self.quantization.as_ref().is_some_and(|quantization| quantization.load_in_4bit);
        let of = |parameter: &Parameter| match four_bits && parameter.quantizable {
            true => Ok::<_, Infallible>(StoredAs::Nf4),
            false => Ok(others),
        };
        let Ok(held) = Held::new(self, of);
        held
    }

    /// Reads `config.json` of the folder `dir`.
    pub fn read(dir: &Path) -> Result<Self, ConfigError> {
        Self::read_file(&dir.join("config.json"))
    }

    /// Reads a `config.json` by its own path.
    pub fn read_file(path: &Path) -> Result<Self, ConfigError> {
        let at = |source| ConfigError::Read { path: path.to_owned(), source };
        let length = std::fs::metadata(path).map_err(at)?.len();
        if length > LARGEST_FILE {
            return Err(at(std::io::Error::other(format!("{length} bytes is no configuration"))));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(at)?, path)
    }

    /// Reads the text of a `config.json`; `path` only names it in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        file::parse(text, path)
    }
}

impl TextConfig {
    /// Width of one head.
    pub(crate) fn head_size(&self) -> usize {
        self.hidden_size / self.heads
    }

    /// Width of all keys (or values) of a token.
    pub(crate) fn kv_size(&self) -> usize {
        self.kv_heads * self.head_size()
    }
}

impl VisionConfig {
    /// Width of one head.
    pub(crate) fn head_size(&self) -> usize {
        self.hidden_size / self.heads
    }

    /// Values of one patch as the processor lays them out.
    pub(crate) fn patch_values(&self) -> usize {
        self.temporal_patch_size * self.patch_bytes()
    }

    /// Bytes of one patch in a batch: a still image has one frame, whatever a patch spans.
    pub fn patch_bytes(&self) -> usize {
        self.channels * self.patch_size * self.patch_size
    }

    /// Patches that become one token.
    pub fn merge_unit(&self) -> usize {
        self.merge_size * self.merge_size
    }

    /// Width of the merger's inner layer: the patches of one token side by side.
    pub(crate) fn merger_size(&self) -> usize {
        self.hidden_size * self.merge_unit()
    }

    /// Side of an attention window in merged tokens.
    pub(crate) fn merged_window(&self) -> usize {
        self.window_size / self.merge_size / self.patch_size
    }

    /// Whether block `index` sees the whole image.
    pub(crate) fn is_full_attention(&self, index: usize) -> bool {
        self.full_attention_blocks.contains(&index)
    }
}
