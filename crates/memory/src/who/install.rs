//! Writes what a Python process needs to answer into a private folder.
//!
//! The folder goes in front of `PYTHONPATH`; Python imports `sitecustomize` from it as it starts.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// Where Python looks for modules first.
pub(super) const VARIABLE: &str = "PYTHONPATH";

/// The files, as they are called in the folder.
const FILES: [(&str, &str); 15] = [
    ("sitecustomize.py", include_str!("sitecustomize.py")),
    ("model_garden_who/__init__.py", ""),
    ("model_garden_who/ask.py", include_str!("ask.py")),
    ("model_garden_who/_census.py", include_str!("../../../python/python/model_garden/_census.py")),
    ("model_garden_who/_pause.py", include_str!("../../../python/python/model_garden/_pause.py")),
    ("model_garden_who/_sizes.py", include_str!("../../../python/python/model_garden/_sizes.py")),
    ("model_garden_who/_kinds.py", include_str!("../../../python/python/model_garden/_kinds.py")),
    ("model_garden_who/_graphs.py", include_str!("../../../python/python/model_garden/_graphs.py")),
    ("model_garden_who/_pages.py", include_str!("../../../python/python/model_garden/_pages.py")),
    ("model_garden_who/_heavy.py", include_str!("../../../python/python/model_garden/_heavy.py")),
    ("model_garden_who/_samples.py", include_str!("../../../python/python/model_garden/_samples.py")),
    ("model_garden_who/_chain.py", include_str!("../../../python/python/model_garden/_chain.py")),
    ("model_garden_who/_names.py", include_str!("../../../python/python/model_garden/_names.py")),
    ("model_garden_who/_explain.py", include_str!("../../../python/python/model_garden/_explain.py")),
    ("model_garden_who/_words.py", include_str!("../../../python/python/model_garden/_words.py")),
];

/// Writes the files below `folder`.
pub(super) fn install(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("model_garden_who"))?;
    FILES.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

/// The value of `PYTHONPATH` with this folder in front of what it has.
pub(super) fn python_path(folder: &Path, existing: Option<OsString>) -> OsString {
    let existing = existing.filter(|existing| !existing.is_empty());
    let rest = existing.iter().flat_map(std::env::split_paths);
    // A folder whose name holds a colon cannot stand in the list; ours has none.
    std::env::join_paths(std::iter::once(PathBuf::from(folder)).chain(rest)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_stands_before_what_the_user_has() {
        let folder = Path::new("/tmp/who");
        assert_eq!(python_path(folder, None), "/tmp/who");
        assert_eq!(python_path(folder, Some("".into())), "/tmp/who");
        assert_eq!(python_path(folder, Some("/a:/b".into())), "/tmp/who:/a:/b");
    }
}
