//! Names that survive a power cut.
//!
//! Takes folders to make, names to change and folders to sync. When a function returns, the names it made are on disk.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// Renames a file or a folder and writes its new name to disk.
#[expect(clippy::disallowed_methods, reason = "the one place that renames: all others come here")]
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    std::fs::rename(from, &to)?;
    sync_folder(parent(to.as_ref()))
}

/// Makes a folder and the missing ones above it, and writes their names to disk.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let made: Vec<PathBuf> = folder.ancestors().take_while(missing).map(Path::to_owned).collect();
    std::fs::create_dir_all(folder)?;
    made.iter().try_for_each(|made| sync_folder(parent(made)))
}

/// Makes new and changed names in a folder survive a power cut.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(folder.to_owned()));
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some network file systems cannot sync a folder, and need not. A folder that may be written but not read
        // cannot be opened.
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => Ok(()),
        synced => synced,
    }
}

/// The folder that a path lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PartialFile, copy, write};
    use std::{cell::RefCell, io::Write};

    thread_local! {
        /// Every folder that this thread synced.
        pub static SYNCED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    fn synced_by(act: impl FnOnce()) -> Vec<PathBuf> {
        SYNCED.take();
        act();
        SYNCED.take()
    }

    #[test]
    fn the_folder_of_every_new_name_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(synced_by(|| write(&path("a"), b"x").unwrap()), [folder.path()]);
        assert_eq!(synced_by(|| copy(&path("a"), &path("b")).unwrap()), [folder.path()]);
        assert_eq!(synced_by(|| rename(path("b"), path("c")).unwrap()), [folder.path()]);
        let stream = || {
            let mut file = PartialFile::create(&path("d")).unwrap();
            file.write_all(b"x").unwrap();
            file.keep().unwrap();
        };
        assert_eq!(synced_by(stream), [folder.path()]);
        let deep = path("made/for/it");
        assert_eq!(
            synced_by(|| create_folder(&deep).unwrap()),
            [path("made/for"), path("made"), folder.path().to_owned()],
            "the folders that the new ones lie in"
        );
        assert_eq!(synced_by(|| create_folder(&deep).unwrap()), [""; 0].map(PathBuf::from));
    }
}
