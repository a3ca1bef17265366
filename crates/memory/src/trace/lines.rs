//! Numbered lines of a file of any size.
//!
//! A file comes in, lines go out one at a time in a buffer that is reused. No line may be longer than
//! [`MAX_LINE`], so a file without line breaks cannot exhaust memory.

use std::io::{self, BufRead, Read};

/// Longest line that is read: training logs put a whole epoch of progress bar updates on one line.
pub(super) const MAX_LINE: usize = 16 << 20;

/// Reads lines and counts them.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// Number of the line that was read last, from 1.
    pub(super) number: u64,
    /// Whether the last line ended in a line break; false for a line that was cut off.
    pub(super) terminated: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), number: 0, terminated: true }
    }

    /// The next line without its line break, or `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.buffer.clear();
        let read = self.input.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.terminated = self.buffer.last() == Some(&b'\n');
        if self.terminated {
            self.buffer.pop();
        } else if read > MAX_LINE {
            let what =
                format!("line {} is longer than {} MiB; is this a text file?", self.number, MAX_LINE >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let line = self.buffer.strip_suffix(b"\r").unwrap_or(&self.buffer);
        let byte_order_mark: &[u8] = if self.number == 1 { "\u{feff}".as_bytes() } else { b"" };
        Ok(Some(line.strip_prefix(byte_order_mark).unwrap_or(line)))
    }
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
