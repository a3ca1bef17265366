//! Tables with a header: columns are known by name, and units by the name's ending.
//!
//! `rss`, `rss_mb`, `RSS (MiB)` and `memory [GB]` are all understood; a size without a unit is bytes. Separators
//! are comma, semicolon or tab. A column that is not known is ignored, a cell that is no number is an error.

use super::{
    psrecord::excerpt,
    reader::{LineParser, Parsed},
};
use crate::{ByteSize, Sample};

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Seconds(f64),
    Step,
    Epoch,
    Size(SizeColumn, f64),
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

/// Parser of rows.
pub(super) struct Csv {
    separator: char,
    names: Vec<String>,
    columns: Vec<Column>,
}

impl Csv {
    /// Reads the header, if the line is one: two or more names, and at least one of them memory we know.
    pub(super) fn from_header(first: &[u8]) -> Option<Result<Self, String>> {
        let text = std::str::from_utf8(first).ok()?;
        let separator = [',', ';', '\t'].into_iter().max_by_key(|c| text.matches(*c).count())?;
        let names = split(text, separator);
        if names.len() < 2 || names.iter().any(|name| name.parse::<f64>().is_ok()) {
            return None;
        }
        let columns: Vec<Column> = names.iter().map(|name| Column::named(name)).collect();
        let known = columns.iter().any(|column| *column != Column::Ignored);
        let has_size = |wanted: SizeColumn| {
            columns.iter().any(|c| matches!(c, Column::Size(kind, _) if *kind == wanted))
        };
        if has_size(SizeColumn::Rss) || has_size(SizeColumn::Anon) || has_size(SizeColumn::Pss) {
            Some(Ok(Self { separator, names, columns }))
        } else if known && names.iter().all(|name| name.len() < 40 && !name.contains(": ")) {
            let found = excerpt(text);
            Some(Err(format!(
                "expected a column with memory (rss, anon, pss, memory_mb ...), found '{found}'"
            )))
        } else {
            None
        }
    }
}

impl Column {
    fn named(name: &str) -> Self {
        let (stem, unit) = stem_and_unit(name);
        let size = |kind| Self::Size(kind, unit.unwrap_or(1.0));
        match stem.as_str() {
            "t" | "time" | "seconds" | "elapsed" | "elapsed_time" | "timestamp" | "runtime"
            | "relative_time" | "datetime" | "date" | "wall_time" => Self::Seconds(1.0),
            "minutes" | "elapsed_min" | "time_min" => Self::Seconds(60.0),
            "hours" => Self::Seconds(3600.0),
            "ms" | "time_ms" | "elapsed_ms" | "timestamp_ms" => Self::Seconds(1e-3),
            "step" | "steps" | "global_step" | "iteration" | "iter" => Self::Step,
            "epoch" => Self::Epoch,
            "rss" | "ram" | "memory" | "mem" | "resident" | "process_ram" | "process_memory"
            | "memory_usage" | "rss_total" | "real" | "used" => size(SizeColumn::Rss),
            "anon" | "anonymous" | "rss_anon" | "rssanon" => size(SizeColumn::Anon),
            "file" | "rss_file" | "rssfile" => size(SizeColumn::File),
            "shmem" | "shared" | "shm" | "rss_shmem" | "rssshmem" => size(SizeColumn::Shmem),
            "swap" | "vmswap" => size(SizeColumn::Swap),
            "pss" => size(SizeColumn::Pss),
            "uss" => size(SizeColumn::Uss),
            "main_rss" => size(SizeColumn::MainRss),
            "gpu" | "gpu_memory" => size(SizeColumn::Gpu),
            "available" => size(SizeColumn::Available),
            "procs" | "processes" => Self::Procs,
            "threads" => Self::Threads,
            _ => Self::Ignored,
        }
    }
}

/// `RSS (MiB)` is `rss` in units of 2^20, `time_s` is `time`.
fn stem_and_unit(name: &str) -> (String, Option<f64>) {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let Some((last, stem)) = words.split_last().filter(|(_, stem)| !stem.is_empty()) else {
        return (words.concat(), None);
    };
    match last.as_str() {
        "s" | "sec" | "secs" | "seconds" => (stem.join("_"), None),
        "bytes" => (stem.join("_"), Some(1.0)),
        unit if !unit.starts_with(|c: char| c.is_ascii_digit()) => {
            match format!("1{unit}").parse::<ByteSize>() {
                Ok(ByteSize(bytes)) => (stem.join("_"), Some(bytes as f64)),
                Err(_) => (words.join("_"), None),
            }
        }
        _ => (words.join("_"), None),
    }
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
            return Err(format!("expected {wanted} fields as in the header, found {found}"));
        }
        let mut sample = Sample::default();
        for ((field, column), name) in fields.iter().zip(&self.columns).zip(&self.names) {
            fill_in(&mut sample, *column, field).ok_or_else(|| {
                format!("column '{name}': expected a number that is not negative, found '{}'", excerpt(field))
            })?;
        }
        Ok(Some(complete(sample)))
    }
}

/// Puts one cell where it belongs; `None` when it cannot be read.
fn fill_in(sample: &mut Sample, column: Column, field: &str) -> Option<()> {
    let missing = ["", "nan", "null", "none", "na", "-"].contains(&field.to_ascii_lowercase().as_str());
    let number = || field.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    match column {
        Column::Ignored => {}
        Column::Step if missing => sample.step = None,
        Column::Epoch if missing => sample.epoch = None,
        Column::Size(SizeColumn::Rss | SizeColumn::Anon, _) | Column::Seconds(_) if missing => return None,
        _ if missing => {}
        Column::Seconds(scale) => {
            sample.t = match field.parse::<f64>() {
                Ok(number) if number.is_finite() => number * scale,
                _ => super::lines::date_time(field)?,
            }
        }
        Column::Step => sample.step = Some(number()? as u64),
        Column::Epoch => sample.epoch = Some(number()?),
        Column::Procs => sample.procs = Some(number()? as u32),
        Column::Threads => sample.threads = Some(number()? as u32),
        Column::Size(kind, unit) => {
            let bytes = (number()? * unit) as u64;
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

/// Gives a row without an `rss` column the resident memory that its other columns imply.
fn complete(mut sample: Sample) -> Sample {
    if sample.rss == 0 {
        let split = sample.anon + sample.file + sample.shmem;
        sample.rss = if split > 0 { split } else { sample.pss.unwrap_or(0) };
    }
    sample
}
