//! A model with what is trained in it.
//!
//! Joins loaded weights with an adapter, or marks the weights themselves as trained. Gives the layers as the
//! passes see them and the list of trained tensors, always in the same order. A gradient belongs to a tensor
//! by its number in that list.

use super::training::Training;
use crate::config::ModelConfig;
use crate::lora::Adapter;
use crate::parameters::{MatrixShape, parameters};
use crate::weights::{LinearWeights, MlpWeights, ModelWeights};
use garden_engine::Weight;
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::linear::{Linear, Lora};
use std::collections::HashMap;
use std::ops::Range;

/// One tensor that is trained.
#[derive(Debug)]
pub struct TrainableTensor<'a> {
    /// Its name: PEFT's for an adapter, Hugging Face's for a weight.
    pub name: &'a str,
    /// Its shape.
    pub shape: MatrixShape,
    /// What is trained.
    pub values: &'a mut [f32],
    /// The summed gradient.
    pub gradient: &'a [f32],
    /// Whether weight decay applies: to matrices, not to biases and norms.
    pub decays: bool,
}

/// Numbers of a linear layer's trained tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ids {
    pub weight: Option<usize>,
    pub bias: Option<usize>,
    pub a: Option<usize>,
    pub b: Option<usize>,
}

/// A linear layer and what is trained in it.
#[derive(Debug, Clone)]
pub(super) struct Projection<'a> {
    pub linear: Linear<'a>,
    pub ids: Ids,
}

impl Projection<'_> {
    /// What the step's dropout takes from the input of its pair: each pair has a fork of its own.
    pub(super) fn mask(&self, dropout: Option<Mask>) -> Option<Mask> {
        let mask = self.ids.a.zip(dropout).map(|(id, dropout)| dropout.fork(id as u64));
        mask.map(|mask| mask.from_column(self.linear.first_input()))
    }

    /// The part of it that gives these outputs.
    pub(super) fn of_outputs(&self, outputs: &Range<usize>) -> Self {
        Self { linear: self.linear.of_outputs(outputs), ids: self.ids }
    }

    /// The part of it that reads these inputs.
    pub(super) fn of_inputs(&self, inputs: &Range<usize>) -> Self {
        Self { linear: self.linear.of_inputs(inputs), ids: self.ids }
    }
}

/// One block of either tower.
#[derive(Debug, Clone)]
pub(super) struct Block<'a> {
    pub norm1: &'a [f32],
    pub norm2: &'a [f32],
    pub norm_ids: [Option<usize>; 2],
    /// One matrix, or three.
    pub qkv: Vec<Projection<'a>>,
    pub out: Projection<'a>,
    pub gate: Projection<'a>,
    pub up: Projection<'a>,
    pub down: Projection<'a>,
}

/// The gradients of everything that is trained, one tensor after another.
#[derive(Debug)]
pub(super) struct Gradients {
    /// May be longer than the tensors are together.
    pub values: Vec<f32>,
    /// Where each tensor begins, and where the last one ends.
    starts: Vec<usize>,
}

impl Gradients {
    pub(super) fn new(model: &Model) -> Self {
        let mut starts = vec![0];
        for tensor in &model.tensors {
            starts.push(starts[starts.len() - 1] + tensor.shape.elements());
        }
        Self { values: vec![0.0; starts[starts.len() - 1]], starts }
    }

    pub(super) fn of(&mut self, id: usize) -> &mut [f32] {
        &mut self.values[self.starts[id]..self.starts[id + 1]]
    }

    pub(super) fn get(&self, id: usize) -> &[f32] {
        &self.values[self.starts[id]..self.starts[id + 1]]
    }
}

#[derive(Debug)]
struct TensorInfo {
    name: String,
    shape: MatrixShape,
    decays: bool,
}

/// A model ready to compute, and to train if something in it is.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    weights: ModelWeights,
    adapter: Option<Adapter>,
    tensors: Vec<TensorInfo>,
    /// By tensor name, its number; by module, its pair.
    ids: HashMap<String, usize>,
    pairs: HashMap<String, usize>,
    full: bool,
}

impl Model {
    /// A model of which nothing is trained.
    pub fn frozen(config: ModelConfig, weights: ModelWeights) -> Self {
        let (ids, pairs) = Default::default();
        Self { config, weights, adapter: None, tensors: Vec::new(), ids, pairs, full: false }
    }

    /// A model whose weights stay and whose `adapter` is trained.
    pub fn with_adapter(config: ModelConfig, weights: ModelWeights, adapter: Adapter) -> Self {
        let mut model = Self::frozen(config, weights);
        for (index, pair) in adapter.pairs.iter().enumerate() {
            model.pairs.insert(pair.module.clone(), index);
            let shapes = adapter.settings.pair_shapes(pair.inputs, pair.outputs);
            for (side, shape) in ["A", "B"].into_iter().zip(shapes) {
                let name = format!("base_model.model.{}.lora_{side}.weight", pair.module);
                model.tensors.push(TensorInfo { name, shape, decays: true });
            }
        }
        model.adapter = Some(adapter);
        model
    }

    /// A model all of whose weights are trained; they must have been loaded as f32.
    pub fn full(config: ModelConfig, weights: ModelWeights) -> Self {
        let mut model = Self::frozen(config, weights);
        for parameter in parameters(&model.config) {
            let (shape, decays) = (parameter.matrix(), parameter.shape.len() > 1);
            model.ids.insert(parameter.name.clone(), model.tensors.len());
            model.tensors.push(TensorInfo { name: parameter.name, shape, decays });
        }
        model.full = true;
        model
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The weights.
    pub(crate) fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    /// The adapter, if that is what is trained.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// The adapter, to change.
    pub fn adapter_mut(&mut self) -> Option<&mut Adapter> {
        self.adapter.as_mut()
    }

    /// Number of values that are trained.
    pub fn trainable_values(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.shape.elements()).sum()
    }

    pub(super) fn training(&self) -> Training {
        let divided = self.divided();
        if self.full {
            return Training::full(divided);
        }
        let settings = self.adapter.as_ref().map(|adapter| &adapter.settings);
        Training::pairs(self.pairs.keys().map(String::as_str), settings, divided)
    }

    /// Whether every MLP can be computed a part of its inner width after another.
    fn divided(&self) -> bool {
        let ModelWeights { vision, text } = &self.weights;
        let mlps =
            vision.blocks.iter().map(|block| &block.mlp).chain(text.layers.iter().map(|layer| &layer.mlp));
        mlps.map(|mlp| mlp.down.weight.stored_as()).all(Linear::divides_inputs)
    }

    pub(super) fn id(&self, name: &str) -> Option<usize> {
        self.ids.get(name).copied()
    }

    fn projection<'a>(&'a self, module: &str, weights: &'a LinearWeights) -> Projection<'a> {
        let mut ids = Ids {
            weight: self.id(&format!("{module}.weight")),
            bias: self.id(&format!("{module}.bias")),
            ..Ids::default()
        };
        let pair = self.pairs.get(module).copied();
        let lora = pair.zip(self.adapter.as_ref()).map(|(index, adapter)| {
            (ids.a, ids.b) = (Some(2 * index), Some(2 * index + 1));
            let pair = &adapter.pairs[index];
            let (rank, scale) = (adapter.settings.rank, adapter.settings.scale());
            Lora { a: &pair.a, b: &pair.b, rank, scale }
        });
        let linear = Linear::new(&weights.weight, weights.bias.as_deref(), lora);
        Projection { linear, ids }
    }

    fn mlp<'a>(&'a self, module: &str, mlp: &'a MlpWeights) -> [Projection<'a>; 3] {
        [("gate_proj", &mlp.gate), ("up_proj", &mlp.up), ("down_proj", &mlp.down)]
            .map(|(name, weights)| self.projection(&format!("{module}.mlp.{name}"), weights))
    }

    pub(super) fn vision_block(&self, index: usize) -> Block<'_> {
        let module = format!("model.visual.blocks.{index}");
        let weights = &self.weights.vision.blocks[index];
        let [gate, up, down] = self.mlp(&module, &weights.mlp);
        Block {
            norm1: &weights.norm1,
            norm2: &weights.norm2,
            norm_ids: ["norm1", "norm2"].map(|norm| self.id(&format!("{module}.{norm}.weight"))),
            qkv: vec![self.projection(&format!("{module}.attn.qkv"), &weights.qkv)],
            out: self.projection(&format!("{module}.attn.proj"), &weights.proj),
            gate,
            up,
            down,
        }
    }

    pub(super) fn text_layer(&self, index: usize) -> Block<'_> {
        let module = format!("model.language_model.layers.{index}");
        let weights = &self.weights.text.layers[index];
        let [gate, up, down] = self.mlp(&module, &weights.mlp);
        let attention = |name: &str, weights| self.projection(&format!("{module}.self_attn.{name}"), weights);
        Block {
            norm1: &weights.input_norm,
            norm2: &weights.post_norm,
            norm_ids: ["input_layernorm", "post_attention_layernorm"]
                .map(|norm| self.id(&format!("{module}.{norm}.weight"))),
            qkv: vec![
                attention("q_proj", &weights.q),
                attention("k_proj", &weights.k),
                attention("v_proj", &weights.v),
            ],
            out: attention("o_proj", &weights.o),
            gate,
            up,
            down,
        }
    }

    pub(super) fn merger_layer(&self, index: usize) -> Projection<'_> {
        let module = format!("model.visual.merger.mlp.{}", 2 * index);
        self.projection(&module, &self.weights.vision.merger[index])
    }

    /// The head: its own matrix, or the embedding.
    pub(super) fn head(&self) -> (&Weight, Option<usize>) {
        const EMBEDDING: &str = "model.language_model.embed_tokens.weight";
        match &self.weights.text.head {
            Some(head) => (head, self.id("lm_head.weight")),
            None => (&self.weights.text.embedding, self.id(EMBEDDING)),
        }
    }

    /// Shows every trained tensor with its gradient, in order.
    pub(super) fn visit(&mut self, gradients: &Gradients, visit: &mut dyn FnMut(TrainableTensor<'_>)) {
        let mut id = 0;
        let mut show = |values: &mut [f32]| {
            let TensorInfo { name, shape, decays } = &self.tensors[id];
            let (shape, gradient, decays) = (*shape, gradients.get(id), *decays);
            visit(TrainableTensor { name, shape, values, gradient, decays });
            id += 1;
        };
        if let Some(adapter) = &mut self.adapter {
            for pair in &mut adapter.pairs {
                show(&mut pair.a);
                show(&mut pair.b);
            }
        } else if self.full {
            visit_weights(&mut self.weights, &mut show);
        }
    }
}

/// Shows every weight in the order of [`parameters`].
fn visit_weights(weights: &mut ModelWeights, show: &mut dyn FnMut(&mut [f32])) {
    fn matrix(weight: &mut Weight, show: &mut dyn FnMut(&mut [f32])) {
        if let Some(values) = weight.f32_mut() {
            show(values);
        }
    }
    fn linear(weights: &mut LinearWeights, show: &mut dyn FnMut(&mut [f32])) {
        matrix(&mut weights.weight, show);
        if let Some(bias) = &mut weights.bias {
            show(bias);
        }
    }
    fn mlp(weights: &mut MlpWeights, show: &mut dyn FnMut(&mut [f32])) {
        [&mut weights.gate, &mut weights.up, &mut weights.down]
            .into_iter()
            .for_each(|layer| linear(layer, show));
    }
    let vision = &mut weights.vision;
    matrix(&mut vision.patch_embed, show);
    for block in &mut vision.blocks {
        show(&mut block.norm1);
        show(&mut block.norm2);
        linear(&mut block.qkv, show);
        linear(&mut block.proj, show);
        mlp(&mut block.mlp, show);
    }
    show(&mut vision.merger_norm);
    vision.merger.iter_mut().for_each(|layer| linear(layer, show));
    let text = &mut weights.text;
    matrix(&mut text.embedding, show);
    for layer in &mut text.layers {
        show(&mut layer.input_norm);
        show(&mut layer.post_norm);
        [&mut layer.q, &mut layer.k, &mut layer.v, &mut layer.o].into_iter().for_each(|l| linear(l, show));
        mlp(&mut layer.mlp, show);
    }
    show(&mut text.norm);
    if let Some(head) = &mut text.head {
        matrix(head, show);
    }
}
