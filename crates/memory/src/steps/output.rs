//! Steps from what a command prints.
//!
//! In come the bytes of its output as they pass; out come reports on the [`StepBoard`]. It understands the HF
//! Trainer's dictionaries, tqdm bars, lines such as `Step 10: ...` and a pattern of the user's; it never changes,
//! delays or keeps the bytes, and a line longer than [`LONGEST_LINE`] is passed over.

use super::{Progress, Source, StepBoard, bars::BarFollower};
use regex::Regex;

/// Progress is told in short lines; a longer one (a dumped array, a base64 image) is not worth keeping.
const LONGEST_LINE: usize = 4096;

/// A `--step-pattern` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadPattern {
    /// It is no regular expression.
    #[error("the step pattern is not a regular expression: {0}")]
    Syntax(#[from] regex::Error),
    /// It captures nothing.
    #[error(
        "the step pattern has no group: put the number in parentheses, as in 'it=(\\d+)', or name it (?<step>\\d+)"
    )]
    NoGroup,
}

/// Reads one stream of a command's output.
pub struct OutputParser {
    board: StepBoard,
    line: Vec<u8>,
    too_long: bool,
    reader: Reader,
}

enum Reader {
    /// The user's pattern, and nothing else.
    Pattern(Regex),
    Known {
        step: Regex,
        epoch: Regex,
        entries: Regex,
        bars: BarFollower,
        escapes: Regex,
    },
}

impl OutputParser {
    /// A parser that reports to `board`, by `pattern` alone if there is one.
    ///
    /// The step is the pattern's group named `step`, or its first; a group named `epoch` gives the epoch.
    pub fn new(board: StepBoard, pattern: Option<&str>) -> Result<Self, BadPattern> {
        let reader = match pattern {
            Some(pattern) => {
                let regex = Regex::new(pattern)?;
                if regex.captures_len() < 2 {
                    return Err(BadPattern::NoGroup);
                }
                Reader::Pattern(regex)
            }
            None => Reader::known(),
        };
        Ok(Self { board, line: Vec::new(), too_long: false, reader })
    }

    /// Takes in the next bytes; lines end with `\n` or, as progress bars do, with `\r`.
    pub fn feed(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let ends = matches!(part.last(), Some(b'\n' | b'\r'));
            let text = if ends { &part[..part.len() - 1] } else { part };
            if self.line.len() + text.len() <= LONGEST_LINE {
                self.line.extend_from_slice(text);
            } else {
                self.too_long = true;
            }
            if ends {
                self.end_line();
            }
        }
        // A bar is redrawn without an end of line until the next one: what stands there now already counts.
        if self.line.ends_with(b"]") {
            self.read_line();
        }
    }

    fn end_line(&mut self) {
        if !self.too_long {
            self.read_line();
        }
        self.line.clear();
        self.too_long = false;
    }

    fn read_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line);
        if let Some((source, progress)) = self.reader.read(&text) {
            self.board.report(source, progress);
        }
    }
}

impl Reader {
    fn known() -> Self {
        let compile = |pattern| Regex::new(pattern).expect("a constant pattern");
        Self::Known {
            step: compile(
                r"(?i)(?:^|[^a-z_])(?:global[_ ]?)?(?:step|iter(?:ation)?)\s*[:=#]?\s*\[?(\d{1,18})\b",
            ),
            epoch: compile(r"(?i)(?:^|[^a-z_])epoch\s*[:=#]?\s*\[?(\d+(?:\.\d+)?)"),
            entries: compile(r#"['"](step|global_step|epoch)['"]:\s*['"]?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b"#),
            bars: BarFollower::new(),
            escapes: compile(r"\x1b\[[0-9;?]*[A-Za-z]"),
        }
    }

    fn read(&mut self, line: &str) -> Option<(Source, Progress)> {
        match self {
            Self::Pattern(pattern) => {
                let found = pattern.captures(line)?;
                let step =
                    found.name("step").or_else(|| found.get(1)).and_then(|group| group.as_str().parse().ok());
                let epoch = found.name("epoch").and_then(|group| group.as_str().parse().ok());
                Some((Source::Pattern, Progress { step, epoch, ..Progress::default() }))
            }
            Self::Known { step, epoch, entries, bars, escapes } => {
                let line = escapes.replace_all(line, "");
                if let Some(progress) = bars.line(&line) {
                    return Some((Source::Bar, progress));
                }
                // A bar that is not the training's may well have a word such as `step` in it.
                if line.contains("%|") {
                    return None;
                }
                let progress = if line.trim_start().starts_with('{') {
                    dictionary(entries, &line)
                } else {
                    let number = |pattern: &Regex| Some(pattern.captures(&line)?[1].to_owned());
                    let step = number(step).and_then(|digits| digits.parse().ok());
                    // An epoch counted from 1 in words ("Epoch 2") is not a position: only a fraction is.
                    let epoch = number(epoch).filter(|digits| digits.contains('.'));
                    Progress {
                        step,
                        epoch: epoch.and_then(|digits| digits.parse().ok()),
                        ..Progress::default()
                    }
                };
                (progress != Progress::default()).then_some((Source::Log, progress))
            }
        }
    }
}

/// `{'loss': 1.2, 'epoch': 0.12}`, with or without quotes around the numbers.
fn dictionary(entries: &Regex, line: &str) -> Progress {
    let mut progress = Progress::default();
    for found in entries.captures_iter(line) {
        let value: Option<f64> = found[2].parse().ok();
        match &found[1] {
            "epoch" => progress.epoch = value,
            _ => progress.step = value.map(|step| step as u64),
        }
    }
    progress
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunFacts;

    fn read(pattern: Option<&str>, output: &str) -> (Option<u64>, Option<f64>) {
        let board = StepBoard::default();
        OutputParser::new(board.clone(), pattern).unwrap().feed(output.as_bytes());
        board.now(&RunFacts::default())
    }

    #[test]
    fn lines_that_name_a_step() {
        let cases = [
            ("Step 10: loss 1.2, Process RAM: 5552 MB\n", Some(10)),
            ("[2026-01-01 10:00] global_step=250 lr=1e-4\n", Some(250)),
            ("iteration 7 | loss 2.0\n", Some(7)),
            ("step: 12/83 loss=1\n", Some(12)),
            ("{\"step\": 42, \"loss\": 0.5}\n", Some(42)),
            ("misstep 9\n", None),
            ("stepping stones 5\n", None),
            ("step 99999999999999999999\n", None),
        ];
        for (line, step) in cases {
            assert_eq!(read(None, line).0, step, "{line}");
        }
    }

    #[test]
    fn the_trainer_s_bar_gives_the_step_and_its_dictionary_the_epoch() {
        let output = "\r 12%|█▏        | 10/83 [00:12<01:30,  1.23s/it]\
                      \r                                               \r{'loss': 1.2, 'grad_norm': 0.4, 'epoch': 0.12}\n\
                      \r 12%|█▏        | 10/83 [00:12<01:30,  1.23s/it]";
        assert_eq!(read(None, output), (Some(10), Some(0.12)));
        assert_eq!(
            read(None, "{'loss': '1.2', 'epoch': '0.5'}\n").1,
            Some(0.5),
            "newer versions quote the numbers"
        );
    }

    #[test]
    fn the_user_s_pattern_is_the_only_one() {
        let output = "Step 10\nit=(7) of epoch 0.5\n";
        assert_eq!(read(Some(r"it=\((\d+)\)"), output), (Some(7), None));
        assert_eq!(
            read(Some(r"it=\((?<step>\d+)\) of epoch (?<epoch>[\d.]+)"), output),
            (Some(7), Some(0.5))
        );
    }

    #[test]
    fn a_pattern_without_a_group_or_with_bad_syntax_is_refused() {
        let refuse =
            |pattern| OutputParser::new(StepBoard::default(), Some(pattern)).err().unwrap().to_string();
        assert!(refuse(r"it=\d+").contains("has no group"));
        assert!(refuse(r"it=(").contains("not a regular expression"));
    }

    #[test]
    fn pieces_are_put_together_and_long_lines_passed_over() {
        let board = StepBoard::default();
        let mut parser = OutputParser::new(board.clone(), None).unwrap();
        let step = || board.now(&RunFacts::default()).0;
        for piece in ["St", "ep ", "1", "5:"] {
            parser.feed(piece.as_bytes());
        }
        assert_eq!(step(), None, "the line has not ended");
        parser.feed(b" loss\n");
        assert_eq!(step(), Some(15));
        parser.feed(&[b'x'; 3 * LONGEST_LINE]);
        assert!(parser.line.len() <= LONGEST_LINE);
        parser.feed(b" step 99\nstep 16\n");
        assert_eq!(step(), Some(16));
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        let board = StepBoard::default();
        let mut parser = OutputParser::new(board.clone(), None).unwrap();
        parser.feed(b"\xff\xfe\x00\x1b[31m\n\x1b[1mstep 3\x1b[0m\n");
        assert_eq!(board.now(&RunFacts::default()).0, Some(3));
    }
}
