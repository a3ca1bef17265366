//! Adapters on disk, in PEFT's layout.
//!
//! Reads and writes a folder with `adapter_config.json` and `adapter_model.safetensors`:
//! `PeftModel.from_pretrained` reads what is written here, and the other way round. Every tensor must belong
//! to a layer of the base model and have its shape: an adapter of another model is refused with the tensor's
//! name.

mod missing;
mod settings;

use crate::config::ModelConfig;
use crate::lora::{Adapter, LoraPair, LoraSettings};
use crate::parameters::{Linear, canonical, linears};
use crate::tensor_file::{
    Dtype, TensorEntry, TensorFile, TensorFileError, TensorSpec, TensorWriter, finite_as_f32,
};
use settings::ConfigFile;
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
    /// A folder without a file that every adapter has.
    #[error("{} is no adapter: it has no {file}; {advice}", dir.display())]
    NotAnAdapter {
        /// The folder.
        dir: PathBuf,
        /// What it lacks.
        file: &'static str,
        /// What may have been meant.
        advice: String,
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

impl Adapter {
    /// Reads the settings of the adapter in `dir`.
    pub fn read_settings(dir: &Path) -> Result<LoraSettings, AdapterError> {
        read_config(dir)?.settings().map_err(|problem| fault(dir, problem))
    }

    /// Reads the settings of the adapter in `dir` to train it further. A key that leaves out some of the
    /// layers that `target_modules` chooses is refused: an adapter is used as its tensors are, but would be
    /// trained and saved without it.
    pub fn read_settings_to_train(dir: &Path) -> Result<LoraSettings, AdapterError> {
        let file = read_config(dir)?;
        match file.narrowed_by() {
            None => file.settings().map_err(|problem| fault(dir, problem)),
            Some(key) => Err(fault(
                dir,
                format!(
                    "`{key}`: training a part of the layers that `target_modules` chooses is not implemented"
                ),
            )),
        }
    }

    /// Reads the adapter in `dir` for a base model of `config`.
    pub fn read(dir: &Path, config: &ModelConfig) -> Result<Self, AdapterError> {
        let settings = Self::read_settings(dir)?;
        missing::check(dir, WEIGHTS)?;
        let rank = settings.rank;
        let file = TensorFile::open(&dir.join(WEIGHTS))?;
        let (mut pairs, faults) = named_pairs(&file, rank);
        if let Some(first) = faults.into_iter().next() {
            return Err(first.into());
        }
        let mut read = Vec::with_capacity(pairs.len());
        for linear in linears(config).into_iter().filter(Linear::fits_lora) {
            if let Some(names) = pairs.remove(&linear.module) {
                read.push(names.read(&file, rank, linear)?);
            }
        }
        match pairs.values().next() {
            Some(names) => Err(file.fault(names.a, "the base model has no such linear layer").into()),
            None => Ok(Self { settings, pairs: read }),
        }
    }

    /// Writes the adapter into the folder `dir`, which must exist; `base` is what PEFT will look for as its
    /// base model.
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
        garden_files::write(&path, text.as_bytes()).map_err(|source| AdapterError::Io { path, source })
    }
}

fn fault(dir: &Path, problem: String) -> AdapterError {
    AdapterError::Config { path: dir.join(CONFIG), problem }
}

fn read_config(dir: &Path) -> Result<ConfigFile, AdapterError> {
    missing::check(dir, CONFIG)?;
    let path = dir.join(CONFIG);
    let io_error = |source| AdapterError::Io { path: path.clone(), source };
    let length = std::fs::metadata(&path).map_err(io_error)?.len();
    if length > LARGEST_CONFIG {
        return Err(fault(dir, format!("{length} bytes are no adapter settings")));
    }
    let text = std::fs::read_to_string(&path).map_err(io_error)?;
    // Editors and scripts on Windows begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    serde_json::from_str(text).map_err(|error| fault(dir, error.to_string()))
}

fn spec(module: &str, half: &str, shape: [usize; 2]) -> TensorSpec {
    TensorSpec { name: format!("{PREFIX}{module}.{half}.weight"), dtype: Dtype::F32, shape: shape.into() }
}

/// The names of the two tensors of one layer.
struct Names<'a> {
    a: &'a str,
    b: &'a str,
}

impl Names<'_> {
    fn read(&self, file: &TensorFile, rank: usize, linear: Linear) -> Result<LoraPair, TensorFileError> {
        let Linear { module, inputs, outputs, .. } = linear;
        let a = read_values(file, self.a, [rank, inputs])?;
        let b = read_values(file, self.b, [outputs, rank])?;
        Ok(LoraPair { module, inputs, outputs, a, b })
    }
}

/// What is wrong with an adapter of rank `rank`, as far as its header tells without the base model.
pub(crate) fn faults(file: &TensorFile, rank: usize) -> Vec<TensorFileError> {
    named_pairs(file, rank).1
}

/// The two halves of every layer in `file`, by the layer's path, and everything that is wrong with them.
/// Values are not looked at, nor the widths of layers, which only the base model tells.
fn named_pairs(file: &TensorFile, rank: usize) -> (BTreeMap<String, Names<'_>>, Vec<TensorFileError>) {
    let mut faults = Vec::new();
    let mut halves: BTreeMap<String, [Option<&str>; 2]> = BTreeMap::new();
    for (name, entry) in file.entries() {
        let Some((module, half)) = parse_name(name) else {
            faults.push(file.fault(name, "it is neither a lora_A nor a lora_B weight"));
            continue;
        };
        faults.extend(check_half(entry, half, rank).map_err(|problem| file.fault(name, problem)).err());
        if let Some(twin) = halves.entry(module).or_default()[half].replace(name) {
            faults.push(file.fault(name, format!("its layer is in the file twice, also as `{twin}`")));
        }
    }
    let mut pairs = BTreeMap::new();
    for (module, halves) in halves {
        match halves {
            [Some(a), Some(b)] => drop(pairs.insert(module, Names { a, b })),
            [Some(name), None] => faults.push(file.fault(name, "its other half, lora_B, is missing")),
            [None, Some(name)] => faults.push(file.fault(name, "its other half, lora_A, is missing")),
            [None, None] => {}
        }
    }
    if file.entries().is_empty() {
        let problem = "it holds no LoRA tensors".into();
        faults.push(TensorFileError::Format { path: file.path().to_owned(), problem });
    }
    (pairs, faults)
}

/// Path of the layer that a tensor belongs to, and which half it is: 0 for lora_A, 1 for lora_B.
fn parse_name(name: &str) -> Option<(String, usize)> {
    let path = name.strip_prefix(PREFIX).unwrap_or(name);
    let ends = [".lora_A.weight", ".lora_B.weight"];
    let (module, half) =
        ends.into_iter().enumerate().find_map(|(half, end)| Some((path.strip_suffix(end)?, half)))?;
    Some((canonical(module), half))
}

fn check_half(entry: &TensorEntry, half: usize, rank: usize) -> Result<(), String> {
    if entry.shape.len() != 2 || entry.shape[half] != rank {
        let expected = [format!("[{rank}, inputs]"), format!("[outputs, {rank}]")];
        return Err(format!("its shape is {:?}, rank {rank} makes it {}", entry.shape, expected[half]));
    }
    match entry.dtype {
        Dtype::F32 | Dtype::BF16 | Dtype::F16 => Ok(()),
        other => Err(format!("it holds {other:?}; f32, bf16 and f16 can be read")),
    }
}

fn read_values(file: &TensorFile, name: &str, shape: [usize; 2]) -> Result<Vec<f32>, TensorFileError> {
    let entry = &file.entries()[name];
    if entry.shape != shape {
        let found = &entry.shape;
        return Err(file.fault(name, format!("its shape is {found:?}, the base model makes it {shape:?}")));
    }
    let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
    file.read_at(entry.bytes.start, &mut bytes)?;
    let mut values = Vec::with_capacity(entry.elements());
    finite_as_f32(entry.dtype, &bytes, &mut values)
        .map_err(|(index, value)| file.fault(name, format!("element {index} is {value}")))?;
    Ok(values)
}
