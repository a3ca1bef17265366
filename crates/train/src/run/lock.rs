//! One run at a time in an output folder.
//!
//! In comes the folder; out comes a lock that the system gives back when the process ends, however it ends. A second run would clear
//! away the first one's half-written checkpoint and prune the others.

use super::RunError;
use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::Path,
};

/// The file that is locked; it stays, empty.
const LOCK: &str = ".lock";

/// Held for as long as a run is at work in its folder.
#[derive(Debug)]
pub(super) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the folder, which is made if need be; an error if another run has it.
    pub fn take(folder: &Path) -> Result<Self, RunError> {
        fs::create_dir_all(folder).map_err(RunError::io(folder))?;
        let path = folder.join(LOCK);
        let file = File::options().create(true).write(true).truncate(false).open(&path);
        let file = file.map_err(RunError::io(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(RunError::Busy { dir: folder.to_owned() }),
            // Some network file systems have no locks; a run is worth more than the check.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                Ok(Self { _file: file })
            }
            Err(TryLockError::Error(error)) => Err(RunError::io(path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_runs_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new/output");
        let first = FolderLock::take(&folder).unwrap();
        let error = FolderLock::take(&folder).unwrap_err().to_string();
        assert!(error.contains("another run is at work") && error.contains("output"), "{error}");
        drop(first);
        FolderLock::take(&folder).unwrap();
    }
}
