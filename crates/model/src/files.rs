//! Files and folders that appear whole or not at all, and stay.
//!
//! A file gets its name only once it is on disk, and the name is on disk too before anybody is told: a rename that its folder
//! has not written down is lost with the power.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes `bytes` beside `path`, syncs, and renames.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    place(path, |file| file.write_all(bytes))
}

/// Copies `from` beside `to`, syncs, and renames.
pub fn copy_whole(from: &Path, to: &Path) -> io::Result<()> {
    place(to, |file| io::copy(&mut File::open(from)?, file).map(drop))
}

fn place(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = File::create(&partial).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all()
    });
    let placed = written.and_then(|()| rename_synced(&partial, path));
    if placed.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&partial);
    }
    placed
}

/// Renames a file or folder and writes its new name to disk.
#[expect(clippy::disallowed_methods, reason = "the one place that renames: all others come here")]
pub fn rename_synced(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    std::fs::rename(from, &to)?;
    sync_folder(parent(to.as_ref()))
}

/// Makes a folder and those above it that are missing, and writes their names to disk.
pub fn create_folder_synced(folder: &Path) -> io::Result<()> {
    let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let made: Vec<&Path> = folder.ancestors().take_while(missing).collect();
    std::fs::create_dir_all(folder)?;
    made.into_iter().try_for_each(|made| sync_folder(parent(made)))
}

/// Makes new and changed names in a folder survive a power cut.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(folder.to_owned()));
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some network file systems cannot sync a folder, and need not; one that may be written but not read
        // cannot be opened.
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => Ok(()),
        synced => synced,
    }
}

/// The folder that a path lies in.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::init::{Plan, Preset};
    use crate::tensor_file::{Dtype, TensorSpec, TensorWriter};
    use std::cell::RefCell;
    use std::path::PathBuf;

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
    fn the_folder_of_everything_that_is_renamed_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(synced_by(|| write_whole(&path("a"), b"x").unwrap()), [folder.path()]);
        assert_eq!(synced_by(|| copy_whole(&path("a"), &path("b")).unwrap()), [folder.path()]);
        let deep = path("made/for/it");
        assert_eq!(
            synced_by(|| create_folder_synced(&deep).unwrap()),
            [path("made/for"), path("made"), folder.path().to_owned()],
            "the folders that the new ones lie in"
        );
        assert_eq!(synced_by(|| create_folder_synced(&deep).unwrap()), [""; 0].map(PathBuf::from));
        let tensor = TensorSpec { name: "t".into(), dtype: Dtype::F32, shape: vec![1] };
        let write = || {
            let mut writer = TensorWriter::create(&path("t.safetensors"), &[tensor], &[]).unwrap();
            writer.write_f32(&[1.0]).unwrap();
            writer.finish().unwrap();
        };
        assert_eq!(synced_by(write), [folder.path()]);
        let plan = Plan::new(Preset::Tiny).unwrap();
        let made = synced_by(|| assert!(plan.write(&path("model"), 1, |_| {}).is_ok()));
        assert_eq!(made.last().unwrap(), folder.path(), "the folder that the model is in");
    }
}
