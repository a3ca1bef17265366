//! What tells the processes of models apart: their folders, and the files in them.

use crate::models::ModelPlace;
use garden_model::Precision;
use std::{
    ffi::OsString,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What a process answers with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostKey {
    pub base: PathBuf,
    pub adapter: Option<PathBuf>,
    pub precision: Precision,
    /// The files behind the folders: another model may come to have the same name.
    weights: u64,
}

impl HostKey {
    /// Looks at the model's files. Blocks.
    pub(crate) fn new(place: &ModelPlace, precision: Precision) -> Self {
        let mut hasher = DefaultHasher::new();
        std::iter::once(&place.base)
            .chain(&place.adapter)
            .for_each(|folder| weights(folder).hash(&mut hasher));
        Self { base: place.base.clone(), adapter: place.adapter.clone(), precision, weights: hasher.finish() }
    }

    /// Whether it is of a model that lies in this folder or below it.
    pub(super) fn is_below(&self, folder: &Path) -> bool {
        self.base.starts_with(folder)
            || self.adapter.as_ref().is_some_and(|adapter| adapter.starts_with(folder))
    }

    /// Whether it has the folders of another key and not its files.
    pub(super) fn is_older(&self, other: &Self) -> bool {
        (&self.base, &self.adapter) == (&other.base, &other.adapter) && self.weights != other.weights
    }
}

/// The files of a model in a folder, by what tells one file from another that took its name.
fn weights(folder: &Path) -> Vec<(OsString, u64, u64, i64, i64)> {
    let is_weights = |name: &OsString| {
        let name = name.to_string_lossy();
        ["config.json", "adapter_config.json"].contains(&&*name) || name.ends_with(".safetensors")
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.file_name()).filter(is_weights).filter_map(|name| {
        let file = std::fs::metadata(folder.join(&name)).ok()?;
        Some((name, file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_took_the_name_of_another_has_a_key_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("two");
        let key = |precision| {
            let name = "merged:two".to_owned();
            HostKey::new(
                &ModelPlace { base_name: name.clone(), name, base: base.clone(), adapter: None },
                precision,
            )
        };
        let write = || {
            std::fs::create_dir(&base).unwrap();
            std::fs::write(base.join("model.safetensors"), "same length").unwrap();
        };
        write();
        let (first, smaller) = (key(Precision::AsStored), key(Precision::Bits4));
        assert_eq!(first, key(Precision::AsStored));
        garden_files::rename(&base, root.path().join("one")).unwrap();
        write();
        let second = key(Precision::AsStored);
        assert_ne!(first, second);
        assert!(first.is_older(&second) && smaller.is_older(&second) && !second.is_older(&second));
    }
}
