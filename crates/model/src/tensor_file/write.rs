//! Writes a safetensors file as a stream.
//!
//! Takes the names, types and shapes first, then the bytes in that order. The file appears under its name
//! only when it is whole and on disk. Memory is the writer's buffer, whatever the size of the file.

use super::{Dtype, PREFIX, TensorFileError};
use garden_files::PartialFile;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Large enough that a file of gigabytes is written in few calls.
const BUFFER: usize = 1 << 20;
/// Data begins at a multiple of this, so that mapped f32 tensors are aligned.
const ALIGNMENT: usize = 64;

/// What a tensor will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Type of its elements, of whole bytes.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// A file of tensors in the making; dropped before [`TensorWriter::finish`] it leaves nothing behind.
pub struct TensorWriter {
    path: PathBuf,
    out: BufWriter<PartialFile>,
    missing: u64,
}

impl TensorWriter {
    /// Begins the file `path` with a header for `tensors`.
    pub fn create(
        path: &Path,
        tensors: &[TensorSpec],
        metadata: &[(&str, &str)],
    ) -> Result<Self, TensorFileError> {
        let io_error = |source| TensorFileError::Io { path: path.to_owned(), source };
        let out = BufWriter::with_capacity(BUFFER, PartialFile::create(path).map_err(io_error)?);
        let missing = tensors.iter().map(|tensor| tensor.bytes() as u64).sum();
        let mut writer = Self { path: path.to_owned(), out, missing };
        let header = header(tensors, metadata);
        writer.out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io_error)?;
        writer.out.write_all(&header).map_err(io_error)?;
        Ok(writer)
    }

    /// Writes the next bytes of the tensors.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), TensorFileError> {
        self.missing = self.missing.checked_sub(bytes.len() as u64).ok_or_else(|| self.wrong_length())?;
        let path = &self.path;
        self.out.write_all(bytes).map_err(|source| TensorFileError::Io { path: path.clone(), source })
    }

    /// Writes the next values as f32.
    pub fn write_f32(&mut self, values: &[f32]) -> Result<(), TensorFileError> {
        self.write(bytemuck::cast_slice(values))
    }

    /// Puts the file on disk and gives it its name.
    pub fn finish(self) -> Result<(), TensorFileError> {
        if self.missing > 0 {
            return Err(self.wrong_length());
        }
        let io_error = |source| TensorFileError::Io { path: self.path.clone(), source };
        let file = self.out.into_inner().map_err(|error| io_error(error.into_error()))?;
        file.keep().map_err(io_error)
    }

    fn wrong_length(&self) -> TensorFileError {
        let problem = "the bytes written are not those its header announces".into();
        TensorFileError::Format { path: self.path.clone(), problem }
    }
}

fn header(tensors: &[TensorSpec], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut object = Map::new();
    if !metadata.is_empty() {
        let strings = metadata.iter().map(|(key, value)| ((*key).to_owned(), json!(value)));
        object.insert("__metadata__".into(), Value::Object(strings.collect()));
    }
    let mut begin = 0;
    for tensor in tensors {
        let end = begin + tensor.bytes();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]});
        object.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut bytes = Value::Object(object).to_string().into_bytes();
    let used = PREFIX as usize + bytes.len();
    bytes.resize(bytes.len() + used.next_multiple_of(ALIGNMENT) - used, b' ');
    bytes
}
