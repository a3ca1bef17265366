//! Training logs: lines that name a step and an amount of memory, such as `Step 10: ..., Process RAM: 5552 MB`.
//!
//! Lines without a memory figure are passed over, for a log has many of them; a figure that cannot be read is an
//! error. MB is 10^6 bytes and MiB 2^20, as written. A time at the start of a line is used where there is one.

use super::{
    lines::date_time,
    psrecord::excerpt,
    reader::{LineParser, Parsed},
};
use crate::{ByteSize, Sample};
use regex::Regex;

/// Parser of log lines.
pub(super) struct TextLog {
    memory: Regex,
    step: Regex,
    epoch: Regex,
    last_step: Option<u64>,
}

impl TextLog {
    pub(super) fn new() -> Self {
        let compile = |pattern| Regex::new(pattern).expect("a constant pattern");
        Self {
            memory: compile(
                r#"(?i)(?:^|[^a-z])(?:cpu )?(?:process )?(?:ram|rss|memory|mem)(?:[ _]?(?:usage|used|total))?["']?\s*(?:[:=]|is|at)?\s*([0-9][^\s,;"')\]}]*)\s?(?:([kmgt]i?b|b|bytes)\b)?"#,
            ),
            step: compile(r#"(?i)(?:^|[^a-z])(?:global[_ ])?(?:step|iter(?:ation)?)["']?\s*[:=#]?\s*(\d+)"#),
            epoch: compile(r#"(?i)(?:^|[^a-z])epoch["']?\s*[:=#]?\s*(\d+(?:\.\d+)?)"#),
            last_step: None,
        }
    }

    fn segment(&mut self, text: &str) -> Parsed {
        let number = |pattern: &Regex| pattern.captures(text).and_then(|found| found[1].parse::<f64>().ok());
        if let Some(step) = number(&self.step) {
            self.last_step = Some(step as u64);
        }
        let Some(found) = self.memory.captures_iter(text).find(|found| !is_gpu(text, found)) else {
            return Ok(None);
        };
        let Some(unit) = found.get(2) else { return Ok(None) };
        let unit = if unit.as_str().eq_ignore_ascii_case("bytes") { "B" } else { unit.as_str() };
        let ByteSize(rss) = format!("{}{unit}", found[1].replace('_', ""))
            .parse()
            .map_err(|_| format!("expected a size such as 'RAM: 5552 MB', found '{}'", excerpt(&found[0])))?;
        let t = date_time(text).unwrap_or(0.0);
        Ok(Some(Sample { t, step: self.last_step, epoch: number(&self.epoch), rss, ..Sample::default() }))
    }
}

/// Whether the figure is that of a GPU: the word stands before it in the same clause.
fn is_gpu(text: &str, found: &regex::Captures<'_>) -> bool {
    let before = text[..found.get(1).map_or(0, |size| size.start())].to_ascii_lowercase();
    let clause = before.rsplit([',', ';', '|', '(', ')']).next().unwrap_or_default();
    ["gpu", "cuda", "vram"].iter().any(|word| clause.contains(word))
}

impl LineParser for TextLog {
    fn line(&mut self, line: &[u8]) -> Parsed {
        let text = String::from_utf8_lossy(line);
        // A progress bar rewrites its line: the last figure is the one that stood.
        let mut last = None;
        for segment in text.split('\r') {
            last = self.segment(segment)?.or(last);
        }
        Ok(last)
    }
}
