//! What a run leaves beside its adapter: metrics, event files, a model card, a report.
//!
//! In come the state and the logs of a run; out come files that other tools read. Files that are replaced are written under a
//! temporary name, synced and renamed.

mod chart;
pub mod loggers;
pub mod metrics;
pub mod mlflow;
pub mod summary;
pub mod tensorboard;

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Replaces a file as a whole: after a crash it is the old one or the new one.
pub fn write_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let mut file = File::create(&partial)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&partial, path)
}
