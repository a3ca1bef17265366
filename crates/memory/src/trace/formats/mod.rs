//! The formats that traces are read in: a file each, and the list of them all.
//!
//! A format is a type that implements [`TraceFormat`]: its name, how its first line is recognised, and a
//! parser of its lines. Adding one takes a file in this folder and a place in the list below; nothing else
//! knows which formats there are.

mod csv;
mod jsonl;
mod mprof;
mod psrecord;
mod text_log;

/// Every format. The first that recognises a file's first line reads the file; the last one recognises
/// everything.
pub(super) const FORMATS: &[&dyn TraceFormat] =
    &[&jsonl::Jsonl, &csv::Table, &psrecord::Psrecord, &mprof::Mprof, &text_log::Log];

use super::{TraceError, TraceHeader, TraceOptions, input::Input, survey::Order};
use crate::{RunFacts, Sample, sentence::Sentence};

/// A format of traces.
pub(super) trait TraceFormat: Sync {
    /// What a file of this format is called, with its article: `a psrecord log`.
    fn name(&self) -> &'static str;

    /// What lines with a figure look like, for error messages.
    fn expected(&self) -> &'static str;

    /// Whether a file with this first line is of this format. Blank lines and comments (lines that begin with
    /// `#`) are passed over before, unless [`begins_with_comment`](Self::begins_with_comment).
    fn recognises(&self, first: &[u8], options: &TraceOptions) -> bool;

    /// Makes the parser for a file whose first line was recognised.
    fn open(&self, file: &Beginning<'_>) -> Result<Opened, TraceError>;

    /// Whether the first line looks like a comment.
    fn begins_with_comment(&self) -> bool {
        false
    }

    /// Whether it can tell several processes in one file apart.
    fn tells_processes(&self) -> bool {
        false
    }

    /// First lines of real files of this format. A test checks that no other format recognises them.
    #[cfg(test)]
    fn first_lines(&self) -> &'static [&'static [u8]];
}

/// A file whose first line was read.
pub(super) struct Beginning<'a> {
    /// The first line that is neither blank nor a comment.
    pub(super) first: &'a [u8],
    /// Its number, counted from 1.
    pub(super) line: u64,
    /// How many parts of lines were read up to its end (see [`super::lines::Lines`]).
    pub(super) parts: u64,
    /// The whole file, for a format that must look through it.
    pub(super) input: &'a Input,
    /// What the user says of the file.
    pub(super) options: &'a TraceOptions,
}

impl Beginning<'_> {
    /// The error of a first line that is not what its format asks for.
    fn malformed(&self, what: String) -> TraceError {
        TraceError::Malformed { path: self.input.path().to_owned(), line: self.line, what }
    }
}

/// A file that is ready to be read.
pub(super) struct Opened {
    /// Reads its lines.
    pub(super) parser: Box<dyn LineParser + Send>,
    /// The first line is a header, which is not given to the parser.
    pub(super) has_header: bool,
    /// What the header says, where it says it as our own traces do.
    pub(super) header: Option<TraceHeader>,
}

impl Opened {
    /// A file whose first line is given to the parser, too.
    fn without_header(parser: impl LineParser + Send + 'static) -> Self {
        Self { parser: Box::new(parser), has_header: false, header: None }
    }

    /// A file whose first line is a header.
    fn with_header(parser: impl LineParser + Send + 'static, header: Option<TraceHeader>) -> Self {
        Self { parser: Box::new(parser), has_header: true, header }
    }
}

/// What a parser made of a line: a sample, nothing, or what it expected instead.
pub(super) type Parsed = Result<Option<Sample>, String>;

/// Reads the lines of one file.
pub(super) trait LineParser {
    /// Reads one line.
    fn line(&mut self, line: &[u8]) -> Parsed;

    /// Gives the sample that is still held back at the end of the file.
    fn finish(&mut self) -> Option<Sample> {
        None
    }

    /// What should be said of the file besides its samples.
    fn notes(&self) -> &[Sentence] {
        &[]
    }

    /// What the file says of the run besides its header.
    fn facts(&self) -> RunFacts {
        RunFacts::default()
    }

    /// The order of the samples.
    fn order(&self) -> Order {
        Order::Rising
    }

    /// Whether `line`, the last of the file and without a line break, is the beginning of a longer one.
    fn is_torn(&self, _line: &[u8]) -> bool {
        false
    }
}

/// The names of all formats, as a list in a sentence: `a psrecord log, an mprof log or a training log`.
pub fn format_names() -> String {
    let names: Vec<&str> = FORMATS.iter().map(|format| format.name()).collect();
    let (last, others) = names.split_last().expect("there are formats");
    format!("{} or {last}", others.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_first_line_belongs_to_one_format_and_what_is_left_to_the_last() {
        let options = TraceOptions::default();
        let rest = FORMATS.last().expect("there are formats").name();
        for format in FORMATS {
            let name = format.name();
            assert!(!format.first_lines().is_empty(), "{name} shows no first line");
            for first in format.first_lines() {
                let of = FORMATS.iter().filter(|format| format.recognises(first, &options));
                let mut names: Vec<&str> = of.map(|format| format.name()).collect();
                assert_eq!(names.pop(), Some(rest), "the last format recognises everything");
                let wanted: &[&str] = if name == rest { &[] } else { &[name] };
                assert_eq!(names, wanted, "{}", String::from_utf8_lossy(first));
            }
        }
    }

    #[test]
    fn a_first_line_that_looks_like_a_comment_is_not_passed_over() {
        for format in FORMATS {
            let has_comment = format.first_lines().iter().any(|first| first.starts_with(b"#"));
            assert_eq!(format.begins_with_comment(), has_comment, "{}", format.name());
        }
    }
}
