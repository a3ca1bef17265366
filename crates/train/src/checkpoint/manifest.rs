//! The list of a checkpoint's files with their sizes and sums, which tells a whole checkpoint from a damaged
//! one.
//!
//! Sealing takes a filled folder, reads back and syncs every file, and writes `manifest.json`, so a manifest
//! never lists bytes that are not on the disk. Verifying takes a sealed folder and gives its manifest, or the
//! reason why it is damaged.

use super::{CheckpointError, sync_folder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 1;
/// A manifest lists a dozen files; anything much larger is not one.
const LARGEST_MANIFEST: u64 = 1 << 20;

/// What a checkpoint consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    format: u32,
    /// Optimizer steps taken.
    pub step: u64,
    files: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    bytes: u64,
    sha256: String,
}

impl Manifest {
    /// Syncs every file of a folder and writes its manifest.
    pub fn seal(dir: &Path, step: u64) -> Result<Self, CheckpointError> {
        let mut files = BTreeMap::new();
        seal_folder(dir, "", &mut files)?;
        let manifest = Self { format: FORMAT, step, files };
        let path = dir.join(MANIFEST);
        let text =
            serde_json::to_vec_pretty(&manifest).map_err(|error| CheckpointError::Contents(error.into()))?;
        garden_files::write(&path, &text).map_err(CheckpointError::io(&path))?;
        Ok(manifest)
    }

    /// Checks every file of a folder against its manifest.
    pub fn verify(dir: &Path) -> Result<Self, CheckpointError> {
        let manifest = Self::read(dir)?;
        for (name, entry) in &manifest.files {
            let path = dir.join(name);
            let found = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(CheckpointError::damaged(path, "missing"));
                }
                file => file.and_then(Entry::of).map_err(CheckpointError::io(&path))?,
            };
            if found.bytes != entry.bytes {
                let reason = format!("has {} bytes instead of {}", found.bytes, entry.bytes);
                return Err(CheckpointError::damaged(path, reason));
            }
            if found.sha256 != entry.sha256 {
                return Err(CheckpointError::damaged(path, "its SHA-256 sum differs from the manifest's"));
            }
        }
        Ok(manifest)
    }

    fn read(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join(MANIFEST);
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(LARGEST_MANIFEST).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CheckpointError::damaged(
                    dir,
                    "has no manifest.json, so it is not a whole checkpoint",
                ));
            }
            result => result.map_err(CheckpointError::io(&path))?,
        };
        let manifest: Self = serde_json::from_str(&text)
            .map_err(|error| CheckpointError::damaged(&path, error.to_string()))?;
        if manifest.format != FORMAT {
            let reason = format!("was written in format {}; this version reads {FORMAT}", manifest.format);
            return Err(CheckpointError::damaged(path, reason));
        }
        Ok(manifest)
    }
}

impl Entry {
    fn of(mut file: File) -> io::Result<Self> {
        let mut sum = Sha256::new();
        let mut buffer = vec![0; 1 << 18];
        let mut bytes = 0;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            sum.update(&buffer[..count]);
            bytes += count as u64;
        }
        let sha256 = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { bytes, sha256 })
    }
}

fn seal_folder(dir: &Path, prefix: &str, files: &mut BTreeMap<String, Entry>) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::io(dir))? {
        let path = entry.map_err(CheckpointError::io(dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(CheckpointError::damaged(path, "a file name that is not UTF-8"));
        };
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            seal_folder(&path, &format!("{name}/"), files)?;
            sync_folder(&path)?;
        } else {
            let sealed =
                File::open(&path).and_then(|file| file.sync_all().map(|()| file)).and_then(Entry::of);
            files.insert(name, sealed.map_err(CheckpointError::io(&path))?);
        }
    }
    Ok(())
}
