//! The memory of a process that answers, before it is started.
//!
//! Takes a model folder, perhaps an adapter, and what to lay out, and gives every part in bytes. Buffers come from
//! the same functions that lay them out, so the plan and the process cannot disagree about them.

use garden_data::{PixelLimits, ProcessorConfig, ProcessorError};
use garden_model::{
    Adapter, AdapterError, CheckpointError, ConfigError, DecoderRoom, LoraError, LoraSettings, ModelConfig,
    Precision, trained_shapes,
};
use garden_train::Source;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Answers at once, where nothing else is said.
const SEQUENCES: usize = 8;
/// Tokens of questions and answers that are held, where nothing else is said: the most, and the fewest.
const TOKENS: std::ops::RangeInclusive<usize> = 2048..=16384;
/// The cache of keys and values takes no more than this, or than a quarter of the weights.
const CACHE: usize = 32 << 20;
/// The largest image in pixels: 1280 tokens of 28 x 28, as the model's authors advise.
const MAX_PIXELS: u64 = 1280 * 28 * 28;
/// Tokens of images that are kept.
const IMAGE_TOKENS: usize = 4096;
/// Questions that wait.
const WAITING: usize = 32;
/// The longest answer of a question that does not say.
const ANSWER: usize = 1024;
/// Bytes of a vocabulary's token in the table that grammars need: 3.6 MB for 151,936 tokens, and what making it
/// leaves behind.
const TABLE: usize = 64;

/// Bytes of a pixel of the largest image on its way in: in base64 twice, decoded, resized, cut into patches.
const PIXEL: usize = 16;
/// The longest question in bytes, its images in base64.
pub const LARGEST_QUESTION: usize = 32 << 20;
/// How often a question is held at the same moment, in quarters: its line and what was read of that, the question
/// before it, and the encoded images of that.
const QUESTION_QUARTERS: usize = 4 + 4 + 4 + 3;
/// Bytes that decoding an image may take: 22 million pixels of a PNG without alpha.
const DECODING: u64 = 64 << 20;
/// Bytes of images that may wait, cut into patches.
const WAITING_IMAGES: usize = 16 << 20;
/// Memory beyond its plan that a process may ask for: what the allocator holds in reserve, and stacks.
const RESERVE: u64 = 32 << 20;
/// The same for every thread.
const THREAD: u64 = 4 << 20;

/// What a host lays out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSettings {
    /// Answers at once.
    pub sequences: usize,
    /// Tokens of all questions and answers, and of what is kept of earlier ones.
    pub tokens: usize,
    /// Images with more pixels are made smaller.
    pub max_pixels: u64,
    /// Images whose decoding takes more bytes are refused.
    pub decoding: u64,
    /// Bytes of images that wait, cut into patches; more are refused.
    pub waiting_images: usize,
    /// Tokens of images that are kept.
    pub image_tokens: usize,
    /// Questions that wait; more are refused.
    pub waiting: usize,
    /// The longest answer in tokens, where a question does not say.
    pub answer: usize,
}

impl HostSettings {
    /// What suits a model of this size: small ones stay small.
    pub fn suiting(config: &ModelConfig, weights: usize, processor: &ProcessorConfig) -> Self {
        let text = &config.text;
        let token =
            2 * text.layers * text.kv_heads * (text.hidden_size / text.heads.max(1)) * size_of::<f32>();
        let affordable = CACHE.max(weights / 4) / token.max(1);
        let tokens = affordable.clamp(*TOKENS.start(), *TOKENS.end()).min(text.max_positions.max(64));
        Self {
            sequences: SEQUENCES,
            tokens,
            max_pixels: processor.max_pixels.min(MAX_PIXELS).max(processor.min_pixels),
            decoding: DECODING,
            waiting_images: WAITING_IMAGES,
            image_tokens: IMAGE_TOKENS.min(tokens),
            waiting: WAITING,
            answer: ANSWER,
        }
    }

    /// What the decoder lays out for a model.
    pub fn room(&self, config: &ModelConfig) -> DecoderRoom {
        let patch = (config.vision.patch_size * config.vision.patch_size) as u64;
        let unit = config.vision.merge_unit();
        let patches = usize::try_from(self.max_pixels / patch.max(1)).unwrap_or(usize::MAX);
        DecoderRoom {
            sequences: self.sequences,
            tokens: self.tokens,
            chunk: DecoderRoom::CHUNK.min(self.tokens),
            patches: patches.next_multiple_of(unit).max(unit),
            image_tokens: self.image_tokens,
        }
    }

    /// Bytes that the largest questions may take beyond what usual ones do.
    fn spare(&self) -> u64 {
        (LARGEST_QUESTION / 4 * QUESTION_QUARTERS + self.waiting_images) as u64 + self.decoding
    }

    /// The limits on images.
    pub fn pixels(&self) -> PixelLimits {
        PixelLimits { min: None, max: Some(self.max_pixels) }
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlanFailed {
    #[error("the model: {0}")]
    Config(#[from] ConfigError),
    #[error("the model: {0}")]
    Weights(#[from] CheckpointError),
    #[error("the model's processor: {0}")]
    Processor(#[from] ProcessorError),
    #[error("the adapter: {0}")]
    Adapter(#[from] AdapterError),
    #[error("the adapter: {0}")]
    Lora(#[from] LoraError),
}

/// The memory of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPlan {
    /// What it lays out.
    pub settings: HostSettings,
    /// Bytes of every part.
    pub parts: Vec<(String, usize)>,
}

impl HostPlan {
    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The bytes that the process may ask the system for, which is what has to be reserved for it: a plan is exact
    /// to a twentieth, and the largest questions take more than usual ones.
    pub fn limit(&self) -> u64 {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
        let total = self.total() as u64;
        total + total / 20 + self.settings.spare() + RESERVE + THREAD * threads
    }
}

/// Plans a host of the model in a folder; without settings those that suit the model.
pub fn plan(
    model: &Path,
    adapter: Option<&Path>,
    precision: Precision,
    settings: Option<HostSettings>,
) -> Result<HostPlan, PlanFailed> {
    // The tokenizer stays on disk: whoever plans need not become as large as the host.
    let config = ModelConfig::read(model)?;
    let source = Source::in_folder(&config, model)?;
    let adapter = adapter.map(Adapter::read_settings).transpose()?;
    let weights = source.stored.clone().loaded(precision).bytes();
    let settings = match settings {
        Some(settings) => settings,
        None => HostSettings::suiting(&config, weights, &ProcessorConfig::from_dir(model)?),
    };
    parts(&config, source.process_bytes(), adapter.as_ref(), weights, settings)
}

fn parts(
    config: &ModelConfig,
    process: usize,
    adapter: Option<&LoraSettings>,
    weights: usize,
    settings: HostSettings,
) -> Result<HostPlan, PlanFailed> {
    let [arena, cache, images] = settings.room(config).bytes(config, adapter)?;
    let values = match adapter {
        Some(adapter) => {
            trained_shapes(config, Some(adapter))?.into_iter().map(|shape| shape.elements()).sum()
        }
        None => 0usize,
    };
    let parts = [
        ("process", process),
        ("weights", weights),
        ("adapter", values * size_of::<f32>()),
        ("keys and values", cache),
        ("work", arena),
        ("images", images),
        ("tokens", TABLE * config.text.vocab_size),
        ("question", PIXEL * settings.max_pixels as usize),
    ];
    let parts = parts.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    Ok(HostPlan { settings, parts })
}
