//! Files of `mprof run`: `MEM <size> <unix time>`, with `CHLD <index> <size> <unix time>` for children.
//!
//! memory_profiler divides by 2^20. Children follow their parent's line with the same time and are added to
//! it.

use super::{Beginning, LineParser, Opened, Parsed, TraceFormat};
use crate::{
    Sample,
    trace::{TraceError, TraceOptions, lines::excerpt},
};

const MIB: f64 = 1048576.0;

/// The format.
pub(super) struct Mprof;

impl TraceFormat for Mprof {
    fn name(&self) -> &'static str {
        "an mprof log"
    }

    fn expected(&self) -> &'static str {
        "lines such as 'MEM 162.4 1718000000.5'"
    }

    fn recognises(&self, first: &[u8], _options: &TraceOptions) -> bool {
        first.starts_with(b"CMDLINE ") || first.starts_with(b"MEM ")
    }

    fn open(&self, _file: &Beginning<'_>) -> Result<Opened, TraceError> {
        Ok(Opened::without_header(Parser::default()))
    }

    #[cfg(test)]
    fn first_lines(&self) -> &'static [&'static [u8]] {
        &[b"CMDLINE python train.py", b"MEM 2.000000 1718000000.0000"]
    }
}

/// The parser of its lines; holds a sample back until its children were read.
#[derive(Default)]
struct Parser {
    pending: Option<Sample>,
}

impl LineParser for Parser {
    fn line(&mut self, line: &[u8]) -> Parsed {
        let text = String::from_utf8_lossy(line);
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let numbers: Option<Vec<f64>> =
            words.map(|word| word.parse().ok().filter(|n: &f64| n.is_finite())).collect();
        let expected = |form: &str| Err(format!("expected '{form}', found '{}'", excerpt(&text)));
        match (kind, numbers.as_deref()) {
            ("MEM", Some(&[size, t])) if size >= 0.0 => {
                let rss = (size * MIB) as u64;
                let sample = Sample { t, rss, main_rss: Some(rss), procs: Some(1), ..Sample::default() };
                Ok(self.pending.replace(sample))
            }
            ("CHLD", Some(&[_, size, _])) if size >= 0.0 => {
                if let Some(sample) = &mut self.pending {
                    sample.rss += (size * MIB) as u64;
                    sample.procs = sample.procs.map(|procs| procs + 1);
                }
                Ok(None)
            }
            ("MEM", _) => expected("MEM <MiB> <unix time>"),
            ("CHLD", _) => expected("CHLD <index> <MiB> <unix time>"),
            ("CMDLINE" | "FUNC", _) => Ok(None),
            _ => expected("MEM <MiB> <unix time>"),
        }
    }

    fn finish(&mut self) -> Option<Sample> {
        self.pending.take()
    }
}
