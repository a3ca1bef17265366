//! Tables with a header: columns are known by name, and units by the name's ending.
//!
//! `rss`, `rss_mb`, `RSS (MiB)` and `memory [GB]` are all understood (see `key`). Separators are comma,
//! semicolon or tab. A first pass (`survey`) settles what the header leaves open: the unit of sizes and
//! times, and whether the rows are in order. Unknown columns are ignored and rows without memory are skipped.
//! A cell that is not a number makes its row unreadable.

use super::{Beginning, LineParser, Opened, Parsed, TraceFormat};
use crate::{
    Sample,
    sentence::{Sentence, Setting},
    trace::{
        TraceError, TraceOptions,
        figure::{self, Found, Wanted},
        input::Input,
        key,
        lines::{clock_time, date_time, excerpt, since_1970},
        options::{assumed, only_unit},
        survey::{Order, SeenRow, Survey},
        table_writers::{self, ColumnOfOne, RowWriter, WriterColumn, is_missing, writer_columns},
        writers::{Choice, Unknown, Writers},
    },
    units::{self, SizeUnit, counted, time_unit, unit_bytes},
};

/// What a column holds. A unit is `None` until it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Time(Option<f64>),
    Step,
    Epoch,
    Size(SizeColumn, Option<f64>),
    Procs,
    Threads,
    Ignored,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SizeColumn {
    Rss,
    Anon,
    File,
    Shmem,
    Swap,
    Pss,
    Uss,
    MainRss,
    Gpu,
    Available,
}

/// The format.
pub(super) struct Table;

impl TraceFormat for Table {
    fn name(&self) -> &'static str {
        "a CSV table"
    }

    fn expected(&self) -> &'static str {
        "rows below the header"
    }

    fn recognises(&self, first: &[u8], options: &TraceOptions) -> bool {
        options.memory.is_none() && Csv::from_header(first, options).is_some()
    }

    fn open(&self, file: &Beginning<'_>) -> Result<Opened, TraceError> {
        let Beginning { first, line, parts, input, options } = *file;
        let no_column = |what| TraceError::NoColumn { path: input.path().to_owned(), line, what };
        let csv = Csv::from_header(first, options).unwrap_or_else(|| Err("expected a header".to_owned()));
        let csv = csv.map_err(no_column)?.settle(input, parts, options)?;
        Ok(Opened::with_header(csv, None))
    }

    fn tells_processes(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn first_lines(&self) -> &'static [&'static [u8]] {
        &[b"step,rss_mb", b"time;RSS (MiB)", b"t\tmemory [GB]"]
    }
}

/// The parser of its rows.
struct Csv {
    separator: char,
    names: Vec<String>,
    columns: Vec<Column>,
    /// Columns with the same figure of several processes or runs, with their names.
    alike: Vec<ColumnOfOne>,
    /// Columns that say whose a row is, each with its kind.
    written_by: Vec<WriterColumn>,
    /// Whose rows are read, where the table has several processes.
    writer: Option<Choice>,
    order: Order,
    notes: Vec<Sentence>,
}

impl Csv {
    /// Reads the header, if the line is one: two or more names, and at least one of them memory.
    fn from_header(first: &[u8], options: &TraceOptions) -> Option<Result<Self, String>> {
        let text = std::str::from_utf8(first).ok()?;
        let separator = [',', ';', '\t'].into_iter().max_by_key(|c| text.matches(*c).count())?;
        let names = split(text, separator);
        if names.len() < 2
            || names.iter().any(|name| name.starts_with(|c: char| c.is_ascii_digit() || "{[+-.".contains(c)))
        {
            return None;
        }
        if figure::find(text, Wanted::default()).iter().any(|found| matches!(found, Found::Bytes(..))) {
            // A line of a log with a comma in it.
            return None;
        }
        let mut columns: Vec<Column> = names.iter().map(|name| Column::named(name)).collect();
        let all = columns.clone();
        if let Some(wanted) = &options.column {
            let at = names.iter().position(|name| name.eq_ignore_ascii_case(wanted));
            match at {
                Some(at) => take_only(&mut columns, at, &names),
                None if is_header(&names, &columns) => {
                    let found = names.join(", ");
                    return Some(Err(format!(
                        "there is no column '{wanted}'; the columns are {}",
                        excerpt(&found)
                    )));
                }
                None => return None,
            }
        } else {
            take_best(&mut columns, &names);
        }
        let memory = columns.iter().any(|column| {
            matches!(column, Column::Size(SizeColumn::Rss | SizeColumn::Anon | SizeColumn::Pss, _))
        });
        if memory && is_header(&names, &columns) {
            let written_by = writer_columns(&names);
            let (writer, order, notes) = (None, Order::Rising, Vec::new());
            let mut csv =
                Self { separator, names, columns, alike: Vec::new(), written_by, writer, order, notes };
            if options.column.is_none() {
                csv.find_alike(&all);
            }
            Some(Ok(csv))
        } else if is_header(&names, &columns) {
            let found = excerpt(text);
            Some(Err(format!(
                "expected a column with memory (rss, anon, pss, memory_mb ...), found '{found}'"
            )))
        } else {
            None
        }
    }

    /// Looks through the rows and settles what the header leaves open.
    fn settle(mut self, input: &Input, header: u64, options: &TraceOptions) -> Result<Self, TraceError> {
        let io_error = |source| TraceError::Io { path: input.path().to_owned(), source };
        self.choose_writer(input, header, options)?;
        let memory = self.memory_column();
        let time = self.columns.iter().position(|column| matches!(column, Column::Time(_)));
        let step = self.columns.iter().position(|column| *column == Column::Step);
        let survey = Survey::of(input, header, |line| {
            let fields = split(line, self.separator);
            if !self.is_judged(&fields) {
                return SeenRow::default();
            }
            let cell =
                |at: Option<usize>| fields.get(at?)?.parse::<f64>().ok().filter(|cell| cell.is_finite());
            let bare = |field: &String| size(field, self.separator).filter(|amount| amount.unit.is_none());
            // The order is that of the time, or of the step where there is no time.
            let dated = || time.and_then(|at| moment(fields.get(at)?));
            let place = if time.is_some() { cell(time).or_else(dated) } else { cell(step) };
            SeenRow { memory: fields.get(memory).and_then(bare).map(|amount| amount.number), place }
        })
        .map_err(io_error)?;
        self.settle_size(memory, &survey, options).map_err(|largest| TraceError::NoUnit {
            path: input.path().to_owned(),
            name: format!("column '{}'", self.names[memory]),
            largest,
        })?;
        if let Some(time) = time {
            self.settle_time(time, &survey, options);
        }
        self.order = survey.order(time.is_some());
        Ok(self)
    }

    /// Finds columns with the memory of several: `lake-12 - rssMB`, `pine-13 - rssMB`.
    fn find_alike(&mut self, all: &[Column]) {
        let memory = self.memory_column();
        let Column::Size(kind, _) = self.columns[memory] else { return };
        let is_kind = |column: &Column| matches!(column, Column::Size(other, _) if *other == kind);
        let candidates = (0..all.len()).filter(|at| is_kind(&all[*at]));
        self.alike = table_writers::alike(&self.names, memory, candidates);
    }

    /// Settles whose memory is read, where the table has several processes.
    fn choose_writer(
        &mut self,
        input: &Input,
        header: u64,
        options: &TraceOptions,
    ) -> Result<(), TraceError> {
        let memory = self.memory_column();
        let in_columns = self.alike.len() > 1;
        if !in_columns && self.written_by.is_empty() && options.process.is_none() {
            return Ok(());
        }
        let place = self.columns.iter().position(|column| matches!(column, Column::Time(_)));
        let mut writers = Writers::default();
        let read = |line: &str| {
            let fields = split(line, self.separator);
            let amount = |at: usize| {
                let Amount { number, unit } = size(fields.get(at)?, self.separator)?;
                Some(number * unit.unwrap_or(1.0))
            };
            let place = place.and_then(|at| {
                let field = fields.get(at)?;
                field.parse().ok().or_else(|| moment(field))
            });
            if in_columns {
                for ColumnOfOne { at, name } in &self.alike {
                    if let Some(amount) = amount(*at) {
                        writers.see(Some(name.clone()), true, None, amount);
                    }
                }
            } else if let Some(amount) = amount(memory) {
                let RowWriter { name, is_certain } = table_writers::of_row(&self.written_by, &fields);
                writers.see(name, is_certain, place, amount);
            }
        };
        table_writers::look_through(input, header, read)
            .map_err(|source| TraceError::Io { path: input.path().to_owned(), source })?;
        let wanted = options.process.as_deref();
        let choice = writers.choose(wanted).map_err(|Unknown(known)| TraceError::NoProcess {
            path: input.path().to_owned(),
            wanted: wanted.unwrap_or_default().to_owned(),
            known,
        })?;
        self.notes.extend(choice.as_ref().and_then(|choice| choice.note("table")));
        if in_columns {
            self.take_column_of(choice, memory);
        } else {
            self.writer = choice;
        }
        Ok(())
    }

    /// Reads the memory of the one that was chosen from its column.
    fn take_column_of(&mut self, choice: Option<Choice>, memory: usize) {
        let name = choice.and_then(|choice| choice.name);
        let chosen = self.alike.iter().find(|column| Some(&column.name) == name.as_ref());
        if let (Some(ColumnOfOne { at, .. }), Column::Size(kind, unit)) = (chosen, self.columns[memory]) {
            let unit = key::unit(&key::words(&self.names[*at])).or(unit);
            self.columns[memory] = Column::Ignored;
            self.columns[*at] = Column::Size(kind, unit);
        }
    }

    /// Whether a row is of the one that is judged.
    fn is_judged(&self, fields: &[String]) -> bool {
        let name = || table_writers::of_row(&self.written_by, fields).name;
        self.writer.as_ref().is_none_or(|writer| writer.name == name())
    }

    /// The column that the verdict will be about.
    fn memory_column(&self) -> usize {
        let of = |wanted| {
            self.columns.iter().position(|column| matches!(column, Column::Size(kind, _) if *kind == wanted))
        };
        of(SizeColumn::Anon).or_else(|| of(SizeColumn::Rss)).or_else(|| of(SizeColumn::Pss)).unwrap_or(0)
    }

    /// Settles the unit of sizes; the error is the largest number, if no unit is certain.
    fn settle_size(&mut self, memory: usize, survey: &Survey, options: &TraceOptions) -> Result<(), f64> {
        let Column::Size(_, named) = self.columns[memory] else { return Ok(()) };
        let given = options.unit.map(|unit| unit.0 as f64);
        let unit = match (given.or(named), survey.largest) {
            (Some(unit), _) => unit,
            (None, None) => 1.0,
            (None, Some(largest)) => {
                let SizeUnit(bytes) = only_unit(largest).ok_or(largest)?;
                let name = format!("Column '{}'", self.names[memory]);
                self.notes.push(assumed(&name, SizeUnit(bytes), largest));
                bytes as f64
            }
        };
        if let Column::Size(_, named) = &mut self.columns[memory] {
            *named = Some(unit);
        }
        for column in &mut self.columns {
            if let Column::Size(_, unit_of_it @ None) = column {
                *unit_of_it = Some(unit);
            }
        }
        Ok(())
    }

    fn settle_time(&mut self, time: usize, survey: &Survey, options: &TraceOptions) {
        let Column::Time(named) = &mut self.columns[time] else { return };
        if let Some(given) = options.time_unit {
            *named = Some(given.0);
        } else if named.is_none() {
            let milliseconds = survey.counts_milliseconds();
            *named = Some(if milliseconds { 1e-3 } else { 1.0 });
            let taken_for = if milliseconds {
                Some("milliseconds".to_owned())
            } else {
                survey.odd_interval().map(|seconds| format!("seconds, with {seconds:.0} between two rows"))
            };
            let name = &self.names[time];
            self.notes.extend(taken_for.map(|unit| {
                let text = format!("Column '{name}' has no unit: it was taken for {unit}.");
                Sentence::about(Setting::TimeUnit, text)
            }));
        }
    }
}

/// Whether the names look like a header rather than a line of a log with commas in it.
fn is_header(names: &[String], columns: &[Column]) -> bool {
    let known = columns.iter().any(|column| *column != Column::Ignored);
    known && names.iter().all(|name| name.len() < 80 && !name.contains(": ") && !name.contains('='))
}

/// Of several columns with resident memory, keeps the one whose name says most plainly that it is the
/// process's; of several with the step, the optimizer's.
fn take_best(columns: &mut [Column], names: &[String]) {
    let rank = |at: usize| key::subject(&key::words(&names[at]));
    let resident = |column: &Column| matches!(column, Column::Size(SizeColumn::Rss, _));
    let best = (0..columns.len()).filter(|at| resident(&columns[*at])).rev().max_by_key(|at| rank(*at));
    let is_global = |at: &usize| names[*at].to_lowercase().contains("global_step");
    let steps = || (0..columns.len()).filter(|at| columns[*at] == Column::Step);
    let step = steps().find(is_global).or_else(|| steps().next());
    for (at, column) in columns.iter_mut().enumerate() {
        let is_chosen = Some(at) == best || Some(at) == step;
        if (resident(column) || *column == Column::Step) && !is_chosen {
            *column = Column::Ignored;
        }
    }
}

/// The user's column is the memory, and no other.
fn take_only(columns: &mut [Column], wanted: usize, names: &[String]) {
    for column in columns.iter_mut().filter(|column| matches!(column, Column::Size(..))) {
        *column = Column::Ignored;
    }
    columns[wanted] = Column::Size(SizeColumn::Rss, key::unit(&key::words(&names[wanted])));
    take_best(columns, names);
}

impl Column {
    fn named(name: &str) -> Self {
        // Names of `nvidia-smi --query-gpu`: a process's memory is never written so.
        if ["memory.used [", "memory.free [", "memory.total ["].iter().any(|start| name.starts_with(start)) {
            return Self::Ignored;
        }
        let words = key::words(name);
        let Some((last, stem)) = words.split_last() else { return Self::Ignored };
        let all = words.join("_");
        let timed = time_unit(last).map(|seconds| (stem.join("_"), seconds));
        match timed {
            Some((stem, seconds)) if is_time(&stem) || (stem.is_empty() && last.len() > 1) => {
                return Self::Time(Some(seconds));
            }
            _ if is_time(&all) => return Self::Time(None),
            _ => {}
        }
        let unit = key::unit(&words);
        let stem = if unit.is_some() { stem.join("_") } else { all };
        let size = |kind| Self::Size(kind, unit);
        match stem.as_str() {
            "step"
            | "steps"
            | "global_step"
            | "iteration"
            | "iter"
            | "current_steps"
            | "train_global_step"
            | "trainer_global_step" => Self::Step,
            "epoch" | "train_epoch" => Self::Epoch,
            "anon" | "anonymous" | "rss_anon" | "rssanon" => size(SizeColumn::Anon),
            "file" | "rss_file" | "rssfile" => size(SizeColumn::File),
            "shmem" | "shared" | "shm" | "rss_shmem" | "rssshmem" => size(SizeColumn::Shmem),
            "swap" | "vmswap" | "vm_swap" => size(SizeColumn::Swap),
            "pss" => size(SizeColumn::Pss),
            "uss" => size(SizeColumn::Uss),
            "main_rss" => size(SizeColumn::MainRss),
            "gpu" | "gpu_memory" | "gpu_mem" => size(SizeColumn::Gpu),
            "available" => size(SizeColumn::Available),
            "procs" | "processes" => Self::Procs,
            "threads" => Self::Threads,
            "real" | "used" => size(SizeColumn::Rss),
            _ if key::subject(&words).is_some() => size(SizeColumn::Rss),
            _ => Self::Ignored,
        }
    }
}

fn is_time(stem: &str) -> bool {
    let names = [
        "t",
        "time",
        "elapsed",
        "elapsed_time",
        "timestamp",
        "runtime",
        "relative_time",
        "relative_time_process",
        "relative_time_wall",
        "datetime",
        "date",
        "wall_time",
        "walltime",
    ];
    names.contains(&stem)
}

/// Fields of a row; quotes protect separators.
fn split(line: &str, separator: char) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c == separator && !quoted => fields.push(String::new()),
            c => fields.last_mut().expect("never empty").push(c),
        }
    }
    fields.iter().map(|field| field.trim().to_owned()).collect()
}

impl LineParser for Csv {
    fn line(&mut self, line: &[u8]) -> Parsed {
        let text = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8 text".to_owned())?;
        let fields = split(text, self.separator);
        if fields.len() != self.columns.len() {
            let (wanted, found) = (self.columns.len(), fields.len());
            return Err(format!(
                "expected {} as in the header, found {found}",
                counted(wanted as u64, "field")
            ));
        }
        if is_missing(&fields[self.memory_column()]) || !self.is_judged(&fields) {
            return Ok(None);
        }
        let mut sample = Sample::default();
        for ((field, column), name) in fields.iter().zip(&self.columns).zip(&self.names) {
            if *column != Column::Ignored && !is_missing(field) {
                fill_in(&mut sample, *column, field, self.separator).ok_or_else(|| {
                    format!(
                        "column '{name}': expected a number that is not negative, found '{}'",
                        excerpt(field)
                    )
                })?;
            }
        }
        Ok(Some(complete(sample)))
    }

    fn is_torn(&self, line: &[u8]) -> bool {
        split(&String::from_utf8_lossy(line), self.separator).len() < self.columns.len()
    }

    fn notes(&self) -> &[Sentence] {
        &self.notes
    }

    fn order(&self) -> Order {
        self.order
    }
}

/// A date with its time, or a time alone.
fn moment(field: &str) -> Option<f64> {
    date_time(field).or_else(|| clock_time(field))
}

/// A number of memory, and the bytes of its unit where one is written.
struct Amount {
    number: f64,
    unit: Option<f64>,
}

/// A number of memory with the unit that stands behind it, if one does: `5552`, `5,552`, `5552 MB`, and
/// `5552,5` where commas do not part columns. There, `5,552` may be either number and is neither.
fn size(field: &str, separator: char) -> Option<Amount> {
    let plain = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    if let Some(number) = plain(field) {
        return Some(Amount { number, unit: None });
    }
    let digits = field.find(|c: char| c.is_alphabetic()).unwrap_or(field.len());
    let (digits, unit) = (field[..digits].trim_end(), &field[digits..]);
    let unit = if unit.is_empty() { None } else { Some(unit_bytes(unit)? as f64) };
    let decimal = separator != ',';
    let either = decimal && digits.rsplit_once(',').is_some_and(|(_, part)| part.len() == 3);
    let number = units::number(digits, decimal)
        .filter(|_| !either && digits.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(Amount { number, unit })
}

/// Puts one cell where it belongs; `None` when it cannot be read.
fn fill_in(sample: &mut Sample, column: Column, field: &str, separator: char) -> Option<()> {
    let number = || field.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    match column {
        Column::Ignored => {}
        Column::Time(unit) => {
            sample.t = match field.parse::<f64>() {
                Ok(number) if number.is_finite() => since_1970(number * unit.unwrap_or(1.0)),
                _ => moment(field)?,
            }
        }
        Column::Step => sample.step = Some(number()? as u64),
        Column::Epoch => sample.epoch = Some(number()?),
        Column::Procs => sample.procs = Some(number()? as u32),
        Column::Threads => sample.threads = Some(number()? as u32),
        Column::Size(kind, unit) => {
            let Amount { number, unit: written } = size(field, separator)?;
            let bytes = (number * written.or(unit).unwrap_or(1.0)) as u64;
            match kind {
                SizeColumn::Rss => sample.rss = bytes,
                SizeColumn::Anon => sample.anon = bytes,
                SizeColumn::File => sample.file = bytes,
                SizeColumn::Shmem => sample.shmem = bytes,
                SizeColumn::Swap => sample.swap = bytes,
                SizeColumn::Pss => sample.pss = Some(bytes),
                SizeColumn::Uss => sample.uss = Some(bytes),
                SizeColumn::MainRss => sample.main_rss = Some(bytes),
                SizeColumn::Gpu => sample.gpu = Some(bytes),
                SizeColumn::Available => sample.available = Some(bytes),
            }
        }
    }
    Some(())
}

/// Gives a row what its other columns imply: resident memory from its parts, and the anonymous part from the
/// rest. A verdict is about anonymous memory and swap together; a table with `rss` and `swap` alone must not
/// be judged by its swap.
fn complete(mut sample: Sample) -> Sample {
    if sample.rss == 0 {
        let split = sample.anon.saturating_add(sample.file).saturating_add(sample.shmem);
        sample.rss = if split > 0 { split } else { sample.pss.unwrap_or(0) };
    }
    if sample.anon == 0 && sample.is_split() {
        sample.anon = sample.rss.saturating_sub(sample.file).saturating_sub(sample.shmem);
    }
    sample
}
