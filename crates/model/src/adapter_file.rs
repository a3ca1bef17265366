//! Adapters on disk, in PEFT's layout.
//!
//! In comes a folder with `adapter_config.json` and `adapter_model.safetensors`, or an [`Adapter`] to write as one; what is
//! written here `PeftModel.from_pretrained` reads, and the other way round. Every tensor must belong to a layer of
//! the base model and have its shape: an adapter of another model is refused with the tensor's name.

use crate::config::ModelConfig;
use crate::files::write_whole;
use crate::lora::{Adapter, LoraPair, LoraSettings};
use crate::parameters::{Linear, Role, canonical, linears};
use crate::tensor_file::{Dtype, TensorFile, TensorFileError, TensorSpec, TensorWriter, finite_as_f32};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the settings in an adapter's folder.
pub const CONFIG: &str = "adapter_config.json";
/// Name of the tensors in an adapter's folder.
pub const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";
/// Settings are some forty short keys.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Why an adapter cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A file is missing, unreadable or unwritable.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The settings are not ones this model can use.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The settings file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The tensors are at fault.
    #[error(transparent)]
    File(#[from] TensorFileError),
}

/// `adapter_config.json`, the keys that matter; PEFT fills in the rest.
#[derive(Serialize, Deserialize)]
struct ConfigFile {
    peft_type: String,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f32,
    #[serde(default)]
    lora_dropout: f32,
    #[serde(default)]
    use_rslora: bool,
    target_modules: Option<TargetModules>,
    #[serde(default = "none")]
    bias: String,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    inference_mode: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    rank_pattern: BTreeMap<String, usize>,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f32>,
    #[serde(default)]
    init_lora_weights: serde_json::Value,
}

fn none() -> String {
    "none".into()
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum TargetModules {
    Pattern(String),
    Names(Vec<String>),
}

impl TargetModules {
    /// PEFT takes a list for the ends of paths, a string for a pattern over whole ones.
    fn into_pattern(self) -> String {
        match self {
            Self::Pattern(pattern) => pattern,
            Self::Names(names) => {
                let names: Vec<String> = names.iter().map(|name| regex::escape(name)).collect();
                format!(r"(.*\.)?({})", names.join("|"))
            }
        }
    }
}

impl ConfigFile {
    fn settings(self) -> Result<LoraSettings, String> {
        let refused = [
            (self.peft_type != "LORA", "peft_type", "only LORA can be read"),
            (self.use_dora, "use_dora", "DoRA is not implemented"),
            (self.bias != "none", "bias", "trained biases are not implemented"),
            (self.fan_in_fan_out, "fan_in_fan_out", "transposed layers do not occur in this model"),
            (self.modules_to_save.is_some_and(|list| !list.is_empty()), "modules_to_save", "not implemented"),
            (!self.rank_pattern.is_empty(), "rank_pattern", "one rank for all layers is implemented"),
            (!self.alpha_pattern.is_empty(), "alpha_pattern", "one alpha for all layers is implemented"),
        ];
        if let Some((_, key, reason)) = refused.into_iter().find(|(refused, ..)| *refused) {
            return Err(format!("`{key}`: {reason}"));
        }
        let target_modules = self.target_modules.ok_or("`target_modules` is missing")?.into_pattern();
        let settings = LoraSettings {
            rank: self.r,
            alpha: self.lora_alpha,
            dropout: self.lora_dropout,
            rslora: self.use_rslora,
            target_modules,
        };
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }
}

impl Adapter {
    /// Reads the settings of the adapter in `dir`.
    pub fn read_settings(dir: &Path) -> Result<LoraSettings, AdapterError> {
        let path = dir.join(CONFIG);
        let io_error = |source| AdapterError::Io { path: path.clone(), source };
        let fault = |problem: String| AdapterError::Config { path: path.clone(), problem };
        let length = std::fs::metadata(&path).map_err(io_error)?.len();
        if length > LARGEST_CONFIG {
            return Err(fault(format!("{length} bytes are no adapter settings")));
        }
        let text = std::fs::read_to_string(&path).map_err(io_error)?;
        let file: ConfigFile = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        file.settings().map_err(fault)
    }

    /// Reads the adapter in `dir` for a base model of `config`.
    pub fn read(dir: &Path, config: &ModelConfig) -> Result<Self, AdapterError> {
        let settings = Self::read_settings(dir)?;
        let file = TensorFile::open(&dir.join(WEIGHTS))?;
        let layers: BTreeMap<String, Linear> = linears(config)
            .into_iter()
            .filter(|linear| matches!(linear.role, Role::Attention | Role::Mlp))
            .map(|linear| (linear.module.clone(), linear))
            .collect();
        let mut halves: BTreeMap<String, Halves> = BTreeMap::new();
        for name in file.entries().keys() {
            let half = read_half(&file, name, &layers, settings.rank)?;
            let pair = halves.entry(half.module).or_default();
            match half.is_a {
                true => pair.a = Some((name, half.values)),
                false => pair.b = Some((name, half.values)),
            }
        }
        if halves.is_empty() {
            let problem = "it holds no LoRA tensors".into();
            return Err(TensorFileError::Format { path: file.path().to_owned(), problem }.into());
        }
        let mut pairs = Vec::with_capacity(halves.len());
        for linear in linears(config) {
            if let Some(pair) = halves.remove(&linear.module) {
                pairs.push(pair.join(&file, linear)?);
            }
        }
        Ok(Self { settings, pairs })
    }

    /// Writes the adapter into the folder `dir`, which must exist; `base` is what PEFT will look for as its base model.
    pub fn write(&self, dir: &Path, base: &str) -> Result<(), AdapterError> {
        let rank = self.settings.rank;
        let specs: Vec<TensorSpec> = self
            .pairs
            .iter()
            .flat_map(|pair| {
                [
                    spec(&pair.module, "lora_A", [rank, pair.inputs]),
                    spec(&pair.module, "lora_B", [pair.outputs, rank]),
                ]
            })
            .collect();
        let mut writer = TensorWriter::create(&dir.join(WEIGHTS), &specs, &[("format", "pt")])?;
        for pair in &self.pairs {
            writer.write_f32(&pair.a)?;
            writer.write_f32(&pair.b)?;
        }
        writer.finish()?;
        let path = dir.join(CONFIG);
        let text = self.settings.to_config_json(base);
        write_whole(&path, text.as_bytes()).map_err(|source| AdapterError::Io { path, source })
    }
}

impl LoraSettings {
    fn to_config_json(&self, base: &str) -> String {
        let file = ConfigFile {
            peft_type: "LORA".into(),
            task_type: Some("CAUSAL_LM".into()),
            base_model_name_or_path: Some(base.into()),
            r: self.rank,
            lora_alpha: self.alpha,
            lora_dropout: self.dropout,
            use_rslora: self.rslora,
            target_modules: Some(TargetModules::Pattern(self.target_modules.clone())),
            bias: none(),
            fan_in_fan_out: false,
            inference_mode: true,
            use_dora: false,
            modules_to_save: None,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            init_lora_weights: serde_json::Value::Bool(true),
        };
        // A struct of strings and numbers always has a JSON form.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }
}

fn spec(module: &str, half: &str, shape: [usize; 2]) -> TensorSpec {
    TensorSpec { name: format!("{PREFIX}{module}.{half}.weight"), dtype: Dtype::F32, shape: shape.into() }
}

/// One tensor of an adapter.
struct Half {
    module: String,
    is_a: bool,
    values: Vec<f32>,
}

#[derive(Default)]
struct Halves<'a> {
    a: Option<(&'a String, Vec<f32>)>,
    b: Option<(&'a String, Vec<f32>)>,
}

impl Halves<'_> {
    fn join(self, file: &TensorFile, linear: Linear) -> Result<LoraPair, TensorFileError> {
        let Linear { module, inputs, outputs, .. } = linear;
        match (self.a, self.b) {
            (Some((_, a)), Some((_, b))) => Ok(LoraPair { module, inputs, outputs, a, b }),
            (Some((name, _)), None) => Err(file.fault(name, "its other half, lora_B, is missing")),
            (None, Some((name, _))) => Err(file.fault(name, "its other half, lora_A, is missing")),
            (None, None) => Err(file.fault(&module, "it has no LoRA tensors")),
        }
    }
}

fn read_half(
    file: &TensorFile,
    name: &str,
    layers: &BTreeMap<String, Linear>,
    rank: usize,
) -> Result<Half, TensorFileError> {
    let entry = &file.entries()[name];
    let path = name.strip_prefix(PREFIX).unwrap_or(name);
    let halves = [(".lora_A.weight", true), (".lora_B.weight", false)];
    let found = halves.into_iter().find_map(|(end, is_a)| Some((path.strip_suffix(end)?, is_a)));
    let Some((module, is_a)) = found else {
        return Err(file.fault(name, "it is neither a lora_A nor a lora_B weight"));
    };
    let module = canonical(module);
    let Some(linear) = layers.get(&module) else {
        return Err(file.fault(name, "the base model has no such attention or MLP layer"));
    };
    let shape = if is_a { [rank, linear.inputs] } else { [linear.outputs, rank] };
    if entry.shape != shape {
        let found = &entry.shape;
        return Err(file.fault(
            name,
            format!("its shape is {found:?}, rank {rank} on the base model makes it {shape:?}"),
        ));
    }
    if !matches!(entry.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
        return Err(file.fault(name, format!("it holds {:?}; f32, bf16 and f16 can be read", entry.dtype)));
    }
    let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
    file.read_at(entry.bytes.start, &mut bytes)?;
    let mut values = Vec::with_capacity(entry.elements());
    finite_as_f32(entry.dtype, &bytes, &mut values)
        .map_err(|(index, value)| file.fault(name, format!("element {index} is {value}")))?;
    Ok(Half { module, is_a, values })
}
