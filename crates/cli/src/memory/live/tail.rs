//! The last lines that a command printed, for a screen to show.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

/// Lines kept.
const MOST_LINES: usize = 200;
/// Characters kept of a line.
const LONGEST_LINE: usize = 500;

/// A terminal that remembers lines and nothing else: `\r` starts the line over, escapes are left out.
#[derive(Debug, Default)]
pub struct OutputTail {
    lines: VecDeque<String>,
    /// Bytes of the line that has not ended.
    open: Vec<u8>,
    returned: bool,
}

impl OutputTail {
    /// The last `count` lines, oldest first, the unfinished one included.
    pub fn last(&self, count: usize) -> Vec<String> {
        let open = (!self.open.is_empty()).then(|| clean(&self.open));
        let mut lines: Vec<String> = self.lines.iter().cloned().chain(open).collect();
        lines.split_off(lines.len().saturating_sub(count))
    }

    fn end_line(&mut self) {
        self.lines.push_back(clean(&self.open));
        self.open.clear();
        if self.lines.len() > MOST_LINES {
            self.lines.pop_front();
        }
    }
}

impl Write for OutputTail {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            match byte {
                b'\n' => {
                    self.returned = false;
                    self.end_line();
                }
                b'\r' => self.returned = true,
                _ => {
                    if std::mem::take(&mut self.returned) {
                        self.open.clear();
                    }
                    if self.open.len() < LONGEST_LINE {
                        self.open.push(byte);
                    }
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text without escape sequences and control characters.
fn clean(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut clean = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            // A sequence ends with a letter.
            characters.by_ref().find(|c| c.is_ascii_alphabetic());
        } else if !character.is_control() {
            clean.push(character);
        } else if character == '\t' {
            clean.push_str("    ");
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_redrawn_in_place_and_colours_left_out() {
        let mut tail = OutputTail::default();
        tail.write_all(b"first\n\r 10%\r 20%\r 30%").unwrap();
        assert_eq!(tail.last(5), ["first", " 30%"]);
        tail.write_all(b"\r\n\x1b[1;31mred\x1b[0m\tend\nx").unwrap();
        assert_eq!(tail.last(2), ["red    end", "x"]);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut tail = OutputTail::default();
        for number in 0..1000 {
            tail.write_all(format!("{number} {}\n", "x".repeat(2000)).as_bytes()).unwrap();
        }
        let lines = tail.last(usize::MAX);
        assert_eq!(lines.len(), MOST_LINES);
        assert!(
            lines.iter().all(|line| line.len() <= LONGEST_LINE) && lines[MOST_LINES - 1].starts_with("999 ")
        );
    }
}
