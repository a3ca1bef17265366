//! Traces on disk: samples in, one line each; lines in, samples out.
//!
//! Our own format is JSON lines: a [`TraceHeader`], then one [`Sample`](crate::Sample) a line, bytes throughout.
//! [`TraceReader`] also understands the logs of other tools and ordinary training logs. Both sides are streams:
//! no trace is ever held in memory as a whole, and what cannot be read is an error with its line number.

mod csv;
mod jsonl;
mod lines;
mod mprof;
mod psrecord;
mod reader;
mod text_log;
mod writer;

pub use reader::{TraceFormat, TraceReader};
pub use writer::TraceWriter;

use crate::RunFacts;
use serde::{Deserialize, Serialize};
use std::{io, path::PathBuf};

/// The value of the header's `trace` key in the version that this crate writes.
pub const TRACE_VERSION: &str = "model-garden/1";

/// The first line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// The version of the format, [`TRACE_VERSION`].
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
    /// There is nothing in the file.
    #[error("{}: the file is empty; expected a trace, a CSV, a psrecord or mprof log, or a training log", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has lines, but not one memory figure.
    #[error(
        "{}: none of the {lines} lines holds a memory figure; expected {expected}", path.display()
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
