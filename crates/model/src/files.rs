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
    let placed = written.and_then(|()| rename_synced(Path::new(&partial), path));
    if placed.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&partial);
    }
    placed
}

/// Renames a file or folder and writes its new name to disk.
pub fn rename_synced(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(parent)
}

/// Makes new and changed names in a folder survive a power cut.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(folder.to_owned()));
    match File::open(folder)?.sync_all() {
        // Some network file systems cannot sync a folder, and need not.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
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
