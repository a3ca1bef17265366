//! What the rows of a table tell together: how large the numbers are, and in which order the rows stand.

use super::{input::Input, lines::Lines};
use std::io;

/// Numbers above this count from 1970, in whatever unit.
const SINCE_1970: f64 = 1e8;

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// In the order of time, except at restarts.
    Rising,
    /// Not in the order of their times.
    ShuffledTimes,
    /// Not in the order of their steps, and without times.
    ShuffledSteps,
}

/// What one pass through all rows finds, in constant memory.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The largest number in the column with memory.
    pub(super) largest: Option<f64>,
    rows: u64,
    last: f64,
    lowest: f64,
    highest: f64,
    /// How often the place falls, and how often it stays above the lowest before, which a restarted run does
    /// not.
    falls: u64,
    falls_inside: u64,
    is_whole: bool,
    is_minutes: bool,
}

/// What the survey wants to know of a row.
#[derive(Default)]
pub(super) struct SeenRow {
    /// Its figure for memory, where it has one without a unit.
    pub(super) memory: Option<f64>,
    /// Its time, or its step where there is no time.
    pub(super) place: Option<f64>,
}

impl Survey {
    /// Looks through the rows below the first `header` lines; `read` reads one.
    pub(super) fn of(input: &Input, header: u64, read: impl Fn(&str) -> SeenRow) -> io::Result<Self> {
        let mut lines = Lines::new(input.text()?);
        let mut survey = Self { is_whole: true, is_minutes: true, ..Self::default() };
        loop {
            let is_row = lines.parts >= header;
            match lines.next() {
                Ok(None) => return Ok(survey),
                Ok(Some(line)) => {
                    let text = String::from_utf8_lossy(line);
                    survey.see(if is_row { read(&text) } else { SeenRow::default() });
                }
                // The part before a cut can still be read; the reader meets the same cut and reports it.
                Err(_) if survey.rows > 0 => return Ok(survey),
                Err(error) => return Err(error),
            }
        }
    }

    fn see(&mut self, SeenRow { memory, place }: SeenRow) {
        /// More than any machine has, in whatever unit: the row is refused, and must not decide the unit of
        /// the others.
        const ABSURD: f64 = 1e15;
        if let Some(memory) = memory.filter(|memory| *memory < ABSURD) {
            self.largest = Some(self.largest.map_or(memory, |largest: f64| largest.max(memory)));
        }
        let Some(place) = place else { return };
        if self.rows == 0 {
            (self.last, self.lowest, self.highest) = (place, place, place);
        }
        self.rows += 1;
        self.falls += u64::from(place < self.last);
        self.falls_inside += u64::from(place < self.last && place > self.lowest);
        self.last = place;
        (self.lowest, self.highest) = (self.lowest.min(place), self.highest.max(place));
        self.is_whole &= place.fract() == 0.0;
        self.is_minutes &= place.rem_euclid(60.0) == 0.0;
    }

    /// Whether times without a unit can only be milliseconds: nobody looks at a process every 400 seconds or
    /// more, unless by the minute.
    pub(super) fn counts_milliseconds(&self) -> bool {
        const LONGEST_INTERVAL: f64 = 400.0;
        let is_relative = self.highest < SINCE_1970;
        let interval = (self.highest - self.lowest) / self.rows.saturating_sub(1).max(1) as f64;
        is_relative && self.rows > 2 && interval > LONGEST_INTERVAL && self.is_whole && !self.is_minutes
    }

    /// Seconds between two rows, where the number is so large and round that it may be milliseconds.
    pub(super) fn odd_interval(&self) -> Option<f64> {
        const USUAL: f64 = 30.0;
        let interval = (self.highest - self.lowest) / self.rows.saturating_sub(1).max(1) as f64;
        let is_odd = self.highest < SINCE_1970 && self.is_whole && !self.is_minutes && interval > USUAL;
        is_odd.then_some(interval)
    }

    /// Rows that fall back once in a while were written by runs that began again; rows that fall back often
    /// are shuffled.
    pub(super) fn order(&self, has_times: bool) -> Order {
        /// One fall in this many rows.
        const OFTEN: u64 = 20;
        let is_often = self.falls > 0 && self.falls * OFTEN >= self.rows;
        let is_shuffled = is_often && (self.falls_inside > 0 || self.falls * 2 > self.rows);
        match has_times {
            _ if !is_shuffled => Order::Rising,
            true => Order::ShuffledTimes,
            false => Order::ShuffledSteps,
        }
    }
}
