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
}

impl DataDir {
    /// Makes the folder where it is missing, readable by nobody else, and takes its lock for as long as the file
    /// given back lives.
    pub(crate) fn open(root: &Path) -> Result<(Self, File), DataDirError> {
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source| DataDirError::Io { path, source }
        };
        fs::create_dir_all(root).map_err(fault(root))?;
        let root = fs::canonicalize(root).map_err(fault(root))?;
        private(&root)?;
        let data = Self { root };
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

    /// A data folder that a server may have now: for what is changed beside it, such as the keys. The folder is made
    /// where it is missing.
    pub(crate) fn beside(root: &Path) -> Result<Self, DataDirError> {
        let fault = |source| DataDirError::Io { path: root.to_owned(), source };
        fs::create_dir_all(root).map_err(fault)?;
        let root = fs::canonicalize(root).map_err(fault)?;
        private(&root)?;
        Ok(Self { root })
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

/// Shuts everybody else out.
fn private(root: &Path) -> Result<(), DataDirError> {
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
    fs::set_permissions(root, mode).map_err(|source| DataDirError::Io { path: root.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
