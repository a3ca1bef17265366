//! Safetensors files: the one reader and the one writer.
//!
//! [`TensorFile`] opens a file without trusting it: tensors must lie end to end, each with as many bytes as
//! its shape needs, and none may reach beyond the file's real length. Bytes are read into the caller's memory
//! or mapped on request. [`TensorWriter`] streams a file that appears under its name only when it is whole.

mod values;
mod write;

pub(crate) use values::finite_as_f32;
pub use values::first_not_finite;
pub use write::{TensorSpec, TensorWriter};

use memmap2::Mmap;
pub use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The format's own limit on a header.
const LARGEST_HEADER: u64 = 100_000_000;
/// The length of the header stands before it in this many bytes.
const PREFIX: u64 = 8;

/// Why a file of tensors cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file as a whole is not a safetensors file.
    #[error("{}: not a whole safetensors file: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// One tensor is at fault.
    #[error("{}: tensor `{tensor}`: {problem}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name as it stands in the file.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// What the header says of one tensor, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the start of the file.
    pub bytes: Range<u64>,
}

impl TensorEntry {
    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An open file of tensors.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, TensorEntry>,
    metadata: BTreeMap<String, String>,
    map: OnceLock<Arc<Mmap>>,
}

impl TensorFile {
    /// Opens `path` and checks its header.
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        let io_error = |source| TensorFileError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io_error)?;
        let length = file.metadata().map_err(io_error)?.len();
        let header = read_header(path, &file, length)?;
        let data_start = PREFIX + header.len() as u64;
        let (entries, metadata) = parse_header(path, &header, data_start)?;
        check_layout(path, &entries, data_start, length)?;
        Ok(Self { path: path.to_owned(), file, entries, metadata, map: OnceLock::new() })
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors by name.
    pub fn entries(&self) -> &BTreeMap<String, TensorEntry> {
        &self.entries
    }

    /// The strings in the header's `__metadata__`.
    pub(crate) fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Reads bytes of the file, counted from its start, into `buffer`; nothing stays mapped.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TensorFileError> {
        let io_error = |source| TensorFileError::Io { path: self.path.clone(), source };
        self.file.read_exact_at(buffer, offset).map_err(io_error)
    }

    /// Reads the whole of tensor `name`, elements of type `dtype` in little-endian order, into `out`.
    ///
    /// A tensor that is missing, of another type or of another length is refused before `out` is changed.
    pub fn read_into(&self, name: &str, dtype: Dtype, out: &mut [u8]) -> Result<(), TensorFileError> {
        let entry = self.entries.get(name).ok_or_else(|| self.fault(name, "the file does not have it"))?;
        if entry.dtype != dtype || entry.bytes.end - entry.bytes.start != out.len() as u64 {
            let (found, shape, elements) = (entry.dtype, &entry.shape, 8 * out.len() / dtype.bitsize());
            let problem = format!("it is {found} {shape:?}, but {dtype} [{elements}] is needed");
            return Err(self.fault(name, problem));
        }
        self.read_at(entry.bytes.start, out)
    }

    /// The whole file as memory; pages come in when they are touched.
    pub(crate) fn map(&self) -> Result<Arc<Mmap>, TensorFileError> {
        if let Some(map) = self.map.get() {
            return Ok(map.clone());
        }
        let map =
            map_file(&self.file).map_err(|source| TensorFileError::Io { path: self.path.clone(), source })?;
        Ok(self.map.get_or_init(|| Arc::new(map)).clone())
    }

    /// An error about tensor `name` of this file.
    pub(crate) fn fault(&self, name: &str, problem: impl Into<String>) -> TensorFileError {
        TensorFileError::Tensor { path: self.path.clone(), tensor: name.to_owned(), problem: problem.into() }
    }
}

/// Maps `file` for reading.
#[allow(unsafe_code, reason = "mapping a file is unsafe for what others may do to the file meanwhile")]
fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and private to its `Mmap`. What must hold is that nobody shortens or rewrites the
    // file while it is in use: we write checkpoints under another name and rename them, as the hub's own
    // cache does; of files that others overwrite in place docs/troubleshooting.md warns.
    unsafe { Mmap::map(file) }
}

fn read_header(path: &Path, file: &File, length: u64) -> Result<Vec<u8>, TensorFileError> {
    let format = |problem: String| TensorFileError::Format { path: path.to_owned(), problem };
    let io_error = |source| TensorFileError::Io { path: path.to_owned(), source };
    if length < PREFIX {
        return Err(format(format!("it has only {length} bytes")));
    }
    let mut prefix = [0; PREFIX as usize];
    file.read_exact_at(&mut prefix, 0).map_err(io_error)?;
    let header = u64::from_le_bytes(prefix);
    if header > LARGEST_HEADER || header > length - PREFIX {
        return Err(format(format!("its header claims {header} bytes, the file has {length}")));
    }
    let mut bytes = vec![0; header as usize];
    file.read_exact_at(&mut bytes, PREFIX).map_err(io_error)?;
    Ok(bytes)
}

type Header = (BTreeMap<String, TensorEntry>, BTreeMap<String, String>);

fn parse_header(path: &Path, header: &[u8], data_start: u64) -> Result<Header, TensorFileError> {
    let format = |problem: String| TensorFileError::Format { path: path.to_owned(), problem };
    let object: BTreeMap<String, Value> =
        serde_json::from_slice(header).map_err(|error| format(format!("its header: {error}")))?;
    let (mut entries, mut metadata) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in object {
        if name == "__metadata__" {
            metadata = serde_json::from_value(value).map_err(|error| format(format!("metadata: {error}")))?;
            continue;
        }
        let fault = |problem: String| TensorFileError::Tensor {
            path: path.to_owned(),
            tensor: name.clone(),
            problem,
        };
        let info: TensorInfo =
            serde_json::from_value(value).map_err(|error| fault(format!("its header entry: {error}")))?;
        let entry = entry(info, data_start).map_err(fault)?;
        entries.insert(name, entry);
    }
    Ok((entries, metadata))
}

fn entry(info: TensorInfo, data_start: u64) -> Result<TensorEntry, String> {
    let (begin, end) = info.data_offsets;
    let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |bits, side| bits.checked_mul(*side));
    let needed = bits.map(|bits| bits.div_ceil(8));
    let found = end.checked_sub(begin);
    if needed.is_none() || needed != found {
        let (dtype, shape) = (info.dtype, &info.shape);
        return Err(format!("{dtype:?} {shape:?} does not take the bytes {begin}..{end} it is given"));
    }
    let absolute = |offset: usize| data_start.checked_add(offset as u64);
    match (absolute(begin), absolute(end)) {
        (Some(begin), Some(end)) => {
            Ok(TensorEntry { dtype: info.dtype, shape: info.shape, bytes: begin..end })
        }
        _ => Err(format!("its bytes {begin}..{end} lie beyond any file")),
    }
}

fn check_layout(
    path: &Path,
    entries: &BTreeMap<String, TensorEntry>,
    data_start: u64,
    length: u64,
) -> Result<(), TensorFileError> {
    let fault = |tensor: &str, problem: String| {
        Err(TensorFileError::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), problem })
    };
    let mut order: Vec<_> = entries.iter().collect();
    order.sort_by_key(|(_, entry)| (entry.bytes.start, entry.bytes.end));
    if let Some((name, entry)) = order.iter().find(|(_, entry)| entry.bytes.end > length) {
        let end = entry.bytes.end;
        return fault(
            name,
            format!("it ends at byte {end}, but the file has only {length}: is it truncated?"),
        );
    }
    let mut expected = data_start;
    for (name, entry) in order {
        if entry.bytes.start != expected {
            let start = entry.bytes.start;
            return fault(name, format!("it starts at byte {start} where {expected} is expected"));
        }
        expected = entry.bytes.end;
    }
    if expected == length {
        return Ok(());
    }
    let problem = format!("its tensors end at byte {expected}, the file has {length}");
    Err(TensorFileError::Format { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dtype: Dtype, elements: usize) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, shape: vec![elements] }
    }

    #[test]
    fn slices_come_back_and_other_readers_agree() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.safetensors");
        let floats: Vec<f32> = (0..70_000).map(|i| i as f32 / 7.0).collect();
        let codes = [1u8, 2, 255];
        let specs = [spec("x.m", Dtype::F32, floats.len()), spec("x.codes", Dtype::U8, 3)];
        let mut writer = TensorWriter::create(&path, &specs, &[]).unwrap();
        writer.write_f32(&floats).unwrap();
        writer.write(&codes).unwrap();
        assert!(!path.exists(), "it has no name before it is whole");
        writer.finish().unwrap();

        let file = TensorFile::open(&path).unwrap();
        let (mut read_floats, mut read_codes) = (vec![0.0f32; floats.len()], [0; 3]);
        file.read_into("x.m", Dtype::F32, bytemuck::cast_slice_mut(&mut read_floats)).unwrap();
        file.read_into("x.codes", Dtype::U8, &mut read_codes).unwrap();
        assert_eq!((read_floats, read_codes), (floats, codes));

        let bytes = std::fs::read(&path).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("x.codes").unwrap().data(), codes);
    }

    /// Earlier releases wrote the optimizer's state with names sorted, no metadata, and data at a multiple of
    /// eight bytes.
    #[test]
    fn files_of_other_writers_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("optimizer.safetensors");
        let mut header = br#"{"a.m":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},"a.v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#.to_vec();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([7, 8, 9]);
        bytes.extend([0.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()));
        std::fs::write(&path, bytes).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let (mut m, mut v) = ([0.0f32; 2], [0; 3]);
        file.read_into("a.m", Dtype::F32, bytemuck::cast_slice_mut(&mut m)).unwrap();
        file.read_into("a.v", Dtype::U8, &mut v).unwrap();
        assert_eq!((m, v), ([0.5, -2.0], [7, 8, 9]));
    }

    #[test]
    fn what_does_not_match_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.safetensors");
        let mut writer = TensorWriter::create(&path, &[spec("a", Dtype::F32, 2)], &[]).unwrap();
        writer.write_f32(&[1.0, 2.0]).unwrap();
        writer.finish().unwrap();
        let file = TensorFile::open(&path).unwrap();
        let error = |name, dtype, length| {
            let mut out = vec![9; length];
            let error = file.read_into(name, dtype, &mut out).unwrap_err().to_string();
            assert!(out.iter().all(|byte| *byte == 9));
            error
        };
        assert!(error("b", Dtype::F32, 4).contains("tensor `b`: the file does not have it"));
        assert!(error("a", Dtype::F32, 4).contains("tensor `a`: it is F32 [2], but F32 [1] is needed"));
        assert!(error("a", Dtype::U8, 8).contains("but U8 [8] is needed"));
        std::fs::write(&path, [0xff; 16]).unwrap();
        assert!(TensorFile::open(&path).is_err());
    }
}
