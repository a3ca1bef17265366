//! Where a run stands, as its lines tell it: one grammar for output as it passes and for logs on disk.
//!
//! Takes one line at a time and reports what it says of steps, epochs and the dataset: progress bars (see
//! `bars`), dictionaries and JSON (HF Trainer, TRL, LLaMA-Factory, ms-swift), words (`Step 1,000`), and the
//! lines with which a trainer begins (`Num examples = 663`). A line that says nothing of these reports
//! nothing.

use super::{LinePattern, Progress, StepPatterns, StepSource, bars::BarFollower};
use regex::Regex;
use std::{borrow::Cow, sync::LazyLock};

/// Words before `step` that make it something else than the step of now: `max step 500`, `every step`.
const NOT_THE_PRESENT: [&str; 13] = [
    "total",
    "max",
    "num",
    "number",
    "warmup",
    "save",
    "saving",
    "logging",
    "eval",
    "every",
    "per",
    "best",
    "accumulation",
];

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern")
}

/// The text of a line without colours, other escape sequences and backspaces.
pub(crate) fn plain(line: &str) -> Cow<'_, str> {
    static ESCAPES: LazyLock<Regex> = LazyLock::new(|| {
        compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])|\x08")
    });
    if line.contains(['\x1b', '\x08']) { ESCAPES.replace_all(line, "") } else { Cow::Borrowed(line) }
}

/// Reads lines in their order.
#[derive(Debug)]
pub(crate) struct LineReader {
    patterns: StepPatterns,
    bars: BarFollower,
    /// The last banner was that of a training: what follows is about its dataset, not about an evaluation's.
    in_training: bool,
}

impl LineReader {
    pub(crate) fn new(patterns: StepPatterns) -> Self {
        Self { patterns, bars: BarFollower::new(), in_training: false }
    }

    /// Reports what a line says, in the order of trust.
    pub(crate) fn read(&mut self, line: &str, mut report: impl FnMut(StepSource, Progress)) {
        let line = plain(line);
        if self.patterns.step.is_none() {
            self.read_known(&line, &mut report);
        }
        if let Some(progress) = self.by_pattern(&line) {
            report(StepSource::Pattern, progress);
        }
    }

    fn by_pattern(&self, line: &str) -> Option<Progress> {
        let step = self.patterns.step.as_ref();
        let epoch_in_step = step.and_then(|pattern| pattern.named(line, "epoch"));
        let find = |pattern: &LinePattern| pattern.find(line, "epoch", 1).map(str::to_owned);
        let epoch = self.patterns.epoch.as_ref().and_then(find).or_else(|| epoch_in_step.map(str::to_owned));
        let step = step.and_then(|pattern| pattern.find(line, "step", 1));
        let progress = Progress {
            step: step.and_then(count),
            epoch: epoch.and_then(|epoch| epoch.parse().ok()),
            ..Progress::default()
        };
        (progress != Progress::default()).then_some(progress)
    }

    fn read_known(&mut self, line: &str, report: &mut impl FnMut(StepSource, Progress)) {
        let bar = self.bars.line(line);
        let shows_bar = bar.is_some() || self.bars.is_bar(line);
        if let Some(progress) = bar {
            report(StepSource::Bar, progress);
        }
        let told = if line.contains('{') && line.contains(['\'', '"']) {
            dictionary(line)
        } else if shows_bar {
            // A bar that is not the training's may well have a word such as `step` in it.
            None
        } else {
            self.facts(line).or_else(|| words(line))
        };
        if let Some(progress) = told {
            report(StepSource::Log, progress);
        }
    }

    /// What a trainer says of its dataset before the first step.
    fn facts(&mut self, line: &str) -> Option<Progress> {
        static ROWS: LazyLock<Regex> = LazyLock::new(|| compile(r"Num examples\s*=\s*([\d,]{1,24})"));
        static BATCH: LazyLock<Regex> =
            LazyLock::new(|| compile(r"Total (?:train )?batch size\b[^=]*=\s*([\d,]{1,24})"));
        if line.contains("*****") {
            self.in_training = line.contains("Running training");
        }
        let number = |pattern: &Regex| count(&pattern.captures(line)?[1]);
        let of_training = self.in_training || line.contains("Num Epochs");
        let progress = Progress {
            dataset_size: if of_training { number(&ROWS) } else { None },
            samples_per_step: number(&BATCH),
            ..Progress::default()
        };
        (progress != Progress::default()).then_some(progress)
    }
}

/// `1000` or `1,000`.
fn count(text: &str) -> Option<u64> {
    text.replace([',', '_'], "").parse().ok()
}

/// `{'loss': 1.2, 'epoch': 0.12}` or `{"current_steps": 10}`, with or without quotes around the numbers,
/// anywhere in a line.
fn dictionary(line: &str) -> Option<Progress> {
    /// Names of the step, the most certain last.
    const STEPS: [&str; 6] =
        ["_step", "iteration", "step", "current_steps", "global_step/max_steps", "global_step"];
    static ENTRIES: LazyLock<Regex> = LazyLock::new(|| {
        let names = STEPS.iter().rev().copied().collect::<Vec<_>>().join("|");
        compile(&format!(
            r#"['"](?:[\w.-]+/)?({names}|epoch)['"]\s*:\s*['"]?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b"#
        ))
    });
    let mut progress = Progress::default();
    let mut certain = None;
    for found in ENTRIES.captures_iter(line) {
        let value: Option<f64> = found[2].parse().ok();
        if &found[1] == "epoch" {
            progress.epoch = value;
            continue;
        }
        let rank = STEPS.iter().position(|name| *name == &found[1]);
        if rank >= certain {
            certain = rank;
            progress.step = value.map(|step| step as u64);
        }
    }
    (progress != Progress::default()).then_some(progress)
}

/// `Step 1,000: ...`, `STEP 40 EPOCH 0.8`, `iteration 10/500`.
fn words(line: &str) -> Option<Progress> {
    static STEP: LazyLock<Regex> = LazyLock::new(|| {
        compile(
            r"(?i)(?:^|[^a-z_/])(?:global[_ ]?)?(?:step|iter(?:ation)?)(?:\(train\))?\s*[:=#]?\s*\[?\s*(\d{1,3}(?:,\d{3})+|\d{1,18})\b",
        )
    });
    static EPOCH: LazyLock<Regex> =
        LazyLock::new(|| compile(r"(?i)(?:^|[^a-z_/])epoch\s*[:=#]?\s*\[?\s*(\d{1,9}(?:\.\d+)?)"));
    let find = |pattern: &'static Regex| {
        let present = |found: &regex::Captures<'_>| {
            let all = found.get(0).expect("group 0 is the match");
            let fraction = &line.as_bytes()[all.end()..];
            let goes_on = matches!(fraction, [b'.', digit, ..] if digit.is_ascii_digit());
            !goes_on && !NOT_THE_PRESENT.contains(&last_word(&line[..all.start()]).to_lowercase().as_str())
        };
        pattern.captures_iter(line).find(present).map(|found| found[1].to_owned())
    };
    // An epoch counted in whole numbers ("Epoch 2") is not a position: only a fraction is.
    let (epoch, epoch_number) =
        match find(&EPOCH).and_then(|digits| Some((digits.contains('.'), digits.parse().ok()?))) {
            Some((true, epoch)) => (Some(epoch), None),
            Some((false, number)) => (None, Some(number)),
            None => (None, None),
        };
    let step = find(&STEP).and_then(|digits| count(&digits));
    let progress = Progress { step, epoch, epoch_number, ..Progress::default() };
    (progress != Progress::default()).then_some(progress)
}

/// The last word of a text.
fn last_word(text: &str) -> &str {
    let text = text.trim_end_matches(|c: char| !c.is_alphanumeric());
    text.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()
}
