//! Reading a trace, whatever wrote it.
//!
//! The first line that is not blank decides the format; from then on every line goes to that format's parser,
//! which yields samples or says what it expected instead. Clocks are rebased to the first sample, nothing else
//! is changed: restarts and jumps of the clock are for the reader of the samples to judge.

use super::text_log::TextLog;
use super::{
    TraceError, TraceHeader, csv::Csv, jsonl::Jsonl, lines::Lines, mprof::Mprof, psrecord::Psrecord,
};
use crate::{RunFacts, Sample};
use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

/// Who wrote the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Our own JSON lines.
    Jsonl,
    /// Comma, semicolon or tab separated values with a header.
    Csv,
    /// `psrecord --log`.
    Psrecord,
    /// `mprof run`.
    Mprof,
    /// A training log with lines such as `Step 10 ... RAM: 5552 MB`.
    TextLog,
}

impl TraceFormat {
    /// What a line with a figure looks like, for error messages.
    fn expected(self) -> &'static str {
        match self {
            Self::Jsonl => r#"lines such as {"t": 1.0, "step": 1, "rss": 5552000000, ...}"#,
            Self::Csv => "rows below the header",
            Self::Psrecord => "lines of elapsed seconds, CPU %, real MB, virtual MB",
            Self::Mprof => "lines such as 'MEM 162.4 1718000000.5'",
            Self::TextLog => "lines such as 'Step 10 ... RAM: 5552 MB'",
        }
    }
}

/// What a parser made of a line: a sample, nothing, or what it expected instead.
pub(super) type Parsed = Result<Option<Sample>, String>;

/// A format, line by line.
pub(super) trait LineParser {
    /// Takes one line in.
    fn line(&mut self, line: &[u8]) -> Parsed;

    /// Gives what is still held back at the end of the file.
    fn finish(&mut self) -> Option<Sample> {
        None
    }

    /// Whether `line`, the last of the file and without a line break, is the beginning of a longer one.
    fn is_torn(&self, _line: &[u8]) -> bool {
        false
    }
}

/// Samples of a trace file, one after the other.
pub struct TraceReader {
    path: PathBuf,
    header: TraceHeader,
    format: TraceFormat,
    lines: Lines<BufReader<File>>,
    parser: Box<dyn LineParser + Send>,
    /// A sample that sniffing the format already produced.
    ready: Option<Sample>,
    start: Option<f64>,
    samples: u64,
    done: bool,
    notes: Vec<String>,
}

impl TraceReader {
    /// Opens a trace and finds out its format; the samples are then read by iterating.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref().to_owned();
        let io_error = |source| TraceError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io_error)?;
        let mut lines = Lines::new(BufReader::with_capacity(1 << 16, file));
        let first = loop {
            match lines.next().map_err(io_error)? {
                None => return Err(TraceError::Empty { path }),
                Some(line) if line.trim_ascii().is_empty() => {}
                Some(line) => break line.to_vec(),
            }
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let malformed = |what| TraceError::Malformed { path: path.clone(), line: lines.number, what };
        let opening = Opening::sniff(&first, name).map_err(malformed)?;
        let Opening { format, header, parser, ready } = opening;
        Ok(Self {
            header,
            format,
            lines,
            parser,
            ready,
            start: None,
            samples: 0,
            done: false,
            notes: Vec::new(),
            path,
        })
    }

    /// The header; for formats that have none, one with the file's name and no facts.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Who wrote the file.
    pub fn format(&self) -> TraceFormat {
        self.format
    }

    /// What should be said about the file besides its samples, complete once all were read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn read_next(&mut self) -> Result<Option<Sample>, TraceError> {
        if let Some(sample) = self.ready.take() {
            return Ok(Some(sample));
        }
        loop {
            let io_error = |source| TraceError::Io { path: self.path.clone(), source };
            let Some(line) = self.lines.next().map_err(io_error)?.map(<[u8]>::to_vec) else {
                return Ok(self.parser.finish());
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            match self.parser.line(&line) {
                Ok(Some(sample)) => return Ok(Some(sample)),
                Ok(None) => {}
                Err(_) if !self.lines.terminated && self.parser.is_torn(&line) => {
                    let number = self.lines.number;
                    self.notes
                        .push(format!("Line {number}, the last, is cut off in its middle and was left out."));
                }
                Err(what) => {
                    return Err(TraceError::Malformed {
                        path: self.path.clone(),
                        line: self.lines.number,
                        what,
                    });
                }
            }
        }
    }

    /// Counts time from the first sample where the file counts it from 1970.
    fn rebase(&mut self, mut sample: Sample) -> Sample {
        /// Later than any run lasts, earlier than any run was made: three years, in seconds.
        const LONGEST_RUN: f64 = 1e8;
        let start = *self.start.get_or_insert(if sample.t > LONGEST_RUN { sample.t } else { 0.0 });
        sample.t -= start;
        sample
    }
}

impl Iterator for TraceReader {
    type Item = Result<Sample, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.read_next() {
            Ok(Some(sample)) => {
                self.samples += 1;
                Some(Ok(self.rebase(sample)))
            }
            Ok(None) => {
                self.done = true;
                (self.samples == 0).then(|| {
                    let (path, lines, expected) =
                        (self.path.clone(), self.lines.number, self.format.expected());
                    Err(TraceError::NoFigures { path, lines, expected })
                })
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }
}

/// What the first line tells.
struct Opening {
    format: TraceFormat,
    header: TraceHeader,
    parser: Box<dyn LineParser + Send>,
    ready: Option<Sample>,
}

impl Opening {
    fn sniff(first: &[u8], name: String) -> Result<Self, String> {
        let plain = TraceHeader::new(name, RunFacts::default());
        if let Some(header) = Jsonl::header(first) {
            return Ok(Self {
                format: TraceFormat::Jsonl,
                header: header?,
                parser: Box::new(Jsonl),
                ready: None,
            });
        }
        let (format, mut parser): (_, Box<dyn LineParser + Send>) = if Psrecord::recognises(first) {
            (TraceFormat::Psrecord, Box::new(Psrecord))
        } else if Mprof::recognises(first) {
            (TraceFormat::Mprof, Box::new(Mprof::default()))
        } else if let Some(csv) = Csv::from_header(first) {
            return Ok(Self { format: TraceFormat::Csv, header: plain, parser: Box::new(csv?), ready: None });
        } else {
            (TraceFormat::TextLog, Box::new(TextLog::new()))
        };
        let ready = parser.line(first)?;
        Ok(Self { format, header: plain, parser, ready })
    }
}
