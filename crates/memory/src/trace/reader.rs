//! Reads a trace, whatever wrote it.
//!
//! The first line that is neither blank nor a comment decides the format. From then on that format's parser
//! reads every line and gives samples or says what it expected instead. Lines that cannot be read are left
//! out and counted; a file with many of them is refused, with the first as the reason. Clocks are rebased to
//! the first sample and shuffled tables are sorted. Nothing else is changed: restarts and jumps of the clock
//! are left to the analyst.

use super::{
    TraceError, TraceHeader,
    formats::{Beginning, FORMATS, LineParser, Opened, TraceFormat},
    input::Input,
    lines::Lines,
    options::TraceOptions,
    survey::Order,
};
use crate::{ByteSize, RunFacts, Sample, sentence::Sentence, units::part};
use std::{
    io::{self, BufRead},
    path::Path,
};

/// A file is refused if more than one line in this many cannot be read.
const READABLE: u64 = 10;
/// At most this many rows are sorted: they take 100 MB.
const MOST_SORTED: usize = 500_000;
/// No machine has more memory, no run lasts longer: a petabyte, and the seconds of thirty thousand years.
const MOST_BYTES: u64 = 1 << 50;
const LAST_SECOND: f64 = 1e12;

/// Samples of a trace file, one after the other.
pub struct TraceReader {
    input: Input,
    header: TraceHeader,
    format: &'static dyn TraceFormat,
    lines: Lines<Box<dyn BufRead + Send>>,
    parser: Box<dyn LineParser + Send>,
    /// All samples in their order, where the file has them shuffled.
    sorted: Option<std::vec::IntoIter<Sample>>,
    start: Option<f64>,
    samples: u64,
    unreadable: Unreadable,
    done: bool,
    notes: Vec<Sentence>,
}

/// Lines that were left out.
#[derive(Default)]
struct Unreadable {
    count: u64,
    /// Number of the first, and what was expected of it.
    first: Option<(u64, String)>,
}

impl TraceReader {
    /// Opens a trace, or standard input for `-`, and finds out its format; the samples are then read by
    /// iterating.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::open_with(path, &TraceOptions::default())
    }

    /// The same, with what the user says of the file.
    pub fn open_with(path: impl AsRef<Path>, options: &TraceOptions) -> Result<Self, TraceError> {
        let input = Input::open(path.as_ref())?;
        let Recognised { format, opened, header_parts } = recognise(&input, options)?;
        let io_error = |source| TraceError::Io { path: input.path().to_owned(), source };
        let mut lines = Lines::new(input.text().map_err(io_error)?);
        while lines.parts < header_parts && lines.next().map_err(io_error)?.is_some() {}
        let unnamed = || TraceHeader::new(name(input.path()), RunFacts::default());
        Ok(Self {
            header: opened.header.unwrap_or_else(unnamed),
            format,
            lines,
            parser: opened.parser,
            sorted: None,
            start: None,
            samples: 0,
            unreadable: Unreadable::default(),
            done: false,
            notes: Vec::new(),
            input,
        })
    }

    /// The header; for formats that have none, one with the file's name and no facts.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// What the lines of a log say of the run (the size of its dataset, of a step), complete once all were
    /// read.
    pub fn facts(&self) -> RunFacts {
        self.parser.facts()
    }

    /// What should be said about the file besides its samples, complete once all were read.
    pub fn notes(&self) -> &[Sentence] {
        &self.notes
    }

    fn next_in_order(&mut self) -> Result<Option<Sample>, TraceError> {
        let order = self.parser.order();
        if order == Order::Rising {
            return self.read_next();
        }
        if self.sorted.is_none() {
            self.sorted = Some(self.sort(order)?.into_iter());
        }
        Ok(self.sorted.as_mut().and_then(Iterator::next))
    }

    fn sort(&mut self, order: Order) -> Result<Vec<Sample>, TraceError> {
        let mut samples = Vec::new();
        while let Some(sample) = self.read_next()? {
            if samples.len() == MOST_SORTED {
                return Err(TraceError::TooManyToSort {
                    path: self.input.path().to_owned(),
                    most: MOST_SORTED,
                });
            }
            samples.push(sample);
        }
        let by = if order == Order::ShuffledTimes {
            samples.sort_by(|a: &Sample, b| a.t.total_cmp(&b.t));
            "time"
        } else {
            samples.sort_by_key(|sample| sample.step);
            "step"
        };
        self.notes.push(format!("The rows were not in the order of their {by} and were sorted.").into());
        Ok(samples)
    }

    fn read_next(&mut self) -> Result<Option<Sample>, TraceError> {
        loop {
            let has_begun = self.lines.parts > 0;
            let line = match self.lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(self.parser.finish()),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && has_begun => {
                    self.notes
                        .push("The compressed file is cut off; what stands before the cut was read.".into());
                    return Ok(self.parser.finish());
                }
                Err(source) => return Err(TraceError::Io { path: self.input.path().to_owned(), source }),
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line = line.to_vec();
            match self.parser.line(&line).and_then(|sample| sample.map(plausible).transpose()) {
                Ok(Some(sample)) => return Ok(Some(sample)),
                Ok(None) => {}
                Err(_) if !self.lines.terminated && self.parser.is_torn(&line) => {
                    let number = self.lines.number;
                    let note = format!("Line {number}, the last, is cut off in its middle and was left out.");
                    self.notes.push(note.into());
                }
                Err(what) => {
                    self.unreadable.count += 1;
                    self.unreadable.first.get_or_insert((self.lines.number, what));
                }
            }
        }
    }

    /// What is said at the end of the file: that it had no figures, that too many lines were unreadable, or
    /// what was left out.
    fn conclude(&mut self) -> Option<TraceError> {
        self.notes.extend_from_slice(self.parser.notes());
        let path = || self.input.path().to_owned();
        let Unreadable { count, first } = std::mem::take(&mut self.unreadable);
        let Some((line, what)) = first else {
            let expected = self.format.expected();
            return (self.samples == 0).then(|| TraceError::NoFigures {
                path: path(),
                lines: self.lines.number,
                expected,
            });
        };
        let all = self.samples + count;
        if count * READABLE > all {
            let others = if count > 1 {
                format!(" ({} cannot be read)", part(count, all, "line"))
            } else {
                String::new()
            };
            return Some(TraceError::Malformed { path: path(), line, what: format!("{what}{others}") });
        }
        let note = match count {
            1 => format!("{} cannot be read and was left out: line {line}, {what}.", part(1, all, "line")),
            _ => format!(
                "{count} of {all} lines cannot be read and were left out; the first is line {line}: {what}."
            ),
        };
        self.notes.push(note.into());
        None
    }

    /// Counts time from the first sample where the file counts it from 1970.
    fn rebase(&mut self, mut sample: Sample) -> Sample {
        /// Three years, in seconds: longer than any run, and earlier than any date of one.
        const LONGEST_RUN: f64 = 1e8;
        let start = *self.start.get_or_insert(if sample.t > LONGEST_RUN { sample.t } else { 0.0 });
        sample.t -= start;
        sample
    }
}

/// Refuses what no machine has.
fn plausible(sample: Sample) -> Result<Sample, String> {
    let sizes = [sample.rss, sample.anon, sample.file, sample.shmem, sample.swap];
    if let Some(size) = sizes.into_iter().find(|size| *size > MOST_BYTES) {
        return Err(format!("{} is more memory than any machine has", ByteSize(size)));
    }
    if !sample.t.is_finite()
        || sample.t.abs() > LAST_SECOND
        || sample.epoch.is_some_and(|epoch| !epoch.is_finite())
    {
        return Err("the time or the epoch is not a possible number".into());
    }
    Ok(sample)
}

impl Iterator for TraceReader {
    type Item = Result<Sample, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.next_in_order() {
            Ok(Some(sample)) => {
                self.samples += 1;
                Some(Ok(self.rebase(sample)))
            }
            Ok(None) => {
                self.done = true;
                self.conclude().map(Err)
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }
}

/// A file whose format is known.
struct Recognised {
    format: &'static dyn TraceFormat,
    opened: Opened,
    /// How many parts of lines the header has, with what stands before it.
    header_parts: u64,
}

/// Finds out the format of a file by its first line.
fn recognise(input: &Input, options: &TraceOptions) -> Result<Recognised, TraceError> {
    let path = || input.path().to_owned();
    let io_error = |source| TraceError::Io { path: path(), source };
    let is_comment = |line: &[u8]| {
        let is_first =
            |format: &&dyn TraceFormat| format.begins_with_comment() && format.recognises(line, options);
        line.starts_with(b"#") && !FORMATS.iter().any(is_first)
    };
    let mut lines = Lines::new(input.text().map_err(io_error)?);
    let first = loop {
        match lines.next().map_err(io_error)? {
            None => return Err(TraceError::Empty { path: path() }),
            Some(line) if line.trim_ascii().is_empty() || is_comment(line) => {}
            Some(line) => break line.to_vec(),
        }
    };
    let format = FORMATS.iter().find(|format| format.recognises(&first, options));
    let format = *format.expect("the last format recognises everything");
    let file = Beginning { first: &first, line: lines.number, parts: lines.parts, input, options };
    let opened = format.open(&file)?;
    if let Some(wanted) = options.process.clone().filter(|_| !format.tells_processes()) {
        return Err(TraceError::NoProcess { path: path(), wanted, known: Vec::new() });
    }
    let header_parts = if opened.has_header { lines.parts } else { 0 };
    Ok(Recognised { format, opened, header_parts })
}

/// The name of a run is that of its file, without the extensions: `run.log.gz` is `run`.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    let packed = path.extension().is_some_and(|end| end == "gz" || end == "zst");
    let stem = if packed { Path::new(stem).file_stem().unwrap_or(stem) } else { stem };
    stem.to_string_lossy().into_owned()
}
