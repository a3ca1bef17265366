//! The parameters of a model: what tensors there are, by name and shape.
//!
//! Takes a [`ModelConfig`] and gives the linear layers and every parameter in the order of computation, under
//! the names Hugging Face uses today (`model.visual.*`, `model.language_model.*`, `lm_head`). [`canonical`]
//! translates names of the first checkpoints, so nothing else has to know both.

use crate::config::{ModelConfig, TextConfig, VisionConfig};

/// Which half of the model a tensor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Patch embedding, vision blocks and merger.
    Vision,
    /// Embedding, layers, final norm and head.
    Language,
}

/// What a linear layer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A projection of attention.
    Attention,
    /// A projection of an MLP.
    Mlp,
    /// A layer of the merger.
    Merger,
    /// The output head.
    Head,
}

/// One linear layer: `outputs` from `inputs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Path of the module, `model.language_model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// Width of what goes in.
    pub inputs: usize,
    /// Width of what comes out.
    pub outputs: usize,
    /// Whether it adds a bias.
    pub bias: bool,
    /// Where it stands.
    pub part: Part,
    /// What it does.
    pub role: Role,
}

/// One tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, canonical.
    pub name: String,
    /// Its shape, rows first.
    pub shape: Vec<usize>,
    /// Where it stands.
    pub part: Part,
    /// Set for the weight matrix of an attention or MLP layer: what 4-bit and 8-bit loading quantises.
    pub quantizable: bool,
    /// Set for the weight matrix of every linear layer but the head: what a checkpoint may hold in 4 bits.
    /// Hugging Face quantises the merger too unless it is told not to.
    pub may_be_nf4: bool,
}

/// A tensor's shape as a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Its rows; a vector has one.
    pub rows: usize,
    /// Values of a row.
    pub columns: usize,
}

impl MatrixShape {
    /// Number of elements.
    pub fn elements(self) -> usize {
        self.rows * self.columns
    }
}

impl Parameter {
    /// Its shape as a matrix: the first dimension, and all others together.
    pub(crate) fn matrix(&self) -> MatrixShape {
        match &*self.shape {
            [rows, rest @ ..] if !rest.is_empty() => {
                MatrixShape { rows: *rows, columns: rest.iter().product() }
            }
            vector => MatrixShape { rows: 1, columns: vector.iter().product() },
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Linear {
    /// Whether a LoRA pair can stand beside it.
    pub(crate) fn fits_lora(&self) -> bool {
        self.role != Role::Head
    }

    /// Number of parameters of a LoRA pair of rank `rank` beside it.
    pub(crate) fn lora_parameters(&self, rank: usize) -> usize {
        rank * (self.inputs + self.outputs)
    }
}

/// Every linear layer, in the order of computation.
pub fn linears(config: &ModelConfig) -> Vec<Linear> {
    let mut list = Vec::new();
    for index in 0..config.vision.depth {
        list.extend(vision_block(&config.vision, index));
    }
    list.extend(merger(&config.vision));
    for index in 0..config.text.layers {
        list.extend(text_layer(&config.text, index));
    }
    if !config.tie_word_embeddings {
        list.push(Linear {
            module: "lm_head".into(),
            inputs: config.text.hidden_size,
            outputs: config.text.vocab_size,
            bias: false,
            part: Part::Language,
            role: Role::Head,
        });
    }
    list
}

fn vision_block(vision: &VisionConfig, index: usize) -> Vec<Linear> {
    let (width, inner) = (vision.hidden_size, vision.intermediate_size);
    [
        ("attn.qkv", width, 3 * width, Role::Attention),
        ("attn.proj", width, width, Role::Attention),
        ("mlp.gate_proj", width, inner, Role::Mlp),
        ("mlp.up_proj", width, inner, Role::Mlp),
        ("mlp.down_proj", inner, width, Role::Mlp),
    ]
    .map(|(name, inputs, outputs, role)| Linear {
        module: format!("model.visual.blocks.{index}.{name}"),
        inputs,
        outputs,
        bias: true,
        part: Part::Vision,
        role,
    })
    .into()
}

fn merger(vision: &VisionConfig) -> [Linear; 2] {
    let joined = vision.merger_size();
    [("0", joined), ("2", vision.out_hidden_size)].map(|(position, outputs)| Linear {
        module: format!("model.visual.merger.mlp.{position}"),
        inputs: joined,
        outputs,
        bias: true,
        part: Part::Vision,
        role: Role::Merger,
    })
}

fn text_layer(text: &TextConfig, index: usize) -> Vec<Linear> {
    let (width, kv, inner) = (text.hidden_size, text.kv_size(), text.intermediate_size);
    [
        ("self_attn.q_proj", width, width, true, Role::Attention),
        ("self_attn.k_proj", width, kv, true, Role::Attention),
        ("self_attn.v_proj", width, kv, true, Role::Attention),
        ("self_attn.o_proj", width, width, false, Role::Attention),
        ("mlp.gate_proj", width, inner, false, Role::Mlp),
        ("mlp.up_proj", width, inner, false, Role::Mlp),
        ("mlp.down_proj", inner, width, false, Role::Mlp),
    ]
    .map(|(name, inputs, outputs, bias, role)| Linear {
        module: format!("model.language_model.layers.{index}.{name}"),
        inputs,
        outputs,
        bias,
        part: Part::Language,
        role,
    })
    .into()
}

/// Every parameter, in the order of computation; a tied head is not repeated.
pub fn parameters(config: &ModelConfig) -> Vec<Parameter> {
    let vision = &config.vision;
    let text = &config.text;
    let mut list = vec![Parameter {
        name: "model.visual.patch_embed.proj.weight".into(),
        shape: vec![
            vision.hidden_size,
            vision.channels,
            vision.temporal_patch_size,
            vision.patch_size,
            vision.patch_size,
        ],
        part: Part::Vision,
        quantizable: false,
        may_be_nf4: false,
    }];
    for index in 0..vision.depth {
        for norm in ["norm1", "norm2"] {
            let name = format!("model.visual.blocks.{index}.{norm}.weight");
            list.push(norm_weight(name, vision.hidden_size, Part::Vision));
        }
        list.extend(vision_block(vision, index).iter().flat_map(linear_parameters));
    }
    let merger_norm = "model.visual.merger.ln_q.weight".into();
    list.push(norm_weight(merger_norm, vision.hidden_size, Part::Vision));
    list.extend(merger(vision).iter().flat_map(linear_parameters));
    list.push(table("model.language_model.embed_tokens.weight", text));
    for index in 0..text.layers {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            let name = format!("model.language_model.layers.{index}.{norm}.weight");
            list.push(norm_weight(name, text.hidden_size, Part::Language));
        }
        list.extend(text_layer(text, index).iter().flat_map(linear_parameters));
    }
    let final_norm = "model.language_model.norm.weight".into();
    list.push(norm_weight(final_norm, text.hidden_size, Part::Language));
    if !config.tie_word_embeddings {
        list.push(table("lm_head.weight", text));
    }
    list
}

fn table(name: &str, text: &TextConfig) -> Parameter {
    Parameter {
        name: name.into(),
        shape: vec![text.vocab_size, text.hidden_size],
        part: Part::Language,
        quantizable: false,
        may_be_nf4: false,
    }
}

fn norm_weight(name: String, width: usize, part: Part) -> Parameter {
    Parameter { name, shape: vec![width], part, quantizable: false, may_be_nf4: false }
}

fn linear_parameters(linear: &Linear) -> Vec<Parameter> {
    let weight = Parameter {
        name: format!("{}.weight", linear.module),
        shape: vec![linear.outputs, linear.inputs],
        part: linear.part,
        quantizable: matches!(linear.role, Role::Attention | Role::Mlp),
        may_be_nf4: linear.role != Role::Head,
    };
    let bias = linear.bias.then(|| Parameter {
        name: format!("{}.bias", linear.module),
        shape: vec![linear.outputs],
        part: linear.part,
        quantizable: false,
        may_be_nf4: false,
    });
    std::iter::once(weight).chain(bias).collect()
}

/// The present name of a tensor that may carry an older one (`visual.*`, `model.layers.*`).
pub fn canonical(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("visual.") {
        return format!("model.visual.{rest}");
    }
    match name.strip_prefix("model.") {
        Some(rest) if !rest.starts_with("visual.") && !rest.starts_with("language_model.") => {
            format!("model.language_model.{rest}")
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_ages_meet() {
        for (old, new) in [
            ("visual.blocks.3.attn.qkv.weight", "model.visual.blocks.3.attn.qkv.weight"),
            ("model.layers.0.mlp.up_proj.weight", "model.language_model.layers.0.mlp.up_proj.weight"),
            ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight"),
            ("lm_head.weight", "lm_head.weight"),
        ] {
            assert_eq!(canonical(old), new);
            assert_eq!(canonical(new), new, "a present name must stay");
        }
    }
}
