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

    #[cfg(test)]
    fn first_lines(&self) -> &'static [&'static [u8]] {
        &[b"# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)"]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_seconds_and_bytes() {
        let wanted = Sample { t: 1.01, rss: 7 << 19, ..Sample::default() };
        assert_eq!(Psrecord.line(b"   1.010   99.000    3.500   11.000"), Ok(Some(wanted.clone())));
        assert_eq!(
            Psrecord.line(b"1.010 99.000 3.500 11.000 5 6"),
            Ok(Some(wanted)),
            "more columns may follow"
        );
        assert_eq!(Psrecord.line(b"# Elapsed time   CPU (%)"), Ok(None));
    }

    #[test]
    fn a_line_that_cannot_be_read_is_shown_in_the_error() {
        for line in ["1.0 nothing", "1.0 99.0 3.5", "NaN 99.0 3.5 11.0", "1.0 99.0 -3.5 11.0"] {
            let error = Psrecord.line(line.as_bytes()).expect_err(line);
            assert!(error.starts_with("expected four or more numbers") && error.contains(line), "{error}");
        }
        assert!(Psrecord.line(b"1.0 \xff 3.5 11.0").is_err(), "not UTF-8");
    }
}
