//! Whether the values of a checkpoint are finite.
//!
//! Reads every safetensors file in a checkpoint's folder once, a piece at a time. Checksums cannot tell:
//! infinite values are written as faithfully as any others.

use super::CheckpointError;
use garden_model::{TensorFile, first_not_finite};
use std::{fs, path::Path};

/// Bytes that are read at once; a whole number of elements of every float type.
const PIECE: u64 = 1 << 20;

/// Refuses a folder in which a tensor holds a value that is infinite or not a number.
pub(super) fn check(dir: &Path) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::io(dir))? {
        let path = entry.map_err(CheckpointError::io(dir))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            check_file(&path)?;
        }
    }
    Ok(())
}

fn check_file(path: &Path) -> Result<(), CheckpointError> {
    let contents = |error| CheckpointError::Contents(Box::new(error));
    let file = TensorFile::open(path).map_err(contents)?;
    let mut buffer = Vec::new();
    for (name, tensor) in file.entries() {
        let elements_at = |bytes: u64| 8 * bytes / tensor.dtype.bitsize() as u64;
        let mut at = tensor.bytes.start;
        while at < tensor.bytes.end {
            buffer.resize(PIECE.min(tensor.bytes.end - at) as usize, 0);
            file.read_at(at, &mut buffer).map_err(contents)?;
            if let Some(place) = first_not_finite(tensor.dtype, &buffer) {
                let place = elements_at(at - tensor.bytes.start) + place as u64;
                return Err(CheckpointError::damaged(path, format!("{name}: value {place} is not finite")));
            }
            at += buffer.len() as u64;
        }
    }
    Ok(())
}
