//! The shapes that new models can have.
//!
//! Takes a preset's name and gives its `config.json`. `tiny`, `small` and `medium` are for tests and
//! measurements, the others have the published shapes, so that what is learnt with them holds for the real
//! models.

use crate::config::{ConfigError, ModelConfig};
use crate::tensor_file::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// A shape by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// About 1.6 million parameters: tests and demos.
    Tiny,
    /// About 51 million parameters: quick measurements.
    Small,
    /// About 439 million parameters: measurements.
    Medium,
    /// The published 3B shape.
    B3,
    /// The published 7B shape.
    B7,
    /// The published 32B shape.
    B32,
    /// The published 72B shape.
    B72,
}

/// The sizes in which presets differ.
struct Sizes {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    inner: usize,
    vocabulary: usize,
    positions: usize,
    tied: bool,
    vision: VisionSizes,
}

struct VisionSizes {
    depth: usize,
    hidden: usize,
    heads: usize,
    inner: usize,
    full: &'static [usize],
}

const PUBLISHED_VISION: VisionSizes =
    VisionSizes { depth: 32, hidden: 1280, heads: 16, inner: 3420, full: &[7, 15, 23, 31] };

/// The 32B and 72B models widened the vision MLP from 3420 to a multiple of 128.
const LARGE_VISION_INNER: usize = 3456;

impl Preset {
    /// All presets.
    pub const ALL: [Self; 7] =
        [Self::Tiny, Self::Small, Self::Medium, Self::B3, Self::B7, Self::B32, Self::B72];

    /// The preset of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The name users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::B3 => "3b",
            Self::B7 => "7b",
            Self::B32 => "32b",
            Self::B72 => "72b",
        }
    }

    /// The published shapes come in the published type, the others in f32, in which they are compared.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::Tiny | Self::Small | Self::Medium => Dtype::F32,
            Self::B3 | Self::B7 | Self::B32 | Self::B72 => Dtype::BF16,
        }
    }

    /// Rows of the embedding table.
    pub(crate) fn vocabulary(self) -> usize {
        self.sizes().vocabulary
    }

    fn sizes(self) -> Sizes {
        match self {
            Self::Tiny => Sizes {
                hidden: 128,
                layers: 4,
                heads: 4,
                kv_heads: 2,
                inner: 352,
                vocabulary: 4096,
                positions: 32768,
                tied: true,
                vision: VisionSizes { depth: 4, hidden: 64, heads: 4, inner: 171, full: &[1, 3] },
            },
            Self::Small => Sizes {
                hidden: 512,
                layers: 8,
                heads: 8,
                kv_heads: 2,
                inner: 1408,
                vocabulary: 32000,
                positions: 32768,
                tied: true,
                vision: VisionSizes { depth: 8, hidden: 320, heads: 4, inner: 856, full: &[3, 7] },
            },
            Self::Medium => Sizes {
                hidden: 1024,
                layers: 12,
                heads: 8,
                kv_heads: 2,
                inner: 5504,
                vocabulary: 151936,
                positions: 32768,
                tied: true,
                vision: VisionSizes { depth: 8, hidden: 640, heads: 8, inner: 1710, full: &[3, 7] },
            },
            Self::B3 => Sizes {
                hidden: 2048,
                layers: 36,
                heads: 16,
                kv_heads: 2,
                inner: 11008,
                vocabulary: 151936,
                positions: 128000,
                tied: true,
                vision: PUBLISHED_VISION,
            },
            Self::B7 => Sizes {
                hidden: 3584,
                layers: 28,
                heads: 28,
                kv_heads: 4,
                inner: 18944,
                vocabulary: 152064,
                positions: 128000,
                tied: false,
                vision: PUBLISHED_VISION,
            },
            Self::B32 => Sizes {
                hidden: 5120,
                layers: 64,
                heads: 40,
                kv_heads: 8,
                inner: 27648,
                vocabulary: 152064,
                positions: 128000,
                tied: false,
                vision: VisionSizes { inner: LARGE_VISION_INNER, ..PUBLISHED_VISION },
            },
            Self::B72 => Sizes {
                hidden: 8192,
                layers: 80,
                heads: 64,
                kv_heads: 8,
                inner: 29568,
                vocabulary: 152064,
                positions: 128000,
                tied: false,
                vision: VisionSizes { inner: LARGE_VISION_INNER, ..PUBLISHED_VISION },
            },
        }
    }

    /// Its sizes, without a tokenizer: for plans.
    pub fn model_config(self) -> Result<ModelConfig, ConfigError> {
        // The special tokens are the last of the vocabulary, as in a model that `init` makes.
        let last = self.vocabulary().checked_sub(1);
        ModelConfig::parse(&self.config(&|_| last).to_string(), Path::new(self.name()))
    }

    /// `config.json`, with the ids that `id` gives to the special tokens.
    pub(super) fn config(self, id: &dyn Fn(&str) -> Option<usize>) -> Value {
        let Sizes { hidden, layers, heads, kv_heads, inner, vocabulary, positions, tied, vision } =
            self.sizes();
        let head = hidden / heads;
        let dtype = if self.dtype() == Dtype::BF16 { "bfloat16" } else { "float32" };
        let text = json!({
            "model_type": "qwen2_5_vl_text", "hidden_act": "silu", "hidden_size": hidden,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "intermediate_size": inner, "vocab_size": vocabulary, "max_position_embeddings": positions,
            "rms_norm_eps": 1e-6, "initializer_range": super::DEVIATION, "attention_dropout": 0.0,
            "use_cache": true, "use_sliding_window": false, "tie_word_embeddings": tied, "dtype": dtype,
            "bos_token_id": id("<|endoftext|>"), "eos_token_id": id("<|im_end|>"),
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e6,
                "mrope_section": [head / 8, head * 3 / 16, head * 3 / 16]
            }
        });
        let VisionSizes { depth, hidden: width, heads, inner, full } = vision;
        let vision = json!({
            "model_type": "qwen2_5_vl_vision", "hidden_act": "silu", "depth": depth, "hidden_size": width,
            "num_heads": heads, "intermediate_size": inner, "out_hidden_size": hidden, "in_channels": 3,
            "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 112,
            "tokens_per_second": 2, "fullatt_block_indexes": full
        });
        json!({
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
            "text_config": text, "vision_config": vision, "tie_word_embeddings": tied, "dtype": dtype,
            "image_token_id": id("<|image_pad|>"), "video_token_id": id("<|video_pad|>"),
            "vision_start_token_id": id("<|vision_start|>"),
            "vision_end_token_id": id("<|vision_end|>")
        })
    }
}
