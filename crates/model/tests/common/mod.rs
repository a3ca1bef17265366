//! What `goldens/make.py` stored, and the same random models and images that it computed them from.
//!
//! The stored files hold what Hugging Face, PEFT and bitsandbytes gave; weights, adapters and images are
//! drawn again here from [`random`] by the same rules as in the script.

#![allow(dead_code, reason = "each test file uses its own part of this module")]

// The crate's own generator, which is no part of what it exports.
#[path = "../../src/random.rs"]
pub mod random;

use garden_model::{
    Adapter, Checkpoint, LoraSettings, ModelConfig, ModelWeights, PackedBatch, Parameter, Precision,
    TensorSpec, TensorWriter, parameters,
};
use half::{bf16, f16};
use random::Stream;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder of the stored files.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Everything the script wrote as JSON.
#[derive(Deserialize)]
pub struct Manifest {
    pub models: Vec<Model>,
    pub grids: Grids,
}

/// One small random model with its rows.
#[derive(Deserialize)]
pub struct Model {
    pub seed: u64,
    config: serde_json::Value,
    pub rows: BTreeMap<String, Row>,
    /// Rows of each batch, by name, in order.
    pub batches: BTreeMap<String, Vec<String>>,
    pub adapters: BTreeMap<String, AdapterSettings>,
    pub curve: Curve,
    pub greedy: Greedy,
}

#[derive(Deserialize, Clone)]
pub struct Row {
    pub tokens: Vec<u32>,
    /// -100 where a token has no label.
    pub labels: Vec<i64>,
    pub grids: Vec<[usize; 3]>,
}

#[derive(Deserialize)]
pub struct AdapterSettings {
    pub r: usize,
    pub lora_alpha: f32,
    pub use_rslora: bool,
    pub target_modules: String,
}

/// Losses of a training run over `batches` in turn, from a fresh adapter (A drawn, B zero).
#[derive(Deserialize)]
pub struct Curve {
    pub adapter: String,
    pub batches: Vec<String>,
    pub learning_rate: f32,
    pub weight_decay: f32,
    pub losses: Vec<f64>,
}

/// What HF goes on with after `prompt`, always taking the likeliest token.
#[derive(Deserialize)]
pub struct Greedy {
    pub prompt: Vec<u32>,
    pub grids: Vec<[usize; 3]>,
    pub tokens: Vec<u32>,
}

#[derive(Deserialize)]
pub struct Grids {
    pub image_token: u32,
    pub cases: Vec<GridCase>,
}

#[derive(Deserialize)]
pub struct GridCase {
    pub tokens: Vec<u32>,
    pub grids: Vec<[usize; 3]>,
    pub window: usize,
}

pub fn manifest() -> Manifest {
    let text = std::fs::read_to_string(folder().join("goldens.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

impl Model {
    pub fn config(&self) -> ModelConfig {
        ModelConfig::parse(&self.config_json(), Path::new("config.json")).unwrap()
    }

    pub fn config_json(&self) -> String {
        self.config.to_string()
    }

    /// The same model with MLPs of another inner width.
    pub fn with_inner_width(mut self, inner: usize) -> Self {
        for tower in ["text_config", "vision_config"] {
            self.config[tower]["intermediate_size"] = inner.into();
        }
        self
    }

    /// The rows of batch `name`, in order.
    pub fn batch(&self, name: &str) -> Vec<Row> {
        self.batches[name].iter().map(|kind| self.rows[kind].clone()).collect()
    }

    /// The pictures of a batch as bytes: for each patch channel by channel, row by row (588 values).
    pub fn pictures(&self, rows: &[Row]) -> Vec<u8> {
        let grids = rows.iter().flat_map(|row| &row.grids).enumerate();
        grids.flat_map(|(index, grid)| picture(self.seed, &format!("picture.{index}"), *grid)).collect()
    }
}

/// A stored file of tensors.
pub struct Tensors {
    bytes: Vec<u8>,
}

impl Tensors {
    /// Opens a file of the goldens folder.
    pub fn open(name: &str) -> Self {
        Self { bytes: std::fs::read(folder().join(name)).unwrap() }
    }

    /// Names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.parsed().names().into_iter().map(str::to_owned).collect()
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.parsed().tensor(name).unwrap().shape().to_vec()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let parsed = self.parsed();
        let tensor = parsed.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    pub fn integers(&self, name: &str) -> Vec<i64> {
        let parsed = self.parsed();
        let tensor = parsed.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        match tensor.dtype() {
            Dtype::I16 => {
                let pairs = tensor.data().chunks_exact(2);
                pairs.map(|bytes| i16::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
            }
            Dtype::I32 => {
                let words = tensor.data().chunks_exact(4);
                words.map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
            }
            other => panic!("{name} holds {other:?}"),
        }
    }

    fn parsed(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }
}

/// What the test models hold under `name`, the script's `weight`.
pub fn weight(seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
    let count = shape.iter().product::<usize>() as u64;
    let fan_in: usize = shape[1..].iter().product();
    let stream = Stream::new(seed, name);
    if name.contains("norm") || name.contains("ln_q") {
        let noise = stream.normal(0.1);
        return (0..count).map(|index| 1.0 + noise(index)).collect();
    }
    let deviation = if name.ends_with(".bias") || name.contains("lora_B") {
        0.1
    } else {
        (1.0 / (fan_in as f64).sqrt()) as f32
    };
    (0..count).map(stream.normal(deviation)).collect()
}

/// The patches of a picture, the script's `picture`.
pub fn picture(seed: u64, name: &str, grid: [usize; 3]) -> Vec<u8> {
    let stream = Stream::new(seed, name);
    let count = (grid.iter().product::<usize>() * 588) as u64;
    (0..count).map(|index| stream.bits(index) as u8).collect()
}

/// Patches as HF's processor lays them out: normalised f32, every frame twice (1176 values a patch).
pub fn pixel_values(patches: &[u8]) -> Vec<f32> {
    const MEAN: [f32; 3] = [0.48145466, 0.4578275, 0.40821073];
    const STD: [f32; 3] = [0.26862954, 0.261_302_6, 0.275_777_1];
    let mut values = Vec::with_capacity(patches.len() * 2);
    for (index, plane) in patches.chunks_exact(14 * 14).enumerate() {
        let channel = index % 3;
        let normalise = |&value: &u8| (f32::from(value) - MEAN[channel] * 255.0) / (STD[channel] * 255.0);
        for _frame in 0..2 {
            values.extend(plane.iter().map(normalise));
        }
    }
    values
}

/// How a test model is written.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The names of the first checkpoints instead of the present ones.
    pub old_names: bool,
    /// Number of files; more than one comes with an index.
    pub files: usize,
    pub dtype: Dtype,
}

pub const PLAIN: Layout = Layout { old_names: false, files: 1, dtype: Dtype::F32 };

/// Writes a test model's folder: config.json and weights.
pub fn write_model(dir: &Path, model: &Model, layout: Layout) {
    std::fs::write(dir.join("config.json"), model.config_json()).unwrap();
    let list = parameters(&model.config());
    let share = list.len().div_ceil(layout.files);
    let mut weight_map = BTreeMap::new();
    for (index, part) in list.chunks(share).enumerate() {
        let file = match layout.files {
            1 => "model.safetensors".to_owned(),
            files => format!("model-{:05}-of-{files:05}.safetensors", index + 1),
        };
        weight_map.extend(part.iter().map(|parameter| (layout.name(parameter), file.clone())));
        write_part(&dir.join(file), model.seed, part, layout);
    }
    if layout.files > 1 {
        let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

fn write_part(path: &Path, seed: u64, part: &[Parameter], layout: Layout) {
    let spec = |parameter: &Parameter| TensorSpec {
        name: layout.name(parameter),
        dtype: layout.dtype,
        shape: parameter.shape.clone(),
    };
    let specs: Vec<TensorSpec> = part.iter().map(spec).collect();
    let mut writer = TensorWriter::create(path, &specs, &[("format", "pt")]).unwrap();
    for parameter in part {
        writer.write(&layout.encode(&weight(seed, &parameter.name, &parameter.shape))).unwrap();
    }
    writer.finish().unwrap();
}

impl Layout {
    fn name(&self, parameter: &Parameter) -> String {
        match self.old_names {
            true => {
                parameter.name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
            }
            false => parameter.name.clone(),
        }
    }

    pub fn encode(&self, values: &[f32]) -> Vec<u8> {
        let encode = |value: &f32| match self.dtype {
            Dtype::BF16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        values.iter().flat_map(encode).collect()
    }

    /// `values` after the trip through this layout's type.
    pub fn rounded(&self, values: Vec<f32>) -> Vec<f32> {
        let round = |value: f32| match self.dtype {
            Dtype::BF16 => bf16::from_f32(value).to_f32(),
            Dtype::F16 => f16::from_f32(value).to_f32(),
            _ => value,
        };
        values.into_iter().map(round).collect()
    }
}

/// Writes a test model and loads it.
pub fn load_model(model: &Model, layout: Layout, precision: Precision) -> ModelWeights {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), model, layout);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    ModelWeights::load(&checkpoint, &model.config(), precision, |_| {}).unwrap()
}

/// Name and shape of a tensor.
pub type Named<'a> = (&'a str, [usize; 2]);

/// Writes an adapter folder with PEFT's settings (rank 3) and the given tensors, in `dtype`, every value 0.3.
pub fn write_adapter(dir: &Path, tensors: &[Named], dtype: Dtype) {
    std::fs::copy(folder().join("adapter/adapter_config.json"), dir.join("adapter_config.json")).unwrap();
    let spec = |&(name, shape): &Named| TensorSpec { name: name.into(), dtype, shape: shape.into() };
    let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    let mut writer = TensorWriter::create(&dir.join("adapter_model.safetensors"), &specs, &[]).unwrap();
    for (_, [rows, cols]) in tensors {
        writer.write(&Layout { dtype, ..PLAIN }.encode(&vec![0.3; rows * cols])).unwrap();
    }
    writer.finish().unwrap();
}

/// Rows of a golden batch, laid end to end.
pub struct Packed {
    pub ids: Vec<u32>,
    pub labels: Vec<i32>,
    pub segments: Vec<usize>,
    pub patches: Vec<u8>,
    pub grids: Vec<[usize; 3]>,
}

impl Packed {
    pub fn new(golden: &Model, rows: &[Row]) -> Self {
        let mut segments = vec![0];
        for row in rows {
            segments.push(segments.last().unwrap() + row.tokens.len());
        }
        Self {
            ids: rows.iter().flat_map(|row| row.tokens.clone()).collect(),
            labels: rows.iter().flat_map(|row| row.labels.iter().map(|&label| label as i32)).collect(),
            segments,
            patches: golden.pictures(rows),
            grids: rows.iter().flat_map(|row| row.grids.clone()).collect(),
        }
    }

    pub fn batch(&self) -> PackedBatch<'_> {
        PackedBatch {
            ids: &self.ids,
            labels: &self.labels,
            segments: &self.segments,
            patches: &self.patches,
            grids: &self.grids,
        }
    }
}

/// The adapter of the goldens: every value drawn by its name.
pub fn adapter(golden: &Model, name: &str) -> Adapter {
    let chosen = &golden.adapters[name];
    let settings = LoraSettings {
        rank: chosen.r,
        alpha: chosen.lora_alpha,
        dropout: 0.0,
        rslora: chosen.use_rslora,
        target_modules: chosen.target_modules.clone(),
    };
    let mut adapter = Adapter::fresh(&golden.config(), settings, 0).unwrap();
    for pair in &mut adapter.pairs {
        let name = |side: &str| format!("base_model.model.{}.lora_{side}.weight", pair.module);
        pair.a = weight(golden.seed, &name("A"), &[chosen.r, pair.inputs]);
        pair.b = weight(golden.seed, &name("B"), &[pair.outputs, chosen.r]);
    }
    adapter
}

pub fn lora_model(golden: &Model, name: &str) -> garden_model::Model {
    let weights = load_model(golden, PLAIN, Precision::AsStored);
    garden_model::Model::with_adapter(golden.config(), weights, adapter(golden, name))
}

pub fn goldens() -> Vec<(Model, Tensors)> {
    let models = manifest().models.into_iter().enumerate();
    models.map(|(index, golden)| (golden, Tensors::open(&format!("model{index}.safetensors")))).collect()
}

/// The largest difference, relative to the largest value.
pub fn relative(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let difference = found.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    difference / largest.max(f32::MIN_POSITIVE)
}
