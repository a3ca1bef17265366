//! Traces on disk: written as a run goes, and read whatever wrote them.
//!
//! Our own format is JSON lines: a [`TraceHeader`], then one [`Sample`](crate::Sample) a line, in bytes
//! throughout. [`TraceReader`] also reads the logs of other tools and ordinary training logs, compressed or
//! not. Reading and writing are streams: no trace is held in memory as a whole, except tables that must be
//! sorted. An error names the line it is about.

mod figure;
mod formats;
mod input;
mod key;
mod lines;
mod options;
mod reader;
mod survey;
mod table_writers;
mod writer;
mod writers;

pub use formats::format_names;
pub use options::TraceOptions;
pub use reader::TraceReader;
pub use writer::TraceWriter;

use crate::{RunFacts, units::counted};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// The value of the header's `trace` key in the version that this crate writes.
pub(crate) const TRACE_VERSION: &str = "model-garden/1";

/// The first line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// The version of the format: `model-garden/1`.
    pub trace: String,
    /// What the run is called.
    #[serde(default)]
    pub name: String,
    /// What is known of the run.
    #[serde(flatten)]
    pub facts: RunFacts,
}

impl TraceHeader {
    /// The header of a run called `name`.
    pub fn new(name: impl Into<String>, facts: RunFacts) -> Self {
        Self { trace: TRACE_VERSION.to_owned(), name: name.into(), facts }
    }
}

/// Whether a new trace may take the place of the file at `path`: if that is a trace, or empty.
pub fn may_replace_trace(path: &Path) -> io::Result<bool> {
    // Enough for the key that every header begins with.
    const BEGINNING: u64 = 64;
    let mut beginning = Vec::new();
    File::open(path)?.take(BEGINNING).read_to_end(&mut beginning)?;
    let (family, _) = TRACE_VERSION.split_once('/').unwrap_or((TRACE_VERSION, ""));
    let header = format!("{{\"trace\":\"{family}/");
    Ok(beginning.is_empty() || beginning.starts_with(header.as_bytes()))
}

/// Why a trace could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not what the format asks for.
    #[error("{}:{line}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What was found and what was expected.
        what: String,
    },
    /// A table has no column with memory that is known.
    #[error("{}:{line}: {what}", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The line of the header, counted from 1.
        line: u64,
        /// What was found and what was expected.
        what: String,
    },
    /// Memory figures have no unit, and more than one would fit.
    #[error("{}: {name} has no unit, and its numbers (up to {largest}) could be in several units", path.display())]
    NoUnit {
        /// The file.
        path: PathBuf,
        /// What has no unit.
        name: String,
        /// The largest number.
        largest: f64,
    },
    /// Memory figures have neither a unit nor an owner; a device's memory is often written so.
    #[error(
        "{}: the log's memory (numbers up to {largest}) has neither a unit nor a word that says whose it is, and may \
         be a GPU's", path.display()
    )]
    NoOwner {
        /// The file.
        path: PathBuf,
        /// The largest number.
        largest: f64,
    },
    /// The process that the user wants to have judged is not in the file.
    #[error("{}: there is no process '{wanted}'; {}", path.display(), known_processes(known))]
    NoProcess {
        /// The file.
        path: PathBuf,
        /// The name that was given.
        wanted: String,
        /// The names that the file has.
        known: Vec<String>,
    },
    /// A table's rows are not in order, and there are too many to sort.
    #[error("{}: the rows are not in order, and there are more than {most}: sort the file by its time first", path.display())]
    TooManyToSort {
        /// The file.
        path: PathBuf,
        /// How many can be sorted.
        most: usize,
    },
    /// There is nothing in the file.
    #[error("{}: the file is empty; expected {}", path.display(), format_names())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has lines, but not one memory figure.
    #[error(
        "{}: no memory figure in {}; expected {expected}", path.display(), counted(*lines, "line")
    )]
    NoFigures {
        /// The file.
        path: PathBuf,
        /// How many lines were read.
        lines: u64,
        /// What a line with a figure looks like in this format.
        expected: &'static str,
    },
}

fn known_processes(names: &[String]) -> String {
    if names.is_empty() {
        "the file names no processes".to_owned()
    } else {
        format!("the file names {}", writers::listed(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_trace_may_be_replaced_and_what_else_holds_somebody_s_work_may_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        drop(TraceWriter::create(&path, &TraceHeader::new("run", RunFacts::default())).unwrap());
        assert!(may_replace_trace(&path).unwrap());
        for (content, replaceable) in [("", true), ("print('train')\n", false), ("{\"image\": 1}\n", false)] {
            fs::write(&path, content).unwrap();
            assert_eq!(may_replace_trace(&path).unwrap(), replaceable, "{content}");
        }
    }
}
