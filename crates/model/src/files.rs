//! Small files, written whole or not at all.
//!
//! In come a path and its content; out comes a file that appears under its name only once it is on disk.

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
    let placed = written.and_then(|()| std::fs::rename(&partial, path));
    if placed.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&partial);
    }
    placed
}
