//! Steps from what a command prints.
//!
//! Reads the bytes of its output as they pass and reports to the [`StepBoard`] what their lines say of steps
//! and epochs (see `lines`). It never changes, delays or keeps the bytes. A line longer than [`LONGEST_LINE`]
//! is skipped.

use super::{StepBoard, StepPatterns, lines::LineReader};

/// Progress is told in short lines; a longer one (a dumped array, a base64 image) is not worth keeping.
const LONGEST_LINE: usize = 4096;

/// Reads one stream of a command's output.
pub(crate) struct OutputParser {
    board: StepBoard,
    line: Vec<u8>,
    too_long: bool,
    reader: LineReader,
}

impl OutputParser {
    /// A parser that reports to `board`, by the known forms or by the user's patterns.
    pub fn new(board: StepBoard, patterns: &StepPatterns) -> Self {
        Self { board, line: Vec::new(), too_long: false, reader: LineReader::new(patterns.clone()) }
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
        // A bar is redrawn without a line break until it is done: what it shows now already counts.
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
        self.reader.read(&text, |source, progress| self.board.report(source, progress));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunFacts;

    fn read(pattern: Option<&str>, output: &str) -> (Option<u64>, Option<f64>) {
        let board = StepBoard::default();
        let step = pattern.map(|pattern| pattern.parse().unwrap());
        let patterns = StepPatterns { step, ..StepPatterns::default() };
        OutputParser::new(board.clone(), &patterns).feed(output.as_bytes());
        let position = board.now(&RunFacts::default());
        (position.step, position.epoch)
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
    fn pieces_are_put_together_and_long_lines_passed_over() {
        let board = StepBoard::default();
        let mut parser = OutputParser::new(board.clone(), &StepPatterns::default());
        let step = || board.now(&RunFacts::default()).step;
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
        let mut parser = OutputParser::new(board.clone(), &StepPatterns::default());
        parser.feed(b"\xff\xfe\x00\x1b[31m\n\x1b[1mstep 3\x1b[0m\n");
        assert_eq!(board.now(&RunFacts::default()).step, Some(3));
    }
}
