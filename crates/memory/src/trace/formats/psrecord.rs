//! Logs of `psrecord`: elapsed seconds, CPU in percent, real and virtual memory.
//!
//! psrecord calls its unit MB and divides by 2^20.

use super::{Beginning, LineParser, Opened, Parsed, TraceFormat};
use crate::{
    Sample,
    trace::{TraceError, TraceOptions, lines::excerpt},
};

const MIB: f64 = 1048576.0;

/// The format, and the parser of its lines.
pub(super) struct Psrecord;

impl TraceFormat for Psrecord {
    fn name(&self) -> &'static str {
        "a psrecord log"
    }

    fn expected(&self) -> &'static str {
        "lines of elapsed seconds, CPU %, real MB, virtual MB"
    }

    fn recognises(&self, first: &[u8], _options: &TraceOptions) -> bool {
        let text = String::from_utf8_lossy(first).to_ascii_lowercase();
        text.starts_with('#') && text.contains("elapsed time") && text.contains("real")
    }

    fn open(&self, _file: &Beginning<'_>) -> Result<Opened, TraceError> {
        Ok(Opened::without_header(Self))
    }

    fn begins_with_comment(&self) -> bool {
        true
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
