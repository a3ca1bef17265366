//! Flags that several `memory` commands share, and how their values are written.

use super::{
    limit::{Limit, can_be_left},
    overwrite::{self, Input, Output},
};
use crate::advice::memory::name_flags;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use garden_memory::{
    ByteSize, LinePattern, RunFacts, SizeUnit, StepPatterns, TimeUnit, TraceHeader, TraceOptions,
    TraceWriter,
    probe::{memory_available, memory_ceiling},
    report::Run,
};
use std::{
    io::{IsTerminal, stdout},
    path::{Path, PathBuf},
    time::Duration,
};

/// What is shown while watching.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A live screen.
    Tui,
    /// A line per interval and a summary.
    Text,
    /// A JSON object per interval and one for the summary.
    Json,
}

impl Format {
    /// The screen where there is a terminal, lines elsewhere.
    pub fn for_terminal() -> Self {
        if stdout().is_terminal() { Self::Tui } else { Self::Text }
    }
}

/// What is known about a run.
#[derive(clap::Args)]
pub struct Known {
    /// Rows in the dataset.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    dataset_size: Option<u64>,
    /// Rows used by one optimizer step: batch size x accumulation x ranks.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    samples_per_step: Option<u64>,
    /// Steps in an epoch, where that is known directly.
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    steps_per_epoch: Option<f64>,
    /// The limit, for instance 32GB or 30GiB. For a live process also a percentage of what the machine or the
    /// control group has, for instance 80%. Without it, forecasts for a live process use the memory that is
    /// left.
    #[arg(long, value_name = "SIZE|PERCENT")]
    limit: Option<Limit>,
}

impl Known {
    /// The facts about a recorded run, as the library takes them.
    pub fn facts_of_file(&self) -> Result<RunFacts> {
        let limit = match self.limit {
            Some(Limit::Percent(percent)) => bail!(
                "--limit {percent}% is a part of a machine's memory, and a file does not say of which machine: \
                 write a size, such as --limit 32GB"
            ),
            Some(Limit::Bytes(bytes)) => Some(bytes),
            None => None,
        };
        Ok(self.facts(limit))
    }

    fn facts(&self, limit: Option<u64>) -> RunFacts {
        RunFacts {
            dataset_size: self.dataset_size,
            samples_per_step: self.samples_per_step,
            steps_per_epoch: self.steps_per_epoch,
            limit,
            leave_free: None,
        }
    }
}

/// Where steps and epochs stand in lines that no known form covers.
#[derive(clap::Args)]
pub struct Patterns {
    /// Find the step in lines by this regular expression: its group `step`, or its first.
    #[arg(long, value_name = "REGEX")]
    step_pattern: Option<LinePattern>,
    /// Find the epoch in lines by this regular expression: its group `epoch`, or its first.
    #[arg(long, value_name = "REGEX")]
    epoch_pattern: Option<LinePattern>,
}

impl Patterns {
    /// The patterns as the library takes them.
    pub fn steps(&self) -> StepPatterns {
        StepPatterns { step: self.step_pattern.clone(), epoch: self.epoch_pattern.clone() }
    }
}

/// How to read a trace or log that does not say enough itself.
#[derive(clap::Args)]
pub struct Reading {
    #[command(flatten)]
    patterns: Patterns,
    /// Find memory in the lines of a log by this regular expression. Its group `memory`, or its first, is the
    /// number; its group `unit`, or its second, is the unit.
    #[arg(long, value_name = "REGEX", conflicts_with = "column")]
    memory_pattern: Option<LinePattern>,
    /// The column of a table, or the key of a log, that holds memory.
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// Which process, rank or run to judge where a file has several: its name, such as 'rank 1', or the last
    /// word of it. By default the one that held the most at the end.
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    /// The unit of that column, or of figures in a log that have none: B, kB, MB, GB, KiB, MiB or GiB.
    #[arg(long, value_name = "UNIT")]
    unit: Option<SizeUnit>,
    /// The unit of a table's times: s, ms, us, ns, min or h.
    #[arg(long, value_name = "UNIT")]
    time_unit: Option<TimeUnit>,
}

impl Reading {
    /// Reads a file and judges it; sentences about it name the flags that help.
    pub fn read(&self, path: &Path, told: &RunFacts) -> Result<Run> {
        let options = TraceOptions {
            steps: self.patterns.steps(),
            memory: self.memory_pattern.clone(),
            column: self.column.clone(),
            process: self.process.clone(),
            unit: self.unit,
            time_unit: self.time_unit,
        };
        let mut run = Run::read(path, told, &options)?;
        name_flags(&mut run.assessment);
        Ok(run)
    }
}

/// How to look, and what is known about the run.
#[derive(clap::Args)]
pub struct Options {
    /// Time between two readings.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Take readings for this long, for instance 90s, 30m or 12h.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Write the readings to this file as they come; `memory analyze` and `memory report` read it. An
    /// existing trace is replaced, any other file is not.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// What the run is called in reports; its command if not given.
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    #[command(flatten)]
    known: Known,
    /// Leave this much available to others, on the machine or in the control group, whichever has less. The
    /// limit is then what the command uses plus what is available, minus this; it moves with what others use.
    #[arg(long, value_name = "SIZE", conflicts_with = "limit")]
    leave_free: Option<ByteSize>,
}

impl Options {
    /// What is known about the run, with its limit in bytes.
    pub fn facts(&self) -> Result<RunFacts> {
        let ceiling = || memory_ceiling().context("the machine does not say how much memory it has");
        let limit = match self.known.limit {
            Some(Limit::Bytes(bytes)) => Some(bytes),
            Some(Limit::Percent(percent)) => Some((ceiling()? as f64 * percent / 100.0) as u64),
            None => None,
        };
        if let Some(ByteSize(free)) = self.leave_free {
            memory_available().context("the machine does not say how much memory is available")?;
            can_be_left(free, ceiling()?)?;
        }
        Ok(RunFacts { leave_free: self.leave_free.map(|free| free.0), ..self.known.facts(limit) })
    }

    /// Opens the trace before anything is watched, so that a wrong path is reported at once. It replaces an
    /// older trace, but never one of `inputs` or another file.
    pub fn trace(&self, command: &str, facts: &RunFacts, inputs: Vec<Input>) -> Result<Option<TraceWriter>> {
        let name = self.name.as_deref().unwrap_or(command);
        overwrite::refuse(&inputs, &[Output::of("--out", self.out.as_ref())])?;
        if let Some(path) = &self.out {
            overwrite::refuse_foreign("--out", path)?;
        }
        let create = |path: &PathBuf| {
            TraceWriter::create(path, &TraceHeader::new(name, facts.clone()))
                .context("the trace cannot be written")
        };
        self.out.as_ref().map(create).transpose()
    }
}

/// `75us`, `500ms`, `1s`, `1.5m`, `2h`, `1d`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a time: write a number with a unit, such as 500ms, 1s, 30m or 12h");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "us" => 1e-6,
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())
}

/// A time between two readings.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_secs(3600);
    let interval = parse_duration(text)?;
    let fits = (SHORTEST..=LONGEST).contains(&interval);
    fits.then_some(interval).ok_or_else(|| format!("'{text}' is out of range: from 5ms to 1h"))
}

/// A number above zero.
pub fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("'{text}' is not a number above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_units() {
        let cases = [("500ms", 500), ("1s", 1000), ("2", 2000), ("1.5m", 90_000), ("2h", 7_200_000)];
        for (text, milliseconds) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(parse_duration("75us"), Ok(Duration::from_micros(75)));
        for text in ["", "s", "-1s", "1 fortnight", "1..2s", "99999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_is_neither_zero_nor_endless() {
        assert!(parse_interval("1ms").is_err() && parse_interval("2h").is_err());
        assert_eq!(parse_interval("20ms"), Ok(Duration::from_millis(20)));
    }
}
