//! Training logs: lines that name a step and an amount of memory, such as `Step 10: ..., Process RAM: 5552
//! MB`.
//!
//! Lines without a memory figure are skipped: a log has many of them. A log may tell several amounts (the
//! process's, the machine's). A first pass counts them, and only one kind is read, so that the curve is of
//! one thing. Where several processes write into one log, the lines of one are read (see `writers`). MB is
//! 10^6 bytes and MiB 2^20, as written. Steps and epochs are read as from a running command's output.

use super::{Beginning, LineParser, Opened, Parsed, TraceFormat};
use crate::{
    RunFacts, Sample,
    sentence::Sentence,
    steps::{LineReader, Progress, StepBoard, plain},
    trace::{
        TraceError, TraceOptions,
        figure::{self, Found, Wanted},
        input::Input,
        key::Subject,
        lines::{Lines, excerpt, time_in_line},
        options::{assumed, only_unit},
        writers::{Choice, MOST_WRITERS, Unknown, Writers, signature},
    },
    units::{counted, number, unit_bytes},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// A longer line is a dumped array or an encoded image, not a line of progress.
const LONGEST_LINE: usize = 64 << 10;

/// The kind of a figure; only figures of one kind make a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    subject: Subject,
    has_unit: bool,
}

impl Kind {
    fn of(found: &Found) -> Option<(Self, f64)> {
        match *found {
            Found::Bytes(subject, bytes) => Some((Self { subject, has_unit: true }, bytes)),
            Found::Bare(subject, number) => Some((Self { subject, has_unit: false }, number)),
            Found::Bad(_) => None,
        }
    }
}

/// The format. Any text is a log: it is the last in the list.
pub(super) struct Log;

impl TraceFormat for Log {
    fn name(&self) -> &'static str {
        "a training log"
    }

    fn expected(&self) -> &'static str {
        "lines such as 'Step 10 ... RAM: 5552 MB' or {\"step\": 10, \"rss_mb\": 5552}"
    }

    fn recognises(&self, _first: &[u8], _options: &TraceOptions) -> bool {
        true
    }

    fn open(&self, file: &Beginning<'_>) -> Result<Opened, TraceError> {
        Ok(Opened::without_header(TextLog::new(file.input, file.options)?))
    }

    fn tells_processes(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn first_lines(&self) -> &'static [&'static [u8]] {
        &[b"Step 10: RAM: 5552 MB", br#"{"step": 10, "rss_mb": 5552}"#, b"\xff\xfe\x00"]
    }
}

/// The parser of its lines.
struct TextLog {
    options: TraceOptions,
    /// The kind that is read; `None` where there is none.
    kind: Option<Kind>,
    /// The unit assumed for figures without one, in bytes.
    bare_unit: Option<f64>,
    /// Whose lines are read, where several processes wrote the log.
    writer: Option<Choice>,
    steps: LineReader,
    /// Reads lines of other processes, whose bars must not be mixed with those of the one that is judged.
    other_steps: LineReader,
    board: StepBoard,
    /// The epoch that was told since the last sample. Repeating an older one would look like an epoch that
    /// stands still.
    epoch: Option<f64>,
    /// Whether the log tells epochs as positions in the run, such as 0.12.
    tells_position: bool,
    /// Time of the last line that had one.
    time: f64,
    notes: Vec<Sentence>,
}

/// What a log holds, kind by kind.
#[derive(Default)]
struct Survey {
    /// How many lines have it, and the largest number.
    kinds: BTreeMap<Kind, (u64, f64)>,
    /// Who wrote them, two at the most: more need not be known to see that there are several.
    writers: Vec<String>,
}

/// Shows each line of a log to `see`, which says whether anything was found so far.
fn look_through(input: &Input, mut see: impl FnMut(&str) -> bool) -> std::io::Result<()> {
    let mut lines = Lines::new(input.text()?);
    let mut has_found = false;
    loop {
        match lines.next() {
            Ok(Some(line)) => has_found = see(&String::from_utf8_lossy(line)),
            Ok(None) => return Ok(()),
            // The part before a cut can still be read; the reader meets the same cut and reports it.
            Err(_) if has_found => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Survey {
    fn of(input: &Input, options: &TraceOptions) -> std::io::Result<Self> {
        let mut survey = Self::default();
        look_through(input, |line| {
            survey.see(line, options);
            !survey.kinds.is_empty()
        })?;
        Ok(survey)
    }

    fn see(&mut self, text: &str, options: &TraceOptions) {
        /// More than any machine has, in whatever unit: the line is refused, and must not decide for others.
        const ABSURD: f64 = 1e18;
        let found = figures(text, options);
        if !found.is_empty() && self.writers.len() < 2 {
            let signed = signature(&plain(text)).filter(|signed| !self.writers.contains(&signed.name));
            self.writers.extend(signed.map(|signed| signed.name));
        }
        let mut seen = Vec::new();
        for (kind, number) in found.iter().filter_map(Kind::of).filter(|(_, number)| *number < ABSURD) {
            let (count, largest) = self.kinds.entry(kind).or_default();
            *largest = largest.max(number);
            if !seen.contains(&kind) {
                *count += 1;
                seen.push(kind);
            }
        }
    }

    /// Of the kinds that appear about as often as any, the one that says most plainly that it is the
    /// process's. Figures without a unit need one that is certain, and an owner: unnamed memory is often a
    /// GPU's.
    fn choose(&self) -> Option<Kind> {
        let usable = |(kind, (_, largest)): &(&Kind, &(u64, f64))| {
            kind.has_unit || (kind.subject != Subject::Unsaid && only_unit(*largest).is_some())
        };
        let most = self.kinds.iter().filter(usable).map(|(_, (count, _))| *count).max()?;
        self.kinds
            .iter()
            .filter(usable)
            .filter(|(_, (count, _))| 2 * count >= most)
            .map(|(kind, _)| *kind)
            .max()
    }

    /// Says why nothing can be read, if there are numbers of memory at all.
    fn refuse(&self, path: &Path) -> Result<(), TraceError> {
        let largest = |owned: bool| {
            let bare = |kind: &Kind| !kind.has_unit && (kind.subject != Subject::Unsaid) == owned;
            self.kinds
                .iter()
                .filter(|(kind, _)| bare(kind))
                .map(|(_, (_, largest))| *largest)
                .reduce(f64::max)
        };
        let (path, name) = (path.to_owned(), "the log's memory".to_owned());
        match (largest(true), largest(false)) {
            (Some(largest), _) => Err(TraceError::NoUnit { path, name, largest }),
            (None, Some(largest)) => Err(TraceError::NoOwner { path, largest }),
            (None, None) => Ok(()),
        }
    }
}

/// The memory that a line names, by the user's pattern or by the known forms.
fn figures(line: &str, options: &TraceOptions) -> Vec<Found> {
    if line.len() > LONGEST_LINE {
        return Vec::new();
    }
    let line = plain(line);
    let given = options.unit.map(|unit| unit.0 as f64);
    let Some(pattern) = &options.memory else {
        return figure::find(&line, Wanted { key: options.column.as_deref(), unit: given });
    };
    let Some(digits) = pattern.find(&line, "memory", 1) else { return Vec::new() };
    let unit = pattern.find(&line, "unit", 2).map(|unit| unit_bytes(unit.trim()).map(|bytes| bytes as f64));
    let found = match (number(digits.trim(), true), unit.unwrap_or(given), unit) {
        (Some(number), Some(bytes), _) => Found::Bytes(Subject::Process, number * bytes),
        (Some(number), None, None) => Found::Bare(Subject::Process, number),
        _ => Found::Bad(format!(
            "expected a number with its unit where the pattern matches, found '{}'",
            excerpt(&line)
        )),
    };
    vec![found]
}

impl TextLog {
    /// Looks through the log and settles what is read from it.
    fn new(input: &Input, options: &TraceOptions) -> Result<Self, TraceError> {
        let io_error = |source| TraceError::Io { path: input.path().to_owned(), source };
        let survey = Survey::of(input, options).map_err(io_error)?;
        let kind = survey.choose();
        let mut log = Self {
            options: options.clone(),
            kind,
            bare_unit: None,
            writer: None,
            steps: LineReader::new(options.steps.clone()),
            other_steps: LineReader::new(options.steps.clone()),
            board: StepBoard::default(),
            epoch: None,
            tells_position: false,
            time: 0.0,
            notes: Vec::new(),
        };
        match kind {
            None => survey.refuse(input.path())?,
            Some(kind) => log.settle(kind, &survey),
        }
        if survey.writers.len() > 1 || options.process.is_some() {
            log.choose_writer(input)?;
        }
        Ok(log)
    }

    /// Settles whose lines are read, where several processes wrote the log.
    fn choose_writer(&mut self, input: &Input) -> Result<(), TraceError> {
        let mut writers = Writers::default();
        let mut steps = LineReader::new(self.options.steps.clone());
        let mut telling = BTreeSet::new();
        look_through(input, |line| {
            let signed = signature(&plain(line)).filter(|_| line.len() <= LONGEST_LINE);
            let (name, is_certain) =
                signed.map_or((None, false), |signed| (Some(signed.name), signed.is_certain));
            if !telling.contains(&name) && telling.len() < MOST_WRITERS {
                let mut tells = false;
                steps.read(line, |_, progress| tells |= progress.step.is_some());
                if tells {
                    telling.insert(name.clone());
                }
            }
            if let Ok(Some(amount)) = self.amount(line) {
                writers.see(name, is_certain, None, amount);
            }
            true
        })
        .map_err(|source| TraceError::Io { path: input.path().to_owned(), source })?;
        telling.iter().for_each(|name| writers.see_step(name));
        let wanted = self.options.process.as_deref();
        self.writer = writers.choose(wanted).map_err(|Unknown(known)| TraceError::NoProcess {
            path: input.path().to_owned(),
            wanted: wanted.unwrap_or_default().to_owned(),
            known,
        })?;
        self.notes.extend(self.writer.as_ref().and_then(|choice| choice.note("log")));
        Ok(())
    }

    /// Whether a line is one of the process that is judged.
    fn is_judged(&self, line: &str) -> bool {
        let written_by = || signature(&plain(line)).map(|signed| signed.name);
        self.writer.as_ref().is_none_or(|writer| writer.name == written_by())
    }

    fn settle(&mut self, kind: Kind, survey: &Survey) {
        let (_, largest) = survey.kinds[&kind];
        if let Some(unit) = only_unit(largest).filter(|_| !kind.has_unit) {
            self.bare_unit = Some(unit.0 as f64);
            self.notes.push(assumed("The log's memory", unit, largest));
        }
        if kind.subject == Subject::Machine {
            self.notes.push("The log tells the memory of the whole machine, not of one process.".into());
        }
        if kind.subject == Subject::Unsaid {
            self.notes
                .push("The log does not say whose memory it tells: it was taken for the process's.".into());
        }
        let other: u64 = survey
            .kinds
            .iter()
            .filter(|(other, _)| other.subject != kind.subject && other.has_unit)
            .map(|(_, (count, _))| count)
            .sum();
        if other > 0 {
            let figures = counted(other, "line");
            let whose = match kind.subject {
                Subject::Process | Subject::Proportional | Subject::Unique => "the process's memory was read",
                Subject::Ram => "main memory was read",
                Subject::Unsaid | Subject::Machine => "the most frequent kind was read",
            };
            let note = format!(
                "The log tells several kinds of memory: {whose}; {figures} of another kind left out."
            );
            self.notes.push(note.into());
        }
    }

    /// The amount that is read from a line.
    fn amount(&self, line: &str) -> Result<Option<f64>, String> {
        let found = figures(line, &self.options);
        let wanted = found.iter().filter_map(Kind::of).find(|(kind, _)| Some(*kind) == self.kind);
        match wanted {
            Some((kind, number)) => {
                Ok(Some(if kind.has_unit { number } else { number * self.bare_unit.unwrap_or(1.0) }))
            }
            None => found
                .into_iter()
                .find_map(|found| match found {
                    Found::Bad(what) => Some(Err(what)),
                    _ => None,
                })
                .unwrap_or(Ok(None)),
        }
    }
}

impl LineParser for TextLog {
    fn line(&mut self, line: &[u8]) -> Parsed {
        if line.len() > LONGEST_LINE {
            return Ok(None);
        }
        let text: Cow<'_, str> = String::from_utf8_lossy(line);
        let is_judged = self.is_judged(&text);
        // Ranks advance together, so where the judged one tells no steps, those of others are used.
        let is_foreign = !is_judged && self.writer.as_ref().is_some_and(|writer| writer.tells_steps);
        let (board, mut epoch) = (&self.board, None);
        let mut number = None;
        let steps = if is_foreign { &mut self.other_steps } else { &mut self.steps };
        steps.read(&text, |source, mut progress| {
            if is_foreign {
                progress = Progress { step: None, epoch: None, epoch_number: None, ..progress };
            }
            epoch = progress.epoch.or(epoch);
            number = progress.epoch_number.or(number);
            board.report(source, progress);
        });
        // A whole number counts from 0 or from 1, nobody knows: it is not mixed with positions.
        self.tells_position |= epoch.is_some();
        self.epoch = epoch.or(number.filter(|_| !self.tells_position)).or(self.epoch);
        self.time = time_in_line(&text).filter(|_| !is_foreign).unwrap_or(self.time);
        if !is_judged {
            return Ok(None);
        }
        let Some(bytes) = self.amount(&text)? else { return Ok(None) };
        let step = self.board.now(&RunFacts::default()).step;
        let rss = bytes.round() as u64;
        Ok(Some(Sample { t: self.time, step, epoch: self.epoch.take(), rss, ..Sample::default() }))
    }

    fn notes(&self) -> &[Sentence] {
        &self.notes
    }

    fn facts(&self) -> RunFacts {
        self.board.facts(&RunFacts::default())
    }
}
