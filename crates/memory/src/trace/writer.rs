//! Writes a trace as the run goes.
//!
//! Each sample is one whole line in one write to the file, without a buffer in between: a watcher that is
//! killed loses at most the sample it was writing.

use super::{TraceError, TraceHeader};
use crate::Sample;
use serde::Serialize;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// Appends samples to a trace file.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
}

impl TraceWriter {
    /// Starts a new trace at `path`, replacing a file that is there.
    pub fn create(path: impl AsRef<Path>, header: &TraceHeader) -> Result<Self, TraceError> {
        let path = path.as_ref().to_owned();
        let file = File::create(&path).map_err(|source| TraceError::Io { path: path.clone(), source })?;
        let mut writer = Self { path, file, line: Vec::new() };
        writer.write_line(header)?;
        Ok(writer)
    }

    /// Writes one sample; it is in the file when this returns.
    pub fn append(&mut self, sample: &Sample) -> Result<(), TraceError> {
        self.write_line(sample)
    }

    fn write_line(&mut self, value: &impl Serialize) -> Result<(), TraceError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, value).map_err(|error| self.io_error(error.into()))?;
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(|source| self.io_error(source))
    }

    fn io_error(&self, source: std::io::Error) -> TraceError {
        TraceError::Io { path: self.path.clone(), source }
    }
}
