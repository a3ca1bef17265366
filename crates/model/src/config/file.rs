//! The keys of `config.json`, and the rules between them.
//!
//! Takes the text of the file and gives a [`ModelConfig`] or the key at fault. Savers of different ages write
//! the same thing under different keys, so everything optional is an `Option` here and is settled once.

use super::{ConfigError, ModelConfig, Quantization, TextConfig, VisionConfig};
use crate::parameters::parameters;
use serde::Deserialize;
use std::path::Path;

/// Larger than any model we know by a factor of sixteen.
const LARGEST_SIZE: usize = 1 << 22;
/// Layers are listed one by one before a file is opened; the largest model has 80.
const MOST_LAYERS: usize = 1024;
/// Fifteen times the largest model; keeps what is computed from sizes, bytes of a run too, far from overflow.
const MOST_PARAMETERS: usize = 1 << 40;
/// Channels, patch sides and merge sides multiply with each other; real ones are 2 to 16.
const LARGEST_SIDE: usize = 256;
/// What the published checkpoints use for every norm of the vision tower; HF has it fixed in its code.
const VISION_NORM_EPSILON: f32 = 1e-6;
/// Special tokens of the published models, for files that do not name them.
const VISION_START_TOKEN: u32 = 151_652;
const VISION_END_TOKEN: u32 = 151_653;
const IMAGE_TOKEN: u32 = 151_655;
const VIDEO_TOKEN: u32 = 151_656;

pub(super) fn parse(text: &str, path: &Path) -> Result<ModelConfig, ConfigError> {
    let json = |source| ConfigError::Json { path: path.to_owned(), source };
    let root: RawRoot = serde_json::from_str(text).map_err(json)?;
    let language: RawText = match &root.text_config {
        Some(nested) => nested.clone(),
        None => serde_json::from_str(text).map_err(json)?,
    };
    root.resolve(language).map_err(|Fault { key, problem }| ConfigError::Value {
        path: path.to_owned(),
        key,
        problem,
    })
}

#[derive(Deserialize)]
struct RawRoot {
    model_type: Option<String>,
    text_config: Option<RawText>,
    vision_config: RawVision,
    tie_word_embeddings: Option<bool>,
    image_token_id: Option<u32>,
    video_token_id: Option<u32>,
    vision_start_token_id: Option<u32>,
    vision_end_token_id: Option<u32>,
    eos_token_id: Option<OneOrMany>,
    dtype: Option<String>,
    torch_dtype: Option<String>,
    quantization_config: Option<Quantization>,
}

#[derive(Deserialize, Clone)]
struct RawText {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    use_sliding_window: Option<bool>,
    tie_word_embeddings: Option<bool>,
    initializer_range: Option<f32>,
    eos_token_id: Option<OneOrMany>,
    rope_theta: Option<f32>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
}

#[derive(Deserialize, Clone)]
struct RawRope {
    rope_type: Option<String>,
    r#type: Option<String>,
    rope_theta: Option<f32>,
    mrope_section: Option<Vec<usize>>,
}

impl RawRope {
    /// Savers of different ages write the kind under one key, the other, or both.
    fn kind(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.r#type.as_deref())
    }
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Deserialize)]
struct RawVision {
    depth: usize,
    hidden_size: usize,
    num_heads: usize,
    intermediate_size: usize,
    out_hidden_size: usize,
    hidden_act: Option<String>,
    in_channels: Option<usize>,
    in_chans: Option<usize>,
    patch_size: Option<usize>,
    temporal_patch_size: Option<usize>,
    spatial_merge_size: Option<usize>,
    window_size: Option<usize>,
    fullatt_block_indexes: Option<Vec<usize>>,
    rope_parameters: Option<RawRope>,
}

struct Fault {
    key: &'static str,
    problem: String,
}

fn require(holds: bool, key: &'static str, problem: impl Into<String>) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault { key, problem: problem.into() }) }
}

fn size(key: &'static str, value: usize) -> Result<usize, Fault> {
    within(key, value, LARGEST_SIZE)
}

fn side(key: &'static str, value: usize) -> Result<usize, Fault> {
    within(key, value, LARGEST_SIDE)
}

fn within(key: &'static str, value: usize, largest: usize) -> Result<usize, Fault> {
    require((1..=largest).contains(&value), key, format!("is {value}; it must be 1 to {largest}"))?;
    Ok(value)
}

fn silu_only(key: &'static str, activation: &Option<String>) -> Result<(), Fault> {
    let name = activation.as_deref().unwrap_or("silu");
    require(name == "silu", key, format!("is `{name}`; only `silu` is implemented"))
}

impl RawRoot {
    fn resolve(self, text: RawText) -> Result<ModelConfig, Fault> {
        let model_type = self.model_type.as_deref().unwrap_or("qwen2_5_vl");
        require(
            model_type == "qwen2_5_vl",
            "model_type",
            format!("is `{model_type}`; only `qwen2_5_vl` is implemented"),
        )?;
        if let Some(quantization) = &self.quantization_config {
            quantization.check()?;
        }
        let tie = self.tie_word_embeddings.unwrap_or(false) || text.tie_word_embeddings.unwrap_or(false);
        let eos_token_ids = match self.eos_token_id.or(text.eos_token_id.clone()) {
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
            None => Vec::new(),
        };
        let config = ModelConfig {
            text: text.resolve()?,
            vision: self.vision_config.resolve()?,
            tie_word_embeddings: tie,
            image_token_id: self.image_token_id.unwrap_or(IMAGE_TOKEN),
            video_token_id: self.video_token_id.unwrap_or(VIDEO_TOKEN),
            vision_start_token_id: self.vision_start_token_id.unwrap_or(VISION_START_TOKEN),
            vision_end_token_id: self.vision_end_token_id.unwrap_or(VISION_END_TOKEN),
            eos_token_ids,
            dtype: self.dtype.or(self.torch_dtype),
            quantization: self.quantization_config,
        };
        require(
            config.vision.out_hidden_size == config.text.hidden_size,
            "vision_config.out_hidden_size",
            format!(
                "is {}, but the language model is {} wide",
                config.vision.out_hidden_size, config.text.hidden_size
            ),
        )?;
        require(
            (config.image_token_id as usize) < config.text.vocab_size,
            "image_token_id",
            format!("is {}, beyond the vocabulary of {}", config.image_token_id, config.text.vocab_size),
        )?;
        require(
            has_at_most(&config, MOST_PARAMETERS),
            "hidden_size",
            format!("and the other sizes make more than {MOST_PARAMETERS} parameters; is one of them wrong?"),
        )?;
        Ok(config)
    }
}

fn has_at_most(config: &ModelConfig, most: usize) -> bool {
    let counts = parameters(config).into_iter().map(|parameter| {
        parameter.shape.iter().try_fold(1usize, |elements, side| elements.checked_mul(*side))
    });
    let total = counts.into_iter().try_fold(0usize, |total, elements| total.checked_add(elements?));
    total.is_some_and(|total| total <= most)
}

impl Quantization {
    fn check(&self) -> Result<(), Fault> {
        require(
            self.quant_method == "bitsandbytes",
            "quantization_config.quant_method",
            format!("is `{}`; only bitsandbytes checkpoints are read", self.quant_method),
        )?;
        require(
            !self.load_in_8bit,
            "quantization_config.load_in_8bit",
            "is set; 8-bit checkpoints are not read, use the 16-bit one",
        )?;
        let kind = self.bnb_4bit_quant_type.as_deref().unwrap_or("fp4");
        require(
            !self.load_in_4bit || kind == "nf4",
            "quantization_config.bnb_4bit_quant_type",
            format!("is `{kind}`; only `nf4` is implemented"),
        )
    }
}

impl RawText {
    fn resolve(self) -> Result<TextConfig, Fault> {
        silu_only("hidden_act", &self.hidden_act)?;
        require(
            !self.use_sliding_window.unwrap_or(false),
            "use_sliding_window",
            "is set; sliding windows are not implemented",
        )?;
        let rope = self.rope_scaling.or(self.rope_parameters);
        let kind = rope.as_ref().and_then(RawRope::kind).unwrap_or("default");
        require(
            kind == "default" || kind == "mrope",
            "rope_type",
            format!("is `{kind}`; only unscaled rotary positions are implemented"),
        )?;
        let theta = rope.as_ref().and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(1e6);
        let section = rope.and_then(|rope| rope.mrope_section).unwrap_or(vec![16, 24, 24]);
        let mrope_section: [usize; 3] = section.try_into().map_err(|section: Vec<usize>| Fault {
            key: "mrope_section",
            problem: format!("has {} parts; it must have 3", section.len()),
        })?;
        let heads = size("num_attention_heads", self.num_attention_heads)?;
        let config = TextConfig {
            hidden_size: size("hidden_size", self.hidden_size)?,
            layers: within("num_hidden_layers", self.num_hidden_layers, MOST_LAYERS)?,
            heads,
            kv_heads: size("num_key_value_heads", self.num_key_value_heads.unwrap_or(heads))?,
            intermediate_size: size("intermediate_size", self.intermediate_size)?,
            vocab_size: size("vocab_size", self.vocab_size)?,
            max_positions: size("max_position_embeddings", self.max_position_embeddings.unwrap_or(32768))?,
            norm_epsilon: self.rms_norm_eps.unwrap_or(1e-5),
            rope_theta: theta,
            mrope_section,
            initializer_range: self.initializer_range.unwrap_or(0.02),
        };
        config.check()?;
        Ok(config)
    }
}

impl TextConfig {
    fn check(&self) -> Result<(), Fault> {
        let Self { hidden_size, heads, kv_heads, mrope_section, .. } = self;
        require(
            hidden_size % heads == 0,
            "num_attention_heads",
            format!("is {heads}, which does not divide the width {hidden_size}"),
        )?;
        require(
            heads % kv_heads == 0,
            "num_key_value_heads",
            format!("is {kv_heads}, which does not divide the {heads} heads"),
        )?;
        let head = self.head_size();
        require(
            head.is_multiple_of(2),
            "num_attention_heads",
            format!("gives heads {head} wide; they must be even"),
        )?;
        let shared = mrope_section.iter().fold(0usize, |sum, part| sum.saturating_add(*part));
        require(
            shared == head / 2,
            "mrope_section",
            format!("{mrope_section:?} adds up to {shared}; half a head is {}", head / 2),
        )?;
        require(positive(self.norm_epsilon), "rms_norm_eps", format!("is {}", self.norm_epsilon))?;
        require(positive(self.rope_theta), "rope_theta", format!("is {}", self.rope_theta))
    }
}

fn positive(value: f32) -> bool {
    value.is_finite() && value > 0.0
}

impl RawVision {
    fn resolve(self) -> Result<VisionConfig, Fault> {
        silu_only("vision_config.hidden_act", &self.hidden_act)?;
        let rope = self.rope_parameters;
        let kind = rope.as_ref().and_then(RawRope::kind).unwrap_or("axial");
        require(
            kind == "axial" || kind == "default",
            "vision_config.rope_type",
            format!("is `{kind}`; only the axial rotary is implemented"),
        )?;
        let config = VisionConfig {
            depth: within("vision_config.depth", self.depth, MOST_LAYERS)?,
            hidden_size: size("vision_config.hidden_size", self.hidden_size)?,
            heads: size("vision_config.num_heads", self.num_heads)?,
            intermediate_size: size("vision_config.intermediate_size", self.intermediate_size)?,
            out_hidden_size: size("vision_config.out_hidden_size", self.out_hidden_size)?,
            channels: side("vision_config.in_channels", self.in_channels.or(self.in_chans).unwrap_or(3))?,
            patch_size: side("vision_config.patch_size", self.patch_size.unwrap_or(14))?,
            temporal_patch_size: side(
                "vision_config.temporal_patch_size",
                self.temporal_patch_size.unwrap_or(2),
            )?,
            merge_size: side("vision_config.spatial_merge_size", self.spatial_merge_size.unwrap_or(2))?,
            window_size: size("vision_config.window_size", self.window_size.unwrap_or(112))?,
            full_attention_blocks: self.fullatt_block_indexes.unwrap_or(vec![7, 15, 23, 31]),
            norm_epsilon: VISION_NORM_EPSILON,
            rope_theta: rope.and_then(|rope| rope.rope_theta).unwrap_or(10000.0),
        };
        config.check()?;
        Ok(config)
    }
}

impl VisionConfig {
    fn check(&self) -> Result<(), Fault> {
        let Self { hidden_size, heads, window_size, .. } = self;
        require(
            hidden_size % heads == 0,
            "vision_config.num_heads",
            format!("is {heads}, which does not divide the width {hidden_size}"),
        )?;
        let head = self.head_size();
        require(
            head.is_multiple_of(4),
            "vision_config.num_heads",
            format!("gives heads {head} wide; rows and columns need a multiple of 4"),
        )?;
        require(
            self.merged_window() > 0,
            "vision_config.window_size",
            format!("is {window_size}, less than one merged patch"),
        )?;
        require(positive(self.rope_theta), "vision_config.rope_theta", format!("is {}", self.rope_theta))
    }
}
