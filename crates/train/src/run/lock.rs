//! One run at a time in an output folder.
//!
//! Takes the folder and gives a lock that the system releases when the process ends, however it ends. Without
//! it, a second run would remove the first one's half-written checkpoint and prune the others. A refused run
//! leaves the folder as it found it, and makes none where there was none.

use super::RunError;
use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The file that is locked; it stays, empty, beside what a run wrote.
pub(super) const LOCK: &str = ".lock";

/// Held while a run is at work in its folder.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: File,
    folder: PathBuf,
    /// Folders that were made for it, the innermost first.
    made: Vec<PathBuf>,
}

impl FolderLock {
    /// Locks the folder, which is made if need be; an error if another run holds it.
    pub fn take(folder: &Path) -> Result<Self, RunError> {
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let made: Vec<PathBuf> = folder.ancestors().take_while(missing).map(Path::to_owned).collect();
        loop {
            garden_files::create_folder(folder).map_err(RunError::io(folder))?;
            let path = folder.join(LOCK);
            let file = File::options().create(true).write(true).truncate(false).open(&path);
            let file = file.map_err(RunError::io(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(RunError::Busy { dir: folder.to_owned() }),
                // Some network file systems have no locks; a run is worth more than the check.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(RunError::io(path)(error)),
            }
            // A run that was just refused may have removed the file between our opening and our locking it.
            let ours = file.metadata().map_err(RunError::io(&path))?;
            if fs::metadata(&path).is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
                return Ok(Self { file, folder: folder.to_owned(), made });
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let entries =
            fs::read_dir(&self.folder).map(|entries| entries.flatten().map(|entry| entry.file_name()));
        if entries.is_ok_and(|mut names| names.all(|name| name == LOCK)) {
            // Nothing was written: the run was refused. What cannot be removed does no harm.
            let _ = fs::remove_file(self.folder.join(LOCK));
            self.made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        }
        // Closing would not do: a process that another thread is about to start has the file until it runs its program.
        let _ = self.file.unlock();
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

    #[test]
    fn a_process_that_is_being_started_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(dir.path()).unwrap();
        // Between fork and exec, a child has every file of its parent.
        let _of_child = lock.file.try_clone().unwrap();
        fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
        drop(lock);
        FolderLock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_refused_run_leaves_nothing_behind_and_a_begun_one_everything() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new/output");
        drop(FolderLock::take(&folder).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "neither folder nor lock");
        fs::create_dir(dir.path().join("mine")).unwrap();
        drop(FolderLock::take(&dir.path().join("mine")).unwrap());
        assert_eq!(fs::read_dir(dir.path().join("mine")).unwrap().count(), 0, "the folder is the user's");
        let lock = FolderLock::take(&folder).unwrap();
        fs::write(folder.join("metrics.jsonl"), "").unwrap();
        drop(lock);
        assert!(folder.join(LOCK).exists() && folder.join("metrics.jsonl").exists());
    }
}
