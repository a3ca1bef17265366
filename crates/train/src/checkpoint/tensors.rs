//! The optimizer's state as a safetensors file, written and read without a second copy in memory.
//!
//! In come named slices of f32 or bytes; out comes a file that any safetensors reader opens, and later the same slices
//! filled from it. A name, type or length that differs is refused by name before anything is changed.

use super::CheckpointError;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// The header of a state with a hundred thousand tensors is smaller.
const LARGEST_HEADER: u64 = 64 << 20;

/// A slice to write.
pub enum TensorSlice<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// Bytes.
    U8(&'a [u8]),
}

#[derive(Serialize, Deserialize)]
struct Header {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl TensorSlice<'_> {
    fn dtype(&self) -> &'static str {
        match self {
            Self::F32(_) => "F32",
            Self::U8(_) => "U8",
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U8(values) => values.len(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::F32(values) => 4 * values.len() as u64,
            Self::U8(values) => values.len() as u64,
        }
    }
}

/// Is shown named slices, one after another.
pub type SliceVisitor<'a> = dyn FnMut(&str, TensorSlice<'_>) + 'a;

/// Writes named slices to a new file. The slices are asked for twice: for the header, and for their contents.
pub fn write_tensors(
    path: &Path,
    mut for_each: impl FnMut(&mut SliceVisitor<'_>),
) -> Result<(), CheckpointError> {
    let mut header = BTreeMap::new();
    let mut end = 0;
    for_each(&mut |name, slice| {
        let data_offsets = [end, end + slice.bytes()];
        end = data_offsets[1];
        let entry = Header { dtype: slice.dtype().to_owned(), shape: vec![slice.len()], data_offsets };
        header.insert(name.to_owned(), entry);
    });
    let mut text = serde_json::to_vec(&header).map_err(|error| CheckpointError::Contents(error.into()))?;
    // The format wants tensors aligned; blanks after the JSON are part of it.
    text.resize(text.len().next_multiple_of(8), b' ');
    let file = File::create(path).map_err(CheckpointError::io(path))?;
    let mut out = BufWriter::with_capacity(1 << 18, file);
    let mut written = out.write_all(&(text.len() as u64).to_le_bytes()).and_then(|()| out.write_all(&text));
    for_each(&mut |_, slice| {
        if written.is_ok() {
            written = match slice {
                TensorSlice::U8(bytes) => out.write_all(bytes),
                TensorSlice::F32(values) => {
                    values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
                }
            };
        }
    });
    written.and_then(|()| out.flush()).map_err(CheckpointError::io(path))
}

/// A file written by [`write_tensors`], open for reading.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    start: u64,
    header: BTreeMap<String, Header>,
}

impl TensorFile {
    /// Reads the header.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::damaged(path, reason);
        let mut file = File::open(path).map_err(CheckpointError::io(path))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(CheckpointError::io(path))?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER {
            return Err(damaged(format!("a header of {length} bytes is not one of ours")));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(CheckpointError::io(path))?;
        let header =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("broken header: {error}")))?;
        Ok(Self { path: path.to_owned(), file, start: 8 + length, header })
    }

    /// Fills a slice of floats.
    pub fn fill_f32(&self, name: &str, values: &mut [f32]) -> Result<(), CheckpointError> {
        let mut at = self.start_of(name, "F32", values.len(), 4)?;
        let mut buffer = vec![0; (1 << 18).min(4 * values.len())];
        for piece in values.chunks_mut(1 << 16) {
            let bytes = &mut buffer[..4 * piece.len()];
            self.file.read_exact_at(bytes, at).map_err(CheckpointError::io(&self.path))?;
            for (value, bytes) in piece.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            at += 4 * piece.len() as u64;
        }
        Ok(())
    }

    /// Fills a slice of bytes.
    pub fn fill_u8(&self, name: &str, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        let at = self.start_of(name, "U8", bytes.len(), 1)?;
        self.file.read_exact_at(bytes, at).map_err(CheckpointError::io(&self.path))
    }

    fn start_of(&self, name: &str, dtype: &str, len: usize, width: u64) -> Result<u64, CheckpointError> {
        let damaged = |reason: String| CheckpointError::damaged(&self.path, reason);
        let entry = self.header.get(name).ok_or_else(|| damaged(format!("has no tensor {name}")))?;
        let bytes = entry.data_offsets[1].checked_sub(entry.data_offsets[0]);
        if entry.dtype != dtype || bytes != Some(len as u64 * width) {
            let found = format!("{} {:?}", entry.dtype, entry.shape);
            return Err(damaged(format!("tensor {name} is {found}, this run needs {dtype} [{len}]")));
        }
        self.start
            .checked_add(entry.data_offsets[0])
            .ok_or_else(|| damaged(format!("tensor {name} is beyond the end")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_come_back_and_other_readers_agree() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.safetensors");
        let floats: Vec<f32> = (0..70_000).map(|i| i as f32 / 7.0).collect();
        let codes = [1u8, 2, 255];
        write_tensors(&path, |visit| {
            visit("x.m", TensorSlice::F32(&floats));
            visit("x.codes", TensorSlice::U8(&codes));
        })
        .unwrap();

        let file = TensorFile::open(&path).unwrap();
        let (mut read_floats, mut read_codes) = (vec![0.0; floats.len()], [0; 3]);
        file.fill_f32("x.m", &mut read_floats).unwrap();
        file.fill_u8("x.codes", &mut read_codes).unwrap();
        assert_eq!((read_floats, read_codes), (floats, codes));

        let bytes = std::fs::read(&path).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("x.codes").unwrap().data(), codes);
    }

    #[test]
    fn what_does_not_match_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.safetensors");
        write_tensors(&path, |visit| visit("a", TensorSlice::F32(&[1.0, 2.0]))).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let error = |result: Result<(), CheckpointError>| result.unwrap_err().to_string();
        assert!(error(file.fill_f32("b", &mut [0.0])).contains("no tensor b"));
        assert!(
            error(file.fill_f32("a", &mut [0.0])).contains("tensor a is F32 [2], this run needs F32 [1]")
        );
        assert!(error(file.fill_u8("a", &mut [0; 8])).contains("needs U8 [8]"));
        std::fs::write(&path, [0xff; 16]).unwrap();
        assert!(TensorFile::open(&path).is_err());
    }
}
