//! `metrics.jsonl`: one JSON object for each log of a run, for whoever wants to plot it.
//!
//! Writes each log entry as a line, flushed at once. A resumed run keeps all lines up to its checkpoint and
//! drops those of steps that were lost. The file is complete, while the history in the checkpoint of a long
//! run is thinned.

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
        let last = history.last().map_or(0, |entry| entry.step);
        let (before, at_last): (Vec<_>, Vec<_>) = history.iter().partition(|entry| entry.step < last);
        // Entries of the last step itself may have been logged after the checkpoint, and will be logged once
        // more.
        let mut text = lines_before(&path, last)?;
        if text.iter().filter(|byte| **byte == b'\n').count() < before.len() {
            // The checkpoint is from another folder, or somebody shortened the file.
            text.clear();
            before.iter().try_for_each(|entry| line(entry, &mut text))?;
        }
        at_last.iter().try_for_each(|entry| line(entry, &mut text))?;
        garden_files::write(&path, &text)?;
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

/// The whole lines of a file for steps before this one.
fn lines_before(path: &Path, step: u64) -> io::Result<Vec<u8>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let is_before = |line: &&[u8]| {
        line.ends_with(b"\n") && serde_json::from_slice::<LogEntry>(line).is_ok_and(|entry| entry.step < step)
    };
    Ok(text.split_inclusive(|byte| *byte == b'\n').filter(is_before).flatten().copied().collect())
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
    fn a_resumed_run_keeps_the_lines_that_its_history_has_thinned_out() {
        let entry = |step| LogEntry { epoch: 0.0, step, values: BTreeMap::from([("loss".into(), 1.5)]) };
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(dir.path(), &[]).unwrap();
        (1..=9).for_each(|step| file.add(&entry(step)).unwrap());
        MetricsFile::open(dir.path(), &[1, 3, 7].map(entry)).unwrap();
        let text = std::fs::read_to_string(dir.path().join(METRICS)).unwrap();
        assert_eq!(text.lines().count(), 7, "1 to 7: {text}");
        let other = tempfile::tempdir().unwrap();
        MetricsFile::open(other.path(), &[1, 3, 7].map(entry)).unwrap();
        let text = std::fs::read_to_string(other.path().join(METRICS)).unwrap();
        assert_eq!(text.lines().count(), 3, "in another folder there is only the history: {text}");
    }

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
