//! What children keep of contents in their cache: rows written out, and indexes.
//!
//! Takes the paths of contents. What the cache holds of a content goes with it. What a child that was killed
//! left behind belongs to nothing, and whoever shows or cleans the disk finds it here.

use crate::data_dir::DataDir;
use garden_data::{CACHE_FOLDERS, cached_as};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

/// Removes what the cache holds of a content. If something stays behind, [`leftovers`] finds it.
pub(super) fn forget(data: &DataDir, content: &Path) {
    let Ok(prefix) = cached_as(content) else { return };
    for (path, name) in entries(data) {
        if name.starts_with(&prefix) {
            let _ = fs::remove_file(path);
        }
    }
}

/// What the cache holds of contents that are gone, and what was never finished.
pub(crate) fn leftovers(data: &DataDir) -> Vec<PathBuf> {
    let folders = fs::read_dir(data.blobs()).into_iter().flatten().flatten();
    let contents = folders.filter_map(|folder| fs::read_dir(folder.path()).ok()).flatten().flatten();
    let owners: HashSet<String> = contents.filter_map(|content| cached_as(&content.path()).ok()).collect();
    let owned = |name: &str| owners.iter().any(|owner| name.starts_with(owner.as_str()));
    // Datasets of the hub have copies too, which are not of contents: those of contents end with a content's
    // name.
    let of_content = |name: &str| name.contains("-rows.");
    let left = |name: &str| name.ends_with(".partial") || (of_content(name) && !owned(name));
    entries(data).filter(|(_, name)| left(name)).map(|(path, _)| path).collect()
}

/// The paths in the cache, and their names without the dot of a hidden one.
fn entries(data: &DataDir) -> impl Iterator<Item = (PathBuf, String)> {
    let folders = CACHE_FOLDERS.map(|folder| data.cache().join(folder));
    let found = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    found.map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (entry.path(), name.strip_prefix('.').unwrap_or(&name).to_owned())
    })
}
