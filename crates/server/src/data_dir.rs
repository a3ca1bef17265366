//! The data folder: where each thing lies.
//!
//! Every path of the server is made here, from ids that were checked. One server has a data folder at a time:
//! it holds the lock for its life.

use crate::id::Kind;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The data folder of a server.
#[derive(Debug, Clone)]
pub(crate) struct DataDir {
    root: PathBuf,
}

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DataDirError {
    #[error("{}: another server has this data folder", path.display())]
    InUse { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{}: this folder holds other things, and a server makes its data folder its own and private; \
         name a folder that is new or empty",
        path.display()
    )]
    NotOurs { path: PathBuf },
}

/// A folder that has one of these is a server's.
const MARKS: [&str; 4] = ["server.lock", "keys.json", "keys.lock", "garden.sqlite"];

impl DataDir {
    /// Makes the folder where it is missing, readable by nobody else, and takes its lock for as long as the file
    /// given back lives.
    pub(crate) fn open(root: &Path) -> Result<(Self, File), DataDirError> {
        let data = Self::beside(root)?;
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source| DataDirError::Io { path, source }
        };
        for folder in ["blobs", "files", "uploads", "jobs", "models", "cache", "empty"] {
            let path = data.root.join(folder);
            fs::create_dir_all(&path).map_err(fault(&path))?;
        }
        let path = data.root.join("server.lock");
        let lock = File::create(&path).map_err(fault(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok((data, lock)),
            Err(fs::TryLockError::WouldBlock) => Err(DataDirError::InUse { path: data.root }),
            Err(fs::TryLockError::Error(source)) => Err(DataDirError::Io { path, source }),
        }
    }

    /// A data folder that a server may have now: for what is changed beside it, such as the keys. The folder
    /// is made where it is missing, and private. One that holds other things is refused: it is somebody's
    /// home, perhaps.
    pub(crate) fn beside(root: &Path) -> Result<Self, DataDirError> {
        let fault = |source| DataDirError::Io { path: root.to_owned(), source };
        fs::create_dir_all(root).map_err(fault)?;
        let root = fs::canonicalize(root).map_err(fault)?;
        let is_ours = MARKS.iter().any(|mark| root.join(mark).exists());
        if !is_ours && !is_empty(&root).map_err(fault)? {
            return Err(DataDirError::NotOurs { path: root });
        }
        private(&root)?;
        Ok(Self { root })
    }

    /// A data folder to look at: nothing is made or changed, and it may be missing.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The index.
    pub(crate) fn database(&self) -> PathBuf {
        self.root.join("garden.sqlite")
    }

    /// Named keys, hashed.
    pub(crate) fn keys(&self) -> PathBuf {
        self.root.join("keys.json")
    }

    /// Webhook endpoints and their secrets.
    pub(crate) fn webhooks(&self) -> PathBuf {
        self.root.join("webhooks.json")
    }

    /// Webhook events that were not received yet.
    pub(crate) fn undelivered(&self) -> PathBuf {
        self.root.join("webhooks")
    }

    /// The folder of all contents, by their hashes.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// The folder of one content; nothing where `sha256` is no hash.
    pub(crate) fn blob(&self, sha256: &str) -> Option<PathBuf> {
        let is_hash =
            sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hash.then(|| self.blobs().join(sha256))
    }

    /// The record of a file; nothing where `id` is no file's.
    pub(crate) fn file(&self, id: &str) -> Option<PathBuf> {
        Kind::File.names(id).then(|| self.files().join(format!("{id}.json")))
    }

    /// The folder of an upload; nothing where `id` is no upload's.
    pub(crate) fn upload(&self, id: &str) -> Option<PathBuf> {
        Kind::Upload.names(id).then(|| self.uploads().join(id))
    }

    /// The records of all files.
    pub(crate) fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    /// The folders of unfinished uploads.
    pub(crate) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    /// The folders of all jobs.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.root.join("jobs")
    }

    /// The folder of a job; nothing where `id` is no job's.
    pub(crate) fn job(&self, id: &str) -> Option<PathBuf> {
        Kind::Job.names(id).then(|| self.jobs().join(id))
    }

    /// Merged models.
    pub(crate) fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// Where children run: nothing lies here, so no name that a client gives is a relative path to anything.
    pub(crate) fn empty(&self) -> PathBuf {
        self.root.join("empty")
    }

    /// What children may cache: indexes of datasets, models from the hub.
    pub(crate) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }
}

/// Whether a folder holds nothing but what a file system puts there.
fn is_empty(folder: &Path) -> io::Result<bool> {
    let mut names = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name()));
    names.try_fold(true, |empty, name| Ok(empty && name? == "lost+found"))
}

/// Shuts everybody else out.
fn private(root: &Path) -> Result<(), DataDirError> {
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
    fs::set_permissions(root, mode).map_err(|source| DataDirError::Io { path: root.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_second_server_is_refused_and_ids_that_are_paths_have_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (data, lock) = DataDir::open(folder.path()).unwrap();
        assert!(matches!(DataDir::open(folder.path()), Err(DataDirError::InUse { .. })));
        drop(lock);
        assert!(DataDir::open(folder.path()).is_ok());
        assert_eq!(data.job("ftjob-abc"), Some(data.jobs().join("ftjob-abc")));
        assert_eq!(data.job("ftjob-../../etc"), None);
    }

    #[test]
    fn a_folder_that_holds_other_things_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mode = || fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777;
        let open = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        open(0o755);
        fs::write(folder.path().join("letter.txt"), "dear").unwrap();
        for refused in [DataDir::open(folder.path()).err(), DataDir::beside(folder.path()).err()] {
            assert!(matches!(refused, Some(DataDirError::NotOurs { .. })), "{refused:?}");
        }
        assert_eq!((mode(), fs::read_dir(folder.path()).unwrap().count()), (0o755, 1));
        fs::remove_file(folder.path().join("letter.txt")).unwrap();
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        assert!(DataDir::open(folder.path()).is_ok() && mode() == 0o700, "an empty one is taken");
        fs::write(folder.path().join("letter.txt"), "dear").unwrap();
        open(0o755);
        assert!(DataDir::open(folder.path()).is_ok() && mode() == 0o700, "it is ours from then on");
    }
}
