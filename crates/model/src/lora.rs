//! Which layers get a LoRA pair, and what a fresh pair holds.
//!
//! Takes the user's settings and a [`ModelConfig`], and gives the chosen [`Linear`] layers and an [`Adapter`]
//! with PEFT's initial values. A pattern that chooses nothing, or a layer that cannot carry a pair, is
//! refused: a run that silently trains less than was asked is worse than none.

use crate::config::ModelConfig;
use crate::parameters::{Linear, MatrixShape, linears};
use crate::random::Stream;
use regex::Regex;

/// Ranks beyond this are full fine-tuning in disguise; keeps sizes far from overflow.
const LARGEST_RANK: usize = 4096;

/// Why LoRA cannot be set up as asked.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// The rank is zero or absurd.
    #[error("LoRA rank {0} is not between 1 and {LARGEST_RANK}")]
    Rank(usize),
    /// Alpha or dropout is not usable.
    #[error("LoRA {name} {value} is not usable; it must be {rule}")]
    Number {
        /// Which setting.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it must be.
        rule: &'static str,
    },
    /// The pattern is not a regular expression.
    #[error("target_modules `{}` is not a regular expression: {source}", as_written(pattern))]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Where it fails.
        source: regex::Error,
    },
    /// The pattern matches nothing.
    #[error("target_modules `{}` matches no layer: {}", as_written(pattern), advice(pattern))]
    Nothing {
        /// The pattern.
        pattern: String,
    },
    /// The pattern matches a layer that cannot carry a pair.
    #[error(
        "target_modules `{}` matches `{module}`, but only the linear layers of attention, MLP and merger can carry LoRA",
        as_written(pattern)
    )]
    Unfit {
        /// The pattern.
        pattern: String,
        /// The layer.
        module: String,
    },
    /// No group was chosen.
    #[error("nothing to train: choose vision or language layers, and attention or MLP modules")]
    NoGroup,
}

/// Groups of layers to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerGroups {
    /// The vision tower.
    pub vision: bool,
    /// The language model.
    pub language: bool,
    /// Projections of attention.
    pub attention: bool,
    /// Projections of the MLPs.
    pub mlp: bool,
}

impl Default for LayerGroups {
    fn default() -> Self {
        Self { vision: true, language: true, attention: true, mlp: true }
    }
}

/// What PEFT calls every linear layer but the head.
const ALL_LINEAR: &str = "all-linear";

/// The regular expression over whole module paths that a user's choice means, as PEFT takes it: `all-linear`,
/// the last parts of paths with commas between them, or an expression. PEFT reads what comes out, too.
pub fn target_pattern(text: &str) -> String {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte))
    };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if text.trim().eq_ignore_ascii_case(ALL_LINEAR) {
        [language(&[ATTENTION, MLP]), vision(&[VISION_ATTENTION, MLP]), MERGER.to_owned()].join("|")
    } else if names.iter().all(|name| is_name(name)) {
        pattern_of_names(&names)
    } else {
        text.to_owned()
    }
}

/// Matches modules whose paths end in one of these names.
pub(crate) fn pattern_of_names(names: &[impl AsRef<str>]) -> String {
    let names: Vec<String> = names.iter().map(|name| regex::escape(name.as_ref())).collect();
    format!(r"(.*\.)?({})", names.join("|"))
}

/// Names as a user wrote them, where [`pattern_of_names`] made the pattern; any other pattern as it is.
fn as_written(pattern: &str) -> String {
    let names = pattern.strip_prefix(r"(.*\.)?(").and_then(|rest| rest.strip_suffix(')'));
    names.map_or_else(|| pattern.to_owned(), |names| names.replace('|', ",").replace('\\', ""))
}

/// What may have been meant by a pattern that matches nothing.
fn advice(pattern: &str) -> String {
    let letters = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphabetic).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    if letters(&as_written(pattern)) == letters(ALL_LINEAR) {
        return format!("did you mean `{ALL_LINEAR}`?");
    }
    format!(
        "give names such as `q_proj,v_proj`, the word `{ALL_LINEAR}`, or a pattern that matches whole paths such as \
         `model.language_model.layers.0.self_attn.q_proj`"
    )
}

const ATTENTION: &str = r"self_attn\.(q_proj|k_proj|v_proj|o_proj)";
const VISION_ATTENTION: &str = r"attn\.(qkv|proj)";
const MLP: &str = r"mlp\.(gate_proj|up_proj|down_proj)";
const MERGER: &str = r"model\.visual\.merger\.mlp\.(0|2)";

fn language(parts: &[&str]) -> String {
    within(r"model\.language_model\.layers\.\d+\.", parts)
}

fn vision(parts: &[&str]) -> String {
    within(r"model\.visual\.blocks\.\d+\.", parts)
}

fn within(place: &str, parts: &[&str]) -> String {
    match parts {
        [one] => format!("{place}{one}"),
        several => format!("{place}({})", several.join("|")),
    }
}

impl LayerGroups {
    /// The regular expression over whole module paths that chooses these groups; PEFT reads the same one.
    pub fn pattern(self) -> Result<String, LoraError> {
        let parts = |attention| {
            let chosen = [(self.attention, attention), (self.mlp, MLP)].into_iter();
            chosen.filter_map(|(chosen, part)| chosen.then_some(part)).collect::<Vec<_>>()
        };
        let towers = [
            (self.language, language as fn(&[&str]) -> String, parts(ATTENTION)),
            (self.vision, vision, parts(VISION_ATTENTION)),
        ];
        let patterns: Vec<String> = towers
            .into_iter()
            .filter(|(chosen, _, parts)| *chosen && !parts.is_empty())
            .map(|(_, tower, parts)| tower(&parts))
            .collect();
        if patterns.is_empty() { Err(LoraError::NoGroup) } else { Ok(patterns.join("|")) }
    }
}

/// What PEFT's `LoraConfig` holds, as far as this model uses it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSettings {
    /// Width of the pairs.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// Share of inputs dropped while training.
    pub dropout: f32,
    /// Divide alpha by the root of the rank instead of the rank.
    pub rslora: bool,
    /// Regular expression over whole module paths.
    pub target_modules: String,
}

impl LoraSettings {
    /// What the product of the pair is multiplied with.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Refuses numbers that make no adapter.
    pub fn check(&self) -> Result<(), LoraError> {
        if !(1..=LARGEST_RANK).contains(&self.rank) {
            return Err(LoraError::Rank(self.rank));
        }
        let number = |name, value, holds, rule| match holds {
            true => Ok(()),
            false => Err(LoraError::Number { name, value, rule }),
        };
        number("alpha", self.alpha, self.alpha.is_finite() && self.alpha > 0.0, "positive")?;
        number("dropout", self.dropout, (0.0..1.0).contains(&self.dropout), "0 or more and below 1")
    }

    /// The layers these settings choose, in the order of computation.
    pub fn targets(&self, config: &ModelConfig) -> Result<Vec<Linear>, LoraError> {
        let pattern = &self.target_modules;
        let regex = Regex::new(&format!("^(?:{pattern})$"))
            .map_err(|source| LoraError::Pattern { pattern: pattern.clone(), source })?;
        let unfit = |module: &str| LoraError::Unfit { pattern: pattern.clone(), module: module.to_owned() };
        // Not linear layers, yet a pattern such as `.*proj` means them too, and PEFT would give them pairs.
        let others = ["model.visual.patch_embed.proj", "model.language_model.embed_tokens", "lm_head"];
        if let Some(module) = others.into_iter().find(|module| regex.is_match(module)) {
            return Err(unfit(module));
        }
        let chosen: Vec<Linear> =
            linears(config).into_iter().filter(|linear| regex.is_match(&linear.module)).collect();
        if let Some(linear) = chosen.iter().find(|linear| !linear.fits_lora()) {
            return Err(unfit(&linear.module));
        }
        if chosen.is_empty() {
            return Err(LoraError::Nothing { pattern: pattern.clone() });
        }
        Ok(chosen)
    }

    /// Shapes of the two matrices beside a layer: A, then B.
    pub(crate) fn pair_shapes(&self, inputs: usize, outputs: usize) -> [MatrixShape; 2] {
        let rank = self.rank;
        [MatrixShape { rows: rank, columns: inputs }, MatrixShape { rows: outputs, columns: rank }]
    }

    /// Number of trainable parameters.
    pub fn parameters(&self, config: &ModelConfig) -> Result<usize, LoraError> {
        Ok(self.targets(config)?.iter().map(|linear| linear.lora_parameters(self.rank)).sum())
    }
}

/// The pair beside one linear layer: `out += scale * (input . A^T) . B^T`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraPair {
    /// Path of the layer.
    pub module: String,
    /// Width of the layer's input.
    pub inputs: usize,
    /// Width of the layer's output.
    pub outputs: usize,
    /// `rank x inputs`.
    pub a: Vec<f32>,
    /// `outputs x rank`.
    pub b: Vec<f32>,
}

/// All pairs of a model, in the order of computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// How it was made.
    pub settings: LoraSettings,
    /// One pair a chosen layer.
    pub pairs: Vec<LoraPair>,
}

impl Adapter {
    /// A fresh adapter as PEFT makes it: A uniform within one over the root of its inputs (Kaiming with a =
    /// sqrt 5), B zero.
    pub fn fresh(config: &ModelConfig, settings: LoraSettings, seed: u64) -> Result<Self, LoraError> {
        settings.check()?;
        let rank = settings.rank;
        let pair = |linear: Linear| {
            let stream = Stream::new(seed, &format!("{}.lora_A", linear.module));
            let bound = 1.0 / (linear.inputs as f32).sqrt();
            LoraPair {
                a: (0..(rank * linear.inputs) as u64).map(|index| bound * stream.uniform(index)).collect(),
                b: vec![0.0; linear.outputs * rank],
                module: linear.module,
                inputs: linear.inputs,
                outputs: linear.outputs,
            }
        };
        let pairs = settings.targets(config)?.into_iter().map(pair).collect();
        Ok(Self { settings, pairs })
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.pairs.iter().map(|pair| pair.a.len() + pair.b.len()).sum()
    }

    /// The pair beside the layer `module`, if it has one.
    pub fn pair(&self, module: &str) -> Option<&LoraPair> {
        self.pairs.iter().find(|pair| pair.module == module)
    }
}
