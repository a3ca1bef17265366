//! Merges an adapter and its base model into one folder that loads without either.
//!
//! Takes a base model and a PEFT adapter, and writes a complete folder in 16 bits or in bitsandbytes' 4 bits.
//! Tensors go through one at a time, the folder appears under its name only when it is whole, and a result
//! that equals its base is refused.

mod partial;
mod tensors;

use crate::folders::{self, Overlap};
use garden_data::{ProcessorError, files_for_transformers_4};
use garden_model::{
    Adapter, AdapterError, Checkpoint, CheckpointError, ConfigError, ModelConfig, Parameter, TensorFileError,
    parameters,
};
use partial::PartialFolder;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};
use tensors::Merger;

/// The largest file of tensors in bytes, as Hugging Face makes them.
const LARGEST_FILE: usize = 5_000_000_000;
/// What a folder needs besides weights, wherever the base has it.
const COMPANIONS: [&str; 14] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
    "LICENSE",
    "NOTICE",
];

/// How the merged weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum MergedAs {
    /// bf16.
    #[default]
    #[cfg_attr(feature = "clap", value(name = "16bit"))]
    SixteenBit,
    /// bitsandbytes' NF4 with nested scales; what it leaves alone stays bf16.
    #[cfg_attr(feature = "clap", value(name = "4bit"))]
    FourBit,
}

/// Why a model could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The base's configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The base's weights cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor cannot be read or written.
    #[error(transparent)]
    Tensor(#[from] TensorFileError),
    /// The adapter cannot be used, or not with this base.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The base's processor files cannot be used.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The output exists and is not an empty folder.
    #[error("{} exists already and is not an empty folder: choose another one", .0.display())]
    Exists(PathBuf),
    /// The output is an empty folder that no other can replace.
    #[error("{} is {why}: choose a folder inside it", output.display())]
    Fixed {
        /// The folder.
        output: PathBuf,
        /// What keeps it.
        why: &'static str,
    },
    /// The result would lie inside what it is made from.
    #[error("{} {} {what} ({}): choose a folder elsewhere", output.display(), overlap.words(), source_folder.display())]
    Overlap {
        /// The folder to make.
        output: PathBuf,
        /// How they touch.
        overlap: Overlap,
        /// What it touches.
        what: &'static str,
        /// Where that is.
        source_folder: PathBuf,
    },
    /// A tensor could not be quantised.
    #[error("{name}: {source}")]
    Quantise {
        /// The tensor.
        name: String,
        /// Why.
        source: garden_engine::WeightError,
    },
    /// A merged value is infinite or NaN.
    #[error(
        "{name}: element {index} of the merged weights is {value}: base and adapter are too large together"
    )]
    NotFinite {
        /// The tensor.
        name: String,
        /// The element's place, row by row.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// The adapter changes nothing.
    #[error(
        "the merged weights equal the base's: the adapter in {} changes nothing (was it trained at all?)",
        .0.display()
    )]
    Unchanged(PathBuf),
}

impl MergeError {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

/// What a merge did.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Merged {
    /// Tensors of the model.
    pub tensors: usize,
    /// Matrices that the adapter changed.
    pub changed_matrices: usize,
    /// Their elements that differ from the base in the stored type.
    pub changed_elements: u64,
    /// Bytes of the weights written.
    pub bytes: u64,
}

/// Writes base and adapter as one model into a new folder; `progress` is told the share done.
pub fn merge(
    base: &Path,
    adapter_dir: &Path,
    output: &Path,
    merged_as: MergedAs,
    mut progress: impl FnMut(f64),
) -> Result<Merged, MergeError> {
    check_output(base, adapter_dir, output)?;
    let output = &folders::without_link(output);
    let config = ModelConfig::read(base)?;
    let checkpoint = Checkpoint::open(base)?;
    checkpoint.check(&config)?;
    let adapter = Adapter::read(adapter_dir, &config)?;
    let partial = PartialFolder::make(output)?;
    let merger = Merger::new(&checkpoint, &adapter, merged_as);
    let merged = write_weights(&merger, &parameters(&config), partial.path(), &mut progress)?;
    if merged.changed_elements == 0 {
        return Err(MergeError::Unchanged(adapter_dir.to_owned()));
    }
    let quantization = (merged_as == MergedAs::FourBit).then(quantization_config);
    write_config(base, partial.path(), "bfloat16", quantization)?;
    copy_companions(base, partial.path())?;
    partial.place(output)?;
    Ok(merged)
}

/// Refuses a folder that is in use, or part of what is merged.
fn check_output(base: &Path, adapter: &Path, output: &Path) -> Result<(), MergeError> {
    for (what, source) in [("the base model", base), ("the adapter", adapter)] {
        // A new folder holds nothing; one that does is refused below.
        if let Some(overlap) = Overlap::of(output, source).filter(|overlap| *overlap != Overlap::Around) {
            let (output, source_folder) = (output.to_owned(), source.to_owned());
            return Err(MergeError::Overlap { output, overlap, what, source_folder });
        }
    }
    match folders::is_free(output).map_err(MergeError::io(output))? {
        true => match folders::fixed(output) {
            None => Ok(()),
            Some(why) => Err(MergeError::Fixed { output: output.to_owned(), why }),
        },
        false => Err(MergeError::Exists(output.to_owned())),
    }
}

/// Writes all tensors, in as many files as their size asks for.
fn write_weights(
    merger: &Merger<'_>,
    parameters: &[Parameter],
    dir: &Path,
    progress: &mut impl FnMut(f64),
) -> Result<Merged, MergeError> {
    let files = split(merger, parameters);
    let total: usize = parameters.iter().map(|parameter| merger.bytes(parameter)).sum();
    let mut merged = Merged { tensors: 0, changed_matrices: 0, changed_elements: 0, bytes: 0 };
    let mut places = BTreeMap::new();
    for (index, group) in files.iter().enumerate() {
        let name = match files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        let specs: Vec<_> = group.iter().flat_map(|parameter| merger.specs(parameter)).collect();
        places.extend(specs.iter().map(|spec| (spec.name.clone(), name.clone())));
        let mut writer = garden_model::TensorWriter::create(&dir.join(&name), &specs, &[("format", "pt")])?;
        for parameter in *group {
            let changed = merger.write(parameter, &mut writer)?;
            merged.tensors += 1;
            merged.changed_matrices += usize::from(changed > 0);
            merged.changed_elements += changed;
            merged.bytes += merger.bytes(parameter) as u64;
            progress(merged.bytes as f64 / total.max(1) as f64);
        }
        writer.finish()?;
    }
    if files.len() > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        write_json(&dir.join("model.safetensors.index.json"), &index)?;
    }
    Ok(merged)
}

fn split<'p>(merger: &Merger<'_>, parameters: &'p [Parameter]) -> Vec<&'p [Parameter]> {
    let mut files = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, parameter) in parameters.iter().enumerate() {
        let next = merger.bytes(parameter);
        if bytes + next > LARGEST_FILE && index > start {
            files.push(&parameters[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += next;
    }
    files.push(&parameters[start..]);
    files
}

/// The base's configuration with the new type of its weights.
pub(crate) fn write_config(
    base: &Path,
    dir: &Path,
    dtype: &str,
    quantization: Option<Value>,
) -> Result<(), MergeError> {
    let path = base.join("config.json");
    let text = fs::read(&path).map_err(MergeError::io(&path))?;
    let mut config: Value =
        serde_json::from_slice(&text).map_err(|error| MergeError::io(&path)(error.into()))?;
    if let Some(object) = config.as_object_mut() {
        object.remove("quantization_config");
        // Older readers know the first name, newer ones the second.
        object.insert("torch_dtype".into(), json!(dtype));
        object.insert("dtype".into(), json!(dtype));
        if let Some(quantization) = quantization {
            object.insert("quantization_config".into(), quantization);
        }
    }
    write_json(&dir.join("config.json"), &config)
}

fn quantization_config() -> Value {
    json!({
        "quant_method": "bitsandbytes",
        "load_in_4bit": true,
        "load_in_8bit": false,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        // Readers match these at the start of a module's path or, depending on their version, anywhere in it.
        "llm_int8_skip_modules": ["lm_head", "merger", "visual.merger", "model.visual.merger"],
        "llm_int8_threshold": 6.0,
    })
}

fn write_json(path: &Path, value: &Value) -> Result<(), MergeError> {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    garden_files::write(path, text.as_bytes()).map_err(MergeError::io(path))
}

/// Copies tokenizer and processor files, so that the folder needs no other, whichever version of transformers
/// reads it.
pub(crate) fn copy_companions(base: &Path, dir: &Path) -> Result<(), MergeError> {
    for name in COMPANIONS {
        let (from, to) = (base.join(name), dir.join(name));
        if from.is_file() {
            garden_files::copy(&from, &to).map_err(MergeError::io(&to))?;
        }
    }
    for (name, text) in files_for_transformers_4(base)? {
        let to = dir.join(name);
        garden_files::write(&to, text.as_bytes()).map_err(MergeError::io(&to))?;
    }
    Ok(())
}
