//! `metrics.jsonl`: one JSON object for each log of a run, for whoever wants to plot it.
//!
//! In come log entries; out comes a line each, flushed at once. A resumed run first writes the history of its checkpoint
//! anew, so that lines of steps that were lost do not stay.

use crate::trainer::LogEntry;
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The file's name.
pub const METRICS: &str = "metrics.jsonl";

/// An open metrics file.
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file of a run with the given history.
    pub fn open(dir: &Path, history: &[LogEntry]) -> io::Result<Self> {
        let path = dir.join(METRICS);
        let mut text = Vec::new();
        for entry in history {
            line(entry, &mut text)?;
        }
        garden_model::files::write_whole(&path, &text)?;
        let file = OpenOptions::new().append(true).open(&path)?;
        Ok(Self { path, file })
    }

    /// Adds a line.
    pub fn add(&mut self, entry: &LogEntry) -> io::Result<()> {
        let mut text = Vec::new();
        line(entry, &mut text)?;
        self.file
            .write_all(&text)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))
    }
}

fn line(entry: &LogEntry, text: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *text, entry)?;
    text.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_resumed_run_replaces_lines_that_were_lost() {
        let entry = |step| LogEntry { epoch: 0.0, step, values: BTreeMap::from([("loss".into(), 1.5)]) };
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(dir.path(), &[]).unwrap();
        (1..=3).for_each(|step| file.add(&entry(step)).unwrap());
        let mut resumed = MetricsFile::open(dir.path(), &[entry(1)]).unwrap();
        resumed.add(&entry(2)).unwrap();
        let text = std::fs::read_to_string(dir.path().join(METRICS)).unwrap();
        assert_eq!(
            text,
            "{\"epoch\":0.0,\"step\":1,\"loss\":1.5}\n{\"epoch\":0.0,\"step\":2,\"loss\":1.5}\n"
        );
    }
}
