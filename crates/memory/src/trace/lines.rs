//! Numbered lines of a file of any size, and the times in them.
//!
//! Lines end with `\n`, `\r\n` or, as progress bars write them, `\r`. All lines share one buffer. No line may
//! be longer than [`MAX_LINE`], so a file without line breaks cannot exhaust memory.

use memchr::memchr2;
use regex::Regex;
use std::{
    io::{self, BufRead},
    sync::LazyLock,
};

/// Longest line that is read.
pub(super) const MAX_LINE: usize = 16 << 20;

/// Reads lines and counts them.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// Number of the line that was read last, from 1, as an editor counts: parts between `\r` are one line.
    pub(super) number: u64,
    /// How many lines were read, where parts between `\r` count each.
    pub(super) parts: u64,
    /// Whether the last line ended in a line break; false for a line that was cut off.
    pub(super) terminated: bool,
    /// The last part ended with `\r`: the next belongs to the same line, unless it is the rest of `\r\n`.
    within: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), number: 0, parts: 0, terminated: true, within: false }
    }

    /// The next line without its line break, or `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let is_first = self.parts == 0;
        if self.within && self.input.fill_buf()?.first() == Some(&b'\n') {
            self.input.consume(1);
            self.within = false;
        }
        self.buffer.clear();
        let end = self.read_part()?;
        if self.buffer.is_empty() && end.is_none() {
            return Ok(None);
        }
        self.parts += 1;
        if !self.within {
            self.number += 1;
        }
        self.terminated = end.is_some();
        self.within = end == Some(b'\r');
        let byte_order_mark: &[u8] = if is_first { "\u{feff}".as_bytes() } else { b"" };
        Ok(Some(self.buffer.strip_prefix(byte_order_mark).unwrap_or(&self.buffer)))
    }

    /// Reads up to a line break and says which, or to the end of the input.
    fn read_part(&mut self) -> io::Result<Option<u8>> {
        loop {
            let ready = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                ready => ready?,
            };
            if ready.is_empty() {
                return Ok(None);
            }
            let end = memchr2(b'\n', b'\r', ready);
            let taken = end.unwrap_or(ready.len());
            self.buffer.extend_from_slice(&ready[..taken]);
            let end = end.map(|at| ready[at]);
            self.input.consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(end);
            }
            if self.buffer.len() > MAX_LINE {
                let what = format!(
                    "line {} is longer than {} MiB; is this a text file?",
                    self.number + u64::from(!self.within),
                    MAX_LINE >> 20
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}

/// Turns a time since 1970 in seconds, milliseconds, microseconds or nanoseconds into seconds, going by its
/// size. Any other number is returned unchanged.
pub(super) fn since_1970(number: f64) -> f64 {
    match number.abs() {
        1e17.. => number * 1e-9,
        1e14.. => number * 1e-6,
        1e11.. => number * 1e-3,
        _ => number,
    }
}

/// The time that a line of a log carries: a date near its start, or a number in a dictionary.
pub(super) fn time_in_line(line: &str) -> Option<f64> {
    static DATE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?").expect("a constant pattern")
    });
    static ENTRY: LazyLock<Regex> = LazyLock::new(|| {
        let entry = r#"['"](?:_?timestamp|time|ts|t|_runtime|elapsed)['"]\s*:\s*(\d+(?:\.\d+)?)\s*[,}]"#;
        Regex::new(entry).expect("a constant pattern")
    });
    let date = DATE.find(line).and_then(|found| date_time(found.as_str()));
    let clock = || clock_time(line.trim_start_matches(['[', ' ']).get(..8)?);
    date.or_else(clock).or_else(|| Some(since_1970(ENTRY.captures(line)?[1].parse().ok()?)))
}

/// Seconds since 1970 of `2025-11-15 19:20:00.5`, `2025-11-15T19:20:00` or `2025-11-15 19:20:00,500`, with or
/// without a zone: only differences matter here, so the zone is not looked at.
pub(super) fn date_time(text: &str) -> Option<f64> {
    let text = text.trim().trim_start_matches('[');
    let (date, time) = (text.get(..10)?, text.get(11..19)?);
    let part = |text: &str, range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (part(date, 0..4)?, part(date, 5..7)?, part(date, 8..10)?);
    let (hour, minute, second) = (part(time, 0..2)?, part(time, 3..5)?, part(time, 6..8)?);
    let punctuation = [date.get(4..5)?, date.get(7..8)?, time.get(2..3)?, time.get(5..6)?];
    if !["-", "/"].contains(&punctuation[0]) || punctuation[2..] != [":", ":"] || !(1..=12).contains(&month) {
        return None;
    }
    // Days from the civil calendar: years start in March, so that the leap day is the last of the year.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era_days = shifted_year * 365 + shifted_year.div_euclid(4) - shifted_year.div_euclid(100)
        + shifted_year.div_euclid(400);
    let days = era_days + (153 * shifted_month + 2) / 5 + day - 1 - 719_468;
    let fraction: String = text
        .get(19..)
        .and_then(|rest| rest.strip_prefix(['.', ',']))
        .unwrap_or("")
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let fraction = format!("0.{fraction}0").parse::<f64>().ok()?;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) as f64 + fraction)
}

/// Seconds of `10:00:05`, `0:00:12` or `10:00:05.5`, on an arbitrary day after 1970, so that they are rebased
/// to the first sample as dates are.
pub(super) fn clock_time(text: &str) -> Option<f64> {
    const SOME_DAY: f64 = 946_684_800.0;
    let mut parts = text.trim().split(':');
    let digits = |part: &str, most: usize| {
        let fits = (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| part.parse::<f64>().ok()).flatten()
    };
    let (hours, minutes) = (digits(parts.next()?, 3)?, digits(parts.next()?, 2)?);
    let last = parts.next()?;
    let (whole, _) = last.split_once('.').unwrap_or((last, ""));
    digits(whole, 2)?;
    let seconds: f64 = last.parse().ok()?;
    (parts.next().is_none() && minutes < 60.0 && seconds < 61.0)
        .then_some(SOME_DAY + hours * 3600.0 + minutes * 60.0 + seconds)
}

/// The beginning of a line, for an error message.
pub(super) fn excerpt(line: &str) -> String {
    const SHOWN: usize = 60;
    let line = line.trim();
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_break_ends_a_line_and_numbers_are_those_of_an_editor() {
        let text = "\u{feff}a\r\nb\rb\rb\n\nc\r\n\rd";
        let mut lines = Lines::new(io::BufReader::with_capacity(1, text.as_bytes()));
        let mut seen = Vec::new();
        while let Some(line) = lines.next().expect("a line") {
            let line = String::from_utf8(line.to_vec()).expect("text");
            seen.push((lines.number, line));
        }
        let expected = [(1, "a"), (2, "b"), (2, "b"), (2, "b"), (3, ""), (4, "c"), (5, ""), (5, "d")];
        assert_eq!(seen, expected.map(|(number, line)| (number, line.to_owned())));
        assert!(!lines.terminated);
    }

    #[test]
    fn times_are_found_in_lines_of_logs() {
        let lines = [
            "[INFO|2025-06-01 10:00:00] x",
            "2025-06-01T10:00:00 x",
            r#"{"timestamp": 1748772000, "rss": 1}"#,
            r#"{"time": 1748772000000}"#,
        ];
        assert_eq!(time_in_line("[10:00:05] RAM: 5552 MB"), Some(946_720_805.0));
        assert_eq!(clock_time("0:00:12.5"), Some(946_684_812.5));
        for text in ["10:00", "1:2:3:4", "10:61:00", "00:12<01:30", "12:34:5x"] {
            assert_eq!(clock_time(text), None, "{text}");
        }
        for line in lines {
            assert_eq!(time_in_line(line), Some(1_748_772_000.0), "{line}");
        }
        assert_eq!(time_in_line("Step 10: RAM: 5552 MB"), None);
    }
}
