//! Tables of several processes or runs: either a column says whose each row is, or each has a memory column
//! of its own.

use super::{input::Input, key, lines::Lines};
use std::io;

/// A column that says whose a row is: its place in the table and what it names, such as `rank`.
pub(super) struct WriterColumn {
    at: usize,
    kind: &'static str,
}

/// Whose a row is.
pub(super) struct RowWriter {
    /// `None` where the row does not say.
    pub(super) name: Option<String>,
    /// Whether rows of other names are of other writers: one process may also have followed another.
    pub(super) is_certain: bool,
}

/// A column with the memory of one of several runs, ranks or processes.
pub(super) struct ColumnOfOne {
    pub(super) at: usize,
    /// Whose it is.
    pub(super) name: String,
}

/// The columns that together say whose a row is: run, host, and the process within them (a rank before a
/// worker before a process).
pub(super) fn writer_columns(names: &[String]) -> Vec<WriterColumn> {
    let find = |wanted: &[&str], kind: &'static str| {
        let fits = |name: &String| wanted.contains(&key::words(name).join("_").as_str());
        names.iter().position(fits).map(|at| WriterColumn { at, kind })
    };
    let run = find(&["run", "run_id", "run_name"], "run");
    let host = find(&["host", "hostname", "node", "node_rank"], "host");
    let process = find(&["rank", "global_rank", "process_rank"], "rank")
        .or_else(|| find(&["local_rank"], "local rank"))
        .or_else(|| find(&["worker", "worker_id"], "worker"))
        .or_else(|| find(&["pid", "process_id"], "pid"))
        .or_else(|| find(&["process", "process_name", "process_index"], "process"));
    [run, host, process].into_iter().flatten().collect()
}

/// Whether a cell holds nothing.
pub(super) fn is_missing(field: &str) -> bool {
    ["", "nan", "null", "none", "na", "n/a", "-"].contains(&field.to_ascii_lowercase().as_str())
}

/// Whose a row is, by the columns that say it.
pub(super) fn of_row(columns: &[WriterColumn], fields: &[String]) -> RowWriter {
    let parts: Vec<String> = columns
        .iter()
        .filter_map(|WriterColumn { at, kind }| {
            let field = fields.get(*at).filter(|field| !is_missing(field))?;
            Some(format!("{kind} {field}"))
        })
        .collect();
    let may_follow = columns.iter().all(|column| ["pid", "process"].contains(&column.kind));
    RowWriter { name: (!parts.is_empty()).then(|| parts.join(", ")), is_certain: !may_follow }
}

/// The columns with the same figure as the one at `memory`, each of another run, rank or process.
pub(super) fn alike(
    names: &[String],
    memory: usize,
    candidates: impl Iterator<Item = usize>,
) -> Vec<ColumnOfOne> {
    let Some((_, wanted)) = parted(&names[memory]) else { return Vec::new() };
    let named = |at: usize| {
        let (name, metric) = parted(&names[at])?;
        (metric == wanted).then_some(ColumnOfOne { at, name })
    };
    candidates.filter_map(named).collect()
}

/// Splits a column's name into whose it is and what it measures: `lake-12 - system/proc.memory.rssMB` as W&B
/// exports it, `rank0_rss_mb`, `rss (rank 1)`.
fn parted(name: &str) -> Option<(String, String)> {
    const OF_PROCESS: [&str; 4] = ["rank", "pid", "process", "worker"];
    if let Some((run, metric)) = name.rsplit_once(" - ") {
        return Some((format!("run {run}"), metric.to_owned()));
    }
    let words = key::words(name);
    let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
    let at =
        (1..words.len()).find(|at| OF_PROCESS.contains(&words[at - 1].as_str()) && is_number(&words[*at]))?;
    let metric: Vec<&str> =
        words.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, w)| w.as_str()).collect();
    Some((format!("{} {}", words[at - 1], words[at]), metric.join(" ")))
}

/// Shows each row below the first `header` lines to `see`.
pub(super) fn look_through(input: &Input, header: u64, mut see: impl FnMut(&str)) -> io::Result<()> {
    let mut lines = Lines::new(input.text()?);
    loop {
        let is_row = lines.parts >= header;
        match lines.next() {
            Ok(None) => return Ok(()),
            Ok(Some(line)) if is_row => see(&String::from_utf8_lossy(line)),
            Ok(Some(_)) => {}
            // The part before a cut can still be read; the reader meets the same cut and reports it.
            Err(_) if is_row => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
