//! What a checkpoint, an adapter or a file of tensors is, and what is wrong with it.
//!
//! Takes a folder or a file and gives a [`Report`] that serialises. Only headers are read unless the values
//! are asked for. Everything that would be refused on loading is listed here, not only the first fault. An
//! adapter is looked at without its base: whether the two fit shows only on loading.

use crate::adapter_file::{self, AdapterError};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::{ConfigError, ModelConfig};
use crate::lora::{Adapter, LoraSettings};
use crate::parameters::{Parameter, Part, parameters};
use crate::tensor_file::{Dtype, TensorEntry, TensorFile, TensorFileError};
use crate::weights::first_bad_value;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Files beside the weights that training and generation need.
const COMPANIONS: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"];

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The path is neither a model, nor an adapter, nor a safetensors file.
    #[error(
        "{}: neither a folder with config.json or adapter_config.json nor a .safetensors file",
        .0.display()
    )]
    Unknown(PathBuf),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights cannot be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The adapter cannot be read.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] TensorFileError),
}

/// What was found.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Report {
    /// A whole model.
    Model(ModelReport),
    /// A LoRA adapter.
    Adapter(AdapterReport),
    /// A single file of tensors.
    File(FileReport),
}

/// A whole model.
#[derive(Debug, Serialize)]
pub struct ModelReport {
    /// The architecture's name.
    pub architecture: &'static str,
    /// All parameters.
    pub parameters: usize,
    /// Parameters by part, in the order of computation.
    pub parts: Vec<PartReport>,
    /// The sizes of the configuration.
    pub sizes: Sizes,
    /// Parameters by how they are stored.
    pub stored: BTreeMap<String, usize>,
    /// Bytes of all files of weights.
    pub bytes: u64,
    /// Number of files of weights.
    pub files: usize,
    /// What is wrong, a sentence each; empty if nothing is.
    pub problems: Vec<String>,
}

/// One part of a model.
#[derive(Debug, Serialize)]
pub struct PartReport {
    /// Its name.
    pub name: &'static str,
    /// Its parameters.
    pub parameters: usize,
}

/// The sizes by which people know a model.
#[derive(Debug, Serialize)]
pub struct Sizes {
    /// Width of the language model.
    pub hidden: usize,
    /// Its layers.
    pub layers: usize,
    /// Its query heads.
    pub heads: usize,
    /// Its key and value heads.
    pub kv_heads: usize,
    /// Width of its MLP.
    pub mlp: usize,
    /// Rows of its embedding table.
    pub vocabulary: usize,
    /// Whether the head is the embedding table.
    pub tied_embeddings: bool,
    /// Width of the vision tower.
    pub vision_hidden: usize,
    /// Its blocks.
    pub vision_blocks: usize,
    /// Its heads.
    pub vision_heads: usize,
    /// Width of its MLP.
    pub vision_mlp: usize,
}

/// A LoRA adapter.
#[derive(Debug, Serialize)]
pub struct AdapterReport {
    /// Width of the pairs.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// What a pair's product is multiplied with.
    pub scale: f32,
    /// Share of inputs dropped while training.
    pub dropout: f32,
    /// Whether alpha is divided by the root of the rank.
    pub rslora: bool,
    /// Pattern of the layers it was made for.
    pub target_modules: String,
    /// Layers of the language model it has pairs for.
    pub language_layers: usize,
    /// Layers of the vision tower it has pairs for.
    pub vision_layers: usize,
    /// All its parameters.
    pub parameters: usize,
    /// Parameters by type.
    pub stored: BTreeMap<String, usize>,
    /// Bytes of the tensors' file.
    pub bytes: u64,
    /// What is wrong, a sentence each.
    pub problems: Vec<String>,
}

/// A single file of tensors.
#[derive(Debug, Serialize)]
pub struct FileReport {
    /// Number of tensors.
    pub tensors: usize,
    /// Elements by type.
    pub stored: BTreeMap<String, usize>,
    /// Bytes of the file.
    pub bytes: u64,
    /// The header's own strings.
    pub metadata: BTreeMap<String, String>,
    /// What is wrong, a sentence each.
    pub problems: Vec<String>,
}

impl Report {
    /// What is wrong, a sentence each.
    pub fn problems(&self) -> &[String] {
        match self {
            Self::Model(report) => &report.problems,
            Self::Adapter(report) => &report.problems,
            Self::File(report) => &report.problems,
        }
    }
}

/// Looks at `path`; with `values` every value is read and NaN and infinity are reported.
pub fn inspect(path: &Path, values: bool) -> Result<Report, InspectError> {
    if path.join(adapter_file::CONFIG).is_file() {
        return Ok(Report::Adapter(adapter(path, values)?));
    }
    if path.join("config.json").is_file() {
        return Ok(Report::Model(model(path, values)?));
    }
    match path.is_file() {
        true => Ok(Report::File(file(path, values)?)),
        false => Err(InspectError::Unknown(path.to_owned())),
    }
}

fn model(dir: &Path, values: bool) -> Result<ModelReport, InspectError> {
    let config = ModelConfig::read(dir)?;
    let checkpoint = Checkpoint::open(dir)?;
    let list = parameters(&config);
    let mut stored = BTreeMap::new();
    for parameter in &list {
        let Some(found) = checkpoint.find(&parameter.name) else { continue };
        let name = match checkpoint.holds_nf4(parameter) {
            true => "nf4".to_owned(),
            false => dtype_name(found.entry.dtype),
        };
        *stored.entry(name).or_default() += parameter.elements();
    }
    let mut problems: Vec<String> = checkpoint.faults(&config).iter().map(ToString::to_string).collect();
    let missing = COMPANIONS.iter().filter(|name| !dir.join(name).is_file());
    problems.extend(missing.map(|name| format!("{}: it is missing", dir.join(name).display())));
    if values {
        for file in checkpoint.files() {
            problems.extend(bad_values(file)?);
        }
    }
    Ok(ModelReport {
        architecture: "qwen2_5_vl",
        parameters: list.iter().map(Parameter::elements).sum(),
        parts: parts(&list),
        sizes: sizes(&config),
        stored,
        bytes: checkpoint.files().iter().map(file_bytes).sum(),
        files: checkpoint.files().len(),
        problems,
    })
}

fn parts(list: &[Parameter]) -> Vec<PartReport> {
    let part_of = |parameter: &Parameter| match parameter.name.as_str() {
        name if name.contains(".patch_embed.") => "patch embedding",
        name if name.contains(".merger.") => "merger",
        name if name.contains(".embed_tokens.") => "token embedding",
        name if name.starts_with("lm_head.") => "head",
        _ if parameter.part == Part::Vision => "vision blocks",
        _ => "language layers",
    };
    let mut parts: Vec<PartReport> = Vec::new();
    for parameter in list {
        let (name, count) = (part_of(parameter), parameter.elements());
        match parts.iter_mut().find(|part| part.name == name) {
            Some(part) => part.parameters += count,
            None => parts.push(PartReport { name, parameters: count }),
        }
    }
    parts
}

fn sizes(config: &ModelConfig) -> Sizes {
    let (text, vision) = (&config.text, &config.vision);
    Sizes {
        hidden: text.hidden_size,
        layers: text.layers,
        heads: text.heads,
        kv_heads: text.kv_heads,
        mlp: text.intermediate_size,
        vocabulary: text.vocab_size,
        tied_embeddings: config.tie_word_embeddings,
        vision_hidden: vision.hidden_size,
        vision_blocks: vision.depth,
        vision_heads: vision.heads,
        vision_mlp: vision.intermediate_size,
    }
}

fn adapter(dir: &Path, values: bool) -> Result<AdapterReport, InspectError> {
    let settings = Adapter::read_settings(dir)?;
    let scale = settings.scale();
    let file = TensorFile::open(&dir.join(adapter_file::WEIGHTS))?;
    let layers = |part: &str| {
        let of_part = |name: &&String| name.contains(part) && name.ends_with(".lora_A.weight");
        file.entries().keys().filter(of_part).count()
    };
    let vision_layers = layers("visual.");
    let language_layers = layers(".layers.");
    let mut problems: Vec<String> =
        adapter_file::faults(&file, settings.rank).iter().map(ToString::to_string).collect();
    if values {
        problems.extend(bad_values(&file)?);
    }
    let LoraSettings { rank, alpha, dropout, rslora, target_modules } = settings;
    Ok(AdapterReport {
        rank,
        alpha,
        scale,
        dropout,
        rslora,
        target_modules,
        language_layers,
        vision_layers,
        parameters: file.entries().values().map(TensorEntry::elements).sum(),
        stored: stored(&file),
        bytes: file_bytes(&file),
        problems,
    })
}

fn file(path: &Path, values: bool) -> Result<FileReport, InspectError> {
    let file = TensorFile::open(path)?;
    Ok(FileReport {
        tensors: file.entries().len(),
        stored: stored(&file),
        bytes: file_bytes(&file),
        metadata: file.metadata().clone(),
        problems: if values { bad_values(&file)? } else { Vec::new() },
    })
}

fn stored(file: &TensorFile) -> BTreeMap<String, usize> {
    let mut stored = BTreeMap::new();
    for entry in file.entries().values() {
        *stored.entry(dtype_name(entry.dtype)).or_default() += entry.elements();
    }
    stored
}

fn dtype_name(dtype: Dtype) -> String {
    format!("{dtype:?}").to_lowercase()
}

fn file_bytes(file: &TensorFile) -> u64 {
    // An open, checked file ends where its last tensor ends.
    file.entries().values().map(|entry| entry.bytes.end).max().unwrap_or(0)
}

fn bad_values(file: &TensorFile) -> Result<Vec<String>, TensorFileError> {
    let mut problems = Vec::new();
    for (name, entry) in file.entries() {
        if let Some(index) = first_bad_value(file, entry)? {
            problems.push(file.fault(name, format!("element {index} is NaN or infinite")).to_string());
        }
    }
    Ok(problems)
}
