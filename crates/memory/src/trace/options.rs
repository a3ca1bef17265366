//! What the user says of a file that does not say enough itself.

use crate::{
    sentence::{Sentence, Setting},
    steps::{LinePattern, StepPatterns},
    units::{SizeUnit, TimeUnit},
};

/// How a file is to be read; the default is by what it says itself.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// Where steps and epochs stand in the lines of a log.
    pub steps: StepPatterns,
    /// Where memory stands in the lines of a log: the group named `memory`, or the first, is the number; the
    /// group named `unit`, or the second, its unit.
    pub memory: Option<LinePattern>,
    /// The column of a table, or the key of a log, that holds memory.
    pub column: Option<String>,
    /// Which of several processes is judged: its name, such as `rank 1`, or the last word of it.
    pub process: Option<String>,
    /// The unit of that column, or of figures in a log that have none.
    pub unit: Option<SizeUnit>,
    /// The unit of the column with the time.
    pub time_unit: Option<TimeUnit>,
}

/// The only unit that memory without one can have, given the largest number that was seen.
///
/// A process that trains has between 200 MB and 100 GB, or says bytes. Between these lie numbers that could
/// be two units: kB or MB, MB or GB or a percentage. Nothing is assumed of them.
pub(super) fn only_unit(largest: f64) -> Option<SizeUnit> {
    const MEGABYTES: std::ops::Range<f64> = 200.0..100_000.0;
    const BYTES: f64 = 1e7;
    match largest {
        _ if MEGABYTES.contains(&largest) => Some(SizeUnit(1_000_000)),
        _ if largest >= BYTES => Some(SizeUnit(1)),
        _ => None,
    }
}

/// How an assumed unit is told.
pub(super) fn assumed(name: &str, unit: SizeUnit, largest: f64) -> Sentence {
    let unit = if unit == SizeUnit(1) { "bytes" } else { "MB" };
    let text = format!("{name} has no unit: its numbers, {largest} at the most, were taken for {unit}.");
    Sentence::about(Setting::SizeUnit, text)
}
