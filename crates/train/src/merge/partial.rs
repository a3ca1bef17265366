//! The folder that a merge is written into until it is whole.
//!
//! It lies beside the folder to make, under a name that nobody else has, and is renamed at the end. A merge
//! that fails removes it. A killed merge cannot: the next merge to the same place removes what it left, which
//! is known by a marker that no living process holds locked.

use super::MergeError;
use crate::folders::parent;
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Says that a merge made the folder; locked while the merge is at work.
const MARKER: &str = ".model-garden-merge";

pub(super) struct PartialFolder {
    folder: TempDir,
    _marker: File,
}

impl PartialFolder {
    /// Makes a folder beside `output`, and removes those that killed merges to `output` left.
    pub fn make(output: &Path) -> Result<Self, MergeError> {
        let parent = parent(output);
        garden_files::create_folder(parent).map_err(MergeError::io(parent))?;
        let prefix = prefix(output);
        left_by_killed_merges(parent, &prefix).iter().for_each(|folder| drop(fs::remove_dir_all(folder)));
        let folder = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(MergeError::io(parent))?;
        let path = folder.path().join(MARKER);
        let marker = File::create_new(&path).map_err(MergeError::io(&path))?;
        // Without locks, as on some network file systems, no folder is ever taken for left behind.
        let _ = marker.try_lock();
        Ok(Self { folder, _marker: marker })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder, now whole, its name.
    pub fn place(self, output: &Path) -> Result<(), MergeError> {
        let marker = self.path().join(MARKER);
        fs::remove_file(&marker).map_err(MergeError::io(&marker))?;
        garden_files::rename(self.path(), output).map_err(MergeError::io(output))?;
        // Renamed away: nothing is left for the guard to remove.
        let _ = self.folder.keep();
        Ok(())
    }
}

fn prefix(output: &Path) -> String {
    format!(".{}.merge-", output.file_name().unwrap_or_default().to_string_lossy())
}

/// Folders of this prefix whose marker nobody holds, and that hold only files, as a merge's do.
fn left_by_killed_merges(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let is_left = |folder: &Path| {
        let marker = File::options().write(true).open(folder.join(MARKER));
        let only_files = || {
            let entries = fs::read_dir(folder).map(|entries| entries.collect::<Result<Vec<_>, _>>());
            let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
            matches!(entries, Ok(Ok(entries)) if entries.iter().all(is_file))
        };
        marker.is_ok_and(|marker| marker.try_lock().is_ok()) && only_files()
    };
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let ours =
        entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()));
    ours.map(|entry| entry.path()).filter(|folder| is_left(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_whole_folder_takes_its_name_and_leaves_nothing_beside_it() {
        let top = tempfile::tempdir().unwrap();
        let output = top.path().join("deep/merged");
        let partial = PartialFolder::make(&output).unwrap();
        fs::write(partial.path().join("model.safetensors"), "weights").unwrap();
        partial.place(&output).unwrap();
        assert_eq!(names(&output), ["model.safetensors"]);
        assert_eq!(names(&top.path().join("deep")), ["merged"]);
    }

    #[test]
    fn what_a_killed_merge_left_is_removed_and_nothing_else_is() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        for file in [
            ".merged.merge-killed/.model-garden-merge",
            ".merged.merge-killed/model.safetensors",
            // Not to this output, without the marker, or with a folder that no merge makes.
            ".other.merge-killed/.model-garden-merge",
            ".merged.merge-mine/model.safetensors",
            ".merged.merge-photos/.model-garden-merge",
            ".merged.merge-photos/photos/one.png",
            "merged.partial/thesis.odt",
        ] {
            fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs::write(path(file), "").unwrap();
        }
        let at_work = PartialFolder::make(&path("merged")).unwrap();
        let second = PartialFolder::make(&path("merged")).unwrap();
        assert!(at_work.path().exists() && second.path().exists(), "a merge at work is left alone");
        drop((at_work, second));
        let left = [".merged.merge-mine", ".merged.merge-photos", ".other.merge-killed", "merged.partial"];
        assert_eq!(names(top.path()), left);
        assert!(path("merged.partial/thesis.odt").exists());
    }
}
