//! The model's weights in memory, layer by layer.
//!
//! Takes a checked [`Checkpoint`] and the [`Precision`] asked for, and gives the engine's weights. What is
//! kept as it is stored stays in the mapped file; what is converted goes through a buffer of one tensor, so
//! the peak is the model as it will be plus one tensor. A NaN or an infinity anywhere is refused by name.

use crate::checkpoint::{Checkpoint, CheckpointError, Located, bnb};
use crate::config::ModelConfig;
use crate::tensor_file::{Dtype, TensorEntry, TensorFile, TensorFileError, finite_as_f32, first_not_finite};
use garden_engine::{Elements, StoredAs, Weight};

/// Bytes read from a file at a time: far more than a disk's block, far less than a tensor.
const CHUNK: usize = 1 << 20;

/// How the matrices of attention and MLP are to be held; the others (embedding, merger, head) stay as stored
/// in 4 and 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As the checkpoint has them.
    AsStored,
    /// All matrices as f32: for training full weights.
    F32,
    /// f32 becomes bf16; what has 16 bits or fewer stays.
    Bits16,
    /// 8-bit codes with a scale a row.
    Bits8,
    /// 4-bit NormalFloat with nested scales, as bitsandbytes makes it.
    Bits4,
}

/// A linear layer: a matrix and perhaps a bias.
#[derive(Debug, Clone)]
pub struct LinearWeights {
    /// `outputs x inputs`.
    pub weight: Weight,
    /// One value an output.
    pub bias: Option<Vec<f32>>,
}

/// The three layers of a gated MLP.
#[derive(Debug, Clone)]
pub struct MlpWeights {
    /// What is passed through SiLU.
    pub gate: LinearWeights,
    /// What the gate is multiplied with.
    pub up: LinearWeights,
    /// Back to the residual stream.
    pub down: LinearWeights,
}

/// One block of the vision tower.
#[derive(Debug, Clone)]
pub struct VisionBlockWeights {
    /// Norm before attention.
    pub norm1: Vec<f32>,
    /// Queries, keys and values in one matrix.
    pub qkv: LinearWeights,
    /// Output of attention.
    pub proj: LinearWeights,
    /// Norm before the MLP.
    pub norm2: Vec<f32>,
    /// The MLP.
    pub mlp: MlpWeights,
}

/// The vision tower and the merger behind it.
#[derive(Debug, Clone)]
pub struct VisionWeights {
    /// The patch convolution as a matrix: `hidden x (channel, frame, row, column)`.
    pub patch_embed: Weight,
    /// The blocks in order.
    pub blocks: Vec<VisionBlockWeights>,
    /// Norm before the merger.
    pub merger_norm: Vec<f32>,
    /// The merger's two layers.
    pub merger: [LinearWeights; 2],
}

/// One layer of the language model.
#[derive(Debug, Clone)]
pub struct TextLayerWeights {
    /// Norm before attention.
    pub input_norm: Vec<f32>,
    /// Queries.
    pub q: LinearWeights,
    /// Keys.
    pub k: LinearWeights,
    /// Values.
    pub v: LinearWeights,
    /// Output of attention.
    pub o: LinearWeights,
    /// Norm before the MLP.
    pub post_norm: Vec<f32>,
    /// The MLP.
    pub mlp: MlpWeights,
}

/// The language model.
#[derive(Debug, Clone)]
pub struct TextWeights {
    /// One row a token.
    pub embedding: Weight,
    /// The layers in order.
    pub layers: Vec<TextLayerWeights>,
    /// The norm before the head.
    pub norm: Vec<f32>,
    /// The head; `None` where it is the embedding.
    pub head: Option<Weight>,
}

/// A whole model.
#[derive(Debug, Clone)]
pub struct ModelWeights {
    /// Vision tower and merger.
    pub vision: VisionWeights,
    /// Language model.
    pub text: TextWeights,
}

impl ModelWeights {
    /// Loads every weight of `checkpoint`; `progress` is told the share done after each layer.
    pub fn load(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        precision: Precision,
        mut progress: impl FnMut(f32),
    ) -> Result<Self, CheckpointError> {
        checkpoint.check(config)?;
        let layers = (config.vision.depth + config.text.layers) as f32;
        let mut done = 0.0;
        let mut step = || {
            done += 1.0;
            progress(done / layers);
        };
        let mut loader = Loader { checkpoint, precision, values: Vec::new() };
        let vision = loader.vision(config, &mut step)?;
        let text = loader.text(config, &mut step)?;
        Ok(Self { vision, text })
    }
}

/// One tensor as a matrix of `shape`, in the type it is stored in, its bytes still in the mapped file: for
/// merging and export, which go through a checkpoint tensor by tensor.
pub fn read_matrix(
    checkpoint: &Checkpoint,
    name: &str,
    shape: [usize; 2],
) -> Result<Weight, TensorFileError> {
    Loader { checkpoint, precision: Precision::AsStored, values: Vec::new() }.of_linear(
        name,
        shape,
        Precision::AsStored,
    )
}

/// Reads tensors one after another through one buffer.
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    precision: Precision,
    values: Vec<f32>,
}

impl Loader<'_> {
    fn vision(
        &mut self,
        config: &ModelConfig,
        step: &mut impl FnMut(),
    ) -> Result<VisionWeights, TensorFileError> {
        let vision = &config.vision;
        let (width, inner, joined) = (vision.hidden_size, vision.intermediate_size, vision.merger_size());
        let patch_embed =
            self.kept("model.visual.patch_embed.proj.weight", [width, vision.patch_values()])?;
        let mut blocks = Vec::with_capacity(vision.depth);
        for index in 0..vision.depth {
            let at = |name: &str| format!("model.visual.blocks.{index}.{name}");
            blocks.push(VisionBlockWeights {
                norm1: self.vector(&at("norm1.weight"))?,
                qkv: self.linear(&at("attn.qkv"), [3 * width, width], true)?,
                proj: self.linear(&at("attn.proj"), [width, width], true)?,
                norm2: self.vector(&at("norm2.weight"))?,
                mlp: self.mlp(&at("mlp"), width, inner, true)?,
            });
            step();
        }
        Ok(VisionWeights {
            patch_embed,
            blocks,
            merger_norm: self.vector("model.visual.merger.ln_q.weight")?,
            merger: [
                self.merger_layer(0, [joined, joined])?,
                self.merger_layer(2, [vision.out_hidden_size, joined])?,
            ],
        })
    }

    fn text(
        &mut self,
        config: &ModelConfig,
        step: &mut impl FnMut(),
    ) -> Result<TextWeights, TensorFileError> {
        let text = &config.text;
        let (width, kv) = (text.hidden_size, text.kv_size());
        let table = [text.vocab_size, width];
        let embedding = self.kept("model.language_model.embed_tokens.weight", table)?;
        let mut layers = Vec::with_capacity(text.layers);
        for index in 0..text.layers {
            let at = |name: &str| format!("model.language_model.layers.{index}.{name}");
            layers.push(TextLayerWeights {
                input_norm: self.vector(&at("input_layernorm.weight"))?,
                q: self.linear(&at("self_attn.q_proj"), [width, width], true)?,
                k: self.linear(&at("self_attn.k_proj"), [kv, width], true)?,
                v: self.linear(&at("self_attn.v_proj"), [kv, width], true)?,
                o: self.linear(&at("self_attn.o_proj"), [width, width], false)?,
                post_norm: self.vector(&at("post_attention_layernorm.weight"))?,
                mlp: self.mlp(&at("mlp"), width, text.intermediate_size, false)?,
            });
            step();
        }
        let norm = self.vector("model.language_model.norm.weight")?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(self.kept("lm_head.weight", table)?),
        };
        Ok(TextWeights { embedding, layers, norm, head })
    }

    fn mlp(
        &mut self,
        at: &str,
        width: usize,
        inner: usize,
        bias: bool,
    ) -> Result<MlpWeights, TensorFileError> {
        Ok(MlpWeights {
            gate: self.linear(&format!("{at}.gate_proj"), [inner, width], bias)?,
            up: self.linear(&format!("{at}.up_proj"), [inner, width], bias)?,
            down: self.linear(&format!("{at}.down_proj"), [width, inner], bias)?,
        })
    }

    fn linear(
        &mut self,
        module: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> Result<LinearWeights, TensorFileError> {
        let weight = self.of_linear(&format!("{module}.weight"), shape, self.precision)?;
        let bias = bias.then(|| self.vector(&format!("{module}.bias"))).transpose()?;
        Ok(LinearWeights { weight, bias })
    }

    fn merger_layer(&mut self, position: usize, shape: [usize; 2]) -> Result<LinearWeights, TensorFileError> {
        let module = format!("model.visual.merger.mlp.{position}");
        let weight = self.of_linear(&format!("{module}.weight"), shape, self.kept_precision())?;
        Ok(LinearWeights { weight, bias: Some(self.vector(&format!("{module}.bias"))?) })
    }

    /// A norm or a bias: small, always f32.
    fn vector(&mut self, name: &str) -> Result<Vec<f32>, TensorFileError> {
        let found = self.checkpoint.require(name)?;
        let mut values = Vec::with_capacity(found.entry.elements());
        read_f32(found, &mut values)?;
        Ok(values)
    }

    /// The precision of matrices that 4-bit and 8-bit loading leaves alone.
    fn kept_precision(&self) -> Precision {
        match self.precision {
            Precision::Bits4 | Precision::Bits8 => Precision::AsStored,
            other => other,
        }
    }

    /// A table or a kernel: what no checkpoint holds in 4 bits.
    fn kept(&mut self, name: &str, shape: [usize; 2]) -> Result<Weight, TensorFileError> {
        self.matrix(name, shape, self.kept_precision())
    }

    /// The matrix of a linear layer, which the checkpoint may hold in 4 bits.
    fn of_linear(
        &mut self,
        name: &str,
        shape: [usize; 2],
        precision: Precision,
    ) -> Result<Weight, TensorFileError> {
        if !self.checkpoint.is_nf4(name) {
            return self.matrix(name, shape, precision);
        }
        let weight = bnb::load(self.checkpoint, name, shape)?;
        match precision {
            Precision::AsStored | Precision::Bits16 | Precision::Bits4 => Ok(weight),
            Precision::F32 => self.converted(name, shape, &weight.to_f32(), StoredAs::F32),
            Precision::Bits8 => self.converted(name, shape, &weight.to_f32(), StoredAs::Int8),
        }
    }

    fn matrix(
        &mut self,
        name: &str,
        shape: [usize; 2],
        precision: Precision,
    ) -> Result<Weight, TensorFileError> {
        let found = self.checkpoint.require(name)?;
        let stored = match (precision, found.entry.dtype) {
            (Precision::AsStored, _) => return shared(found, shape),
            (Precision::Bits16, Dtype::BF16 | Dtype::F16) => return shared(found, shape),
            // What will be trained is read, not mapped: else the first update would copy it beside the mapped
            // pages.
            (Precision::F32, _) => return owned(found, shape),
            (Precision::Bits16, _) => StoredAs::Bf16,
            (Precision::Bits8, _) => StoredAs::Int8,
            (Precision::Bits4, _) => StoredAs::Nf4,
        };
        let mut values = std::mem::take(&mut self.values);
        values.clear();
        values.reserve_exact(found.entry.elements());
        read_f32(found, &mut values)?;
        let weight = self.converted(name, shape, &values, stored)?;
        self.values = values;
        Ok(weight)
    }

    fn converted(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        values: &[f32],
        stored: StoredAs,
    ) -> Result<Weight, TensorFileError> {
        let fault = |error: garden_engine::WeightError| match self.checkpoint.require(name) {
            Ok(found) => found.fault(error.to_string()),
            Err(missing) => missing,
        };
        Weight::quantise(rows, cols, values, stored).map_err(fault)
    }
}

/// The matrix as f32 in memory of its own.
fn owned(found: Located<'_>, [rows, cols]: [usize; 2]) -> Result<Weight, TensorFileError> {
    let mut values = Vec::with_capacity(found.entry.elements());
    read_f32(found, &mut values)?;
    Weight::from_f32(rows, cols, values).map_err(|error| found.fault(error.to_string()))
}

/// The matrix where it lies in the mapped file, after a look at every value.
fn shared(found: Located<'_>, [rows, cols]: [usize; 2]) -> Result<Weight, TensorFileError> {
    if let Some(index) = first_bad_value(found.file, found.entry)? {
        return Err(found.fault(format!("element {index} is NaN or infinite")));
    }
    let elements = match found.entry.dtype {
        Dtype::BF16 => Elements::Bf16(found.shared()?),
        Dtype::F16 => Elements::F16(found.shared()?),
        _ => Elements::F32(found.shared()?),
    };
    Weight::new(rows, cols, elements).map_err(|error| found.fault(error.to_string()))
}

/// Place of the tensor's first value that is NaN or infinite; nothing of it stays in memory.
pub(crate) fn first_bad_value(
    file: &TensorFile,
    entry: &TensorEntry,
) -> Result<Option<usize>, TensorFileError> {
    let mut first = None;
    in_chunks(file, entry, |start, bytes| {
        first = first.or_else(|| first_not_finite(entry.dtype, bytes).map(|index| start + index));
        Ok(())
    })?;
    Ok(first)
}

/// Appends the tensor's values to `out`.
fn read_f32(found: Located<'_>, out: &mut Vec<f32>) -> Result<(), TensorFileError> {
    in_chunks(found.file, found.entry, |start, bytes| {
        finite_as_f32(found.entry.dtype, bytes, out)
            .map_err(|(index, value)| found.fault(format!("element {} is {value}", start + index)))
    })
}

/// Shows `visit` the tensor's bytes in order, a chunk at a time, with the place of each chunk's first
/// element.
fn in_chunks(
    file: &TensorFile,
    entry: &TensorEntry,
    mut visit: impl FnMut(usize, &[u8]) -> Result<(), TensorFileError>,
) -> Result<(), TensorFileError> {
    let total = (entry.bytes.end - entry.bytes.start) as usize;
    let mut buffer = vec![0; CHUNK.min(total)];
    for offset in (0..total).step_by(CHUNK) {
        let part = &mut buffer[..CHUNK.min(total - offset)];
        file.read_at(entry.bytes.start + offset as u64, part)?;
        visit(offset * 8 / entry.dtype.bitsize(), part)?;
    }
    Ok(())
}
