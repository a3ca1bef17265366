//! Logs of `psrecord`: elapsed seconds, CPU in percent, real and virtual memory.
//!
//! psrecord calls its unit MB and divides by 2^20.

use super::reader::{LineParser, Parsed};
use crate::Sample;

const MIB: f64 = 1048576.0;

/// Parser of psrecord lines.
pub(super) struct Psrecord;

impl Psrecord {
    pub(super) fn recognises(first: &[u8]) -> bool {
        let text = String::from_utf8_lossy(first).to_ascii_lowercase();
        text.starts_with('#') && text.contains("elapsed time") && text.contains("real")
    }
}

impl LineParser for Psrecord {
    fn line(&mut self, line: &[u8]) -> Parsed {
        let text = String::from_utf8_lossy(line);
        if text.trim_start().starts_with('#') {
            return Ok(None);
        }
        let expected = || {
            format!(
                "expected four or more numbers (elapsed seconds, CPU %, real MB, virtual MB), found '{}'",
                excerpt(&text)
            )
        };
        let numbers: Vec<f64> =
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(|_| expected())?;
        match numbers[..] {
            [t, _cpu, real, _virtual, ..] if t.is_finite() && real.is_finite() && real >= 0.0 => {
                Ok(Some(Sample { t, rss: (real * MIB) as u64, ..Sample::default() }))
            }
            _ => Err(expected()),
        }
    }
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
