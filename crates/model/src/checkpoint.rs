//! A model's weights on disk, in one file or many.
//!
//! Takes a folder as Hugging Face writes it and the [`ModelConfig`] beside it, and gives tensors by their
//! present names, whichever the file uses. [`Checkpoint::check`] compares every name, shape and type with the
//! configuration, so that what is missing, unknown or misshapen is named before a byte of it is used.

pub(crate) mod bnb;

use crate::config::ModelConfig;
use crate::held::Held;
use crate::parameters::{Parameter, canonical, parameters};
use crate::tensor_file::{Dtype, TensorEntry, TensorFile, TensorFileError};
use bnb::NF4_PARTS;
use garden_engine::{SharedBytes, Storage, StoredAs};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// An index has a line per tensor: a thousandth of this for the largest model.
const LARGEST_INDEX: u64 = 64 << 20;

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The folder has no weights that can be read.
    #[error("{}: {problem}", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// What was looked for and found instead.
        problem: String,
    },
    /// The index of a sharded checkpoint is at fault.
    #[error("{}: {problem}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file or a tensor in it is at fault.
    #[error(transparent)]
    File(#[from] TensorFileError),
    /// Several tensors are at fault; the first is named, the others are counted.
    #[error("{first} (and {others} more tensors are at fault)")]
    Tensors {
        /// The first fault.
        first: Box<TensorFileError>,
        /// How many more there are.
        others: usize,
    },
}

/// The weights of a model, opened and indexed but not read.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<TensorFile>,
    /// By present name: which file, and the name there.
    places: BTreeMap<String, (usize, String)>,
}

/// A tensor of a checkpoint: its file, its name there, and what the header says of it.
#[derive(Debug, Clone, Copy)]
pub struct Located<'a> {
    /// The file that holds it.
    pub file: &'a TensorFile,
    /// Its name in that file.
    pub name: &'a str,
    /// Its type, shape and place.
    pub entry: &'a TensorEntry,
}

impl Located<'_> {
    /// An error about this tensor.
    pub(crate) fn fault(&self, problem: impl Into<String>) -> TensorFileError {
        self.file.fault(self.name, problem)
    }

    /// Its elements where they lie in the mapped file.
    pub(crate) fn shared<T: bytemuck::Pod>(&self) -> Result<Storage<T>, TensorFileError> {
        let owner: SharedBytes = self.file.map()?;
        let range = self.entry.bytes.start as usize..self.entry.bytes.end as usize;
        Storage::shared(owner, range).ok_or_else(|| self.fault("its bytes are not whole elements"))
    }
}

impl Checkpoint {
    /// Opens the weights in `dir`: `model.safetensors`, or the files its index names.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let files = file_names(dir)?
            .iter()
            .map(|name| TensorFile::open(&dir.join(name)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut places: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            for name in file.entries().keys() {
                let present = canonical(name);
                if let Some((other, twin)) = places.insert(present, (index, name.clone())) {
                    let other = files[other].path().display();
                    return Err(file.fault(name, format!("it is also in {other} as `{twin}`")).into());
                }
            }
        }
        Ok(Self { dir: dir.to_owned(), files, places })
    }

    /// The files of tensors, in order.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// The tensor of this present name, if there is one.
    pub fn find(&self, name: &str) -> Option<Located<'_>> {
        let (index, name) = self.places.get(name)?;
        let file = &self.files[*index];
        file.entries().get(name).map(|entry| Located { file, name, entry })
    }

    /// Whether the matrix `name` is stored as bitsandbytes' 4-bit codes.
    pub(crate) fn is_nf4(&self, name: &str) -> bool {
        bnb::is_quantized(self, name)
    }

    /// Whether `parameter` is stored as bitsandbytes' 4-bit codes, and may be.
    pub(crate) fn holds_nf4(&self, parameter: &Parameter) -> bool {
        parameter.may_be_nf4 && self.is_nf4(&parameter.name)
    }

    /// How the tensors lie in the files.
    pub fn stored(&self, config: &ModelConfig) -> Result<Held, CheckpointError> {
        Ok(Held::new(config, |parameter| self.stored_as(parameter))?)
    }

    fn stored_as(&self, parameter: &Parameter) -> Result<StoredAs, TensorFileError> {
        let found = self.require(&parameter.name)?;
        match (self.holds_nf4(parameter), found.entry.dtype) {
            (true, _) => Ok(StoredAs::Nf4),
            (_, Dtype::F32) => Ok(StoredAs::F32),
            (_, Dtype::BF16) => Ok(StoredAs::Bf16),
            (_, Dtype::F16) => Ok(StoredAs::F16),
            (_, other) => Err(unreadable(found, other)),
        }
    }

    /// Checks every tensor against `config`; the error names the first at fault.
    pub fn check(&self, config: &ModelConfig) -> Result<(), CheckpointError> {
        let mut faults = self.faults(config);
        if faults.is_empty() {
            return Ok(());
        }
        let first = faults.remove(0);
        match faults.len() {
            0 => Err(first.into()),
            others => Err(CheckpointError::Tensors { first: Box::new(first), others }),
        }
    }

    /// Everything that is missing, unknown, misshapen or of a type that cannot be read.
    pub fn faults(&self, config: &ModelConfig) -> Vec<TensorFileError> {
        let mut faults = Vec::new();
        let mut known = BTreeSet::new();
        for parameter in parameters(config) {
            let name = &parameter.name;
            known.insert(name.clone());
            let Some(found) = self.find(name) else {
                faults.push(self.missing(name));
                continue;
            };
            if self.holds_nf4(&parameter) {
                known.extend(NF4_PARTS.iter().map(|part| format!("{name}.{part}")));
                faults.extend(bnb::check(self, name, &parameter.shape).err());
            } else {
                faults.extend(check_plain(found, &parameter.shape).err());
            }
        }
        let unknown = self.places.keys().filter(|name| !known.contains(*name) && !is_harmless(name, config));
        faults.extend(unknown.filter_map(|name| self.find(name)).map(|found| {
            found.fault("no such tensor in a Qwen2.5-VL of this configuration; is it another model's file?")
        }));
        faults
    }

    fn missing(&self, name: &str) -> TensorFileError {
        TensorFileError::Tensor {
            path: self.dir.clone(),
            tensor: name.to_owned(),
            problem: "it is missing; is the download complete?".into(),
        }
    }

    pub(crate) fn require(&self, name: &str) -> Result<Located<'_>, TensorFileError> {
        self.find(name).ok_or_else(|| self.missing(name))
    }
}

/// Tensors some savers leave in a file though the model does not read them.
fn is_harmless(name: &str, config: &ModelConfig) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("rotary_pos_emb.inv_freq")
        || (config.tie_word_embeddings && name == "lm_head.weight")
}

fn check_plain(found: Located<'_>, shape: &[usize]) -> Result<(), TensorFileError> {
    let entry = found.entry;
    if !matches!(entry.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
        return Err(unreadable(found, entry.dtype));
    }
    if entry.shape != shape {
        return Err(found.fault(format!("its shape is {:?}, config.json makes it {shape:?}", entry.shape)));
    }
    Ok(())
}

fn unreadable(found: Located<'_>, dtype: Dtype) -> TensorFileError {
    found.fault(format!("it holds {dtype:?}; f32, bf16 and f16 can be read"))
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

fn file_names(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let index = dir.join(INDEX);
    if index.is_file() {
        return indexed_names(&index);
    }
    if dir.join(SINGLE).is_file() {
        return Ok(vec![SINGLE.into()]);
    }
    let problem = match dir.is_dir() {
        false => "there is no such folder".to_owned(),
        true if has_pickles(dir) => {
            "it holds PyTorch .bin files; save the model with safe_serialization=True first".to_owned()
        }
        true => format!("it holds neither {SINGLE} nor {INDEX}"),
    };
    Err(CheckpointError::NoWeights { dir: dir.to_owned(), problem })
}

fn has_pickles(dir: &Path) -> bool {
    ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|name| dir.join(name).exists())
}

fn indexed_names(path: &Path) -> Result<Vec<String>, CheckpointError> {
    let fault = |problem: String| CheckpointError::Index { path: path.to_owned(), problem };
    let length = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
    if length > LARGEST_INDEX {
        return Err(fault(format!("{length} bytes is no index")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let index: RawIndex = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    for name in &names {
        if name.contains(['/', '\\']) || !name.ends_with(".safetensors") {
            return Err(fault(format!("`{name}` is not the name of a safetensors file beside it")));
        }
        if !path.with_file_name(name).is_file() {
            return Err(fault(format!(
                "it names `{name}`, which is not beside it; is the download complete?"
            )));
        }
    }
    if names.is_empty() {
        return Err(fault("it names no files".into()));
    }
    Ok(names.into_iter().collect())
}
