//! An encoded row for people: what the model reads, and which of it is learned.
//!
//! In comes an [`Encoded`] row; out go its runs of learned and unlearned text, each placeholder run of an image as one
//! short word. Shown, what is learned stands between `[[` and `]]`, and nothing in it can steer a terminal.

use super::{Encoded, Encoder, TextError};

/// A stretch of tokens that are all learned or all not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Whether these tokens are targets.
    pub trained: bool,
    /// How many tokens.
    pub tokens: usize,
    /// Their text; an image is one placeholder and a count.
    pub text: String,
}

/// A row as runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs(pub Vec<Run>);

impl Encoder {
    /// Decodes a row to show it with its label mask.
    pub fn runs(&self, row: &Encoded) -> Result<Runs, TextError> {
        let mut runs = Vec::new();
        let mut start = 0;
        for run in row.trained.chunk_by(|a, b| a == b) {
            let end = start + run.len();
            let text = self.text_of(row, start, end)?;
            runs.push(Run { trained: run[0], tokens: run.len(), text });
            start = end;
        }
        Ok(Runs(runs))
    }

    fn text_of(&self, row: &Encoded, start: usize, end: usize) -> Result<String, TextError> {
        let mut text = String::new();
        let mut done = start;
        for image in row.images.iter().filter(|image| start <= image.start && image.end <= end) {
            text += &self.decode(&row.ids[done..image.start])?;
            if let Some(&placeholder) = row.ids.get(image.start).filter(|_| !image.is_empty()) {
                text += &format!("{}x{}", self.decode(&[placeholder])?, image.len());
            }
            done = image.end;
        }
        Ok(text + &self.decode(&row.ids[done..end])?)
    }
}

impl Runs {
    /// The row's text, what is learned between `[[` and `]]`. Of a longer stretch than so many characters the middle is left out: its beginning
    /// and its end tell what it is.
    pub fn shown(&self, characters: usize) -> String {
        let stretch = |run: &Run| match (run.trained, excerpt(&run.text, characters)) {
            (true, text) => format!("[[{text}]]"),
            (false, text) => text,
        };
        self.0.iter().map(stretch).collect()
    }
}

/// Text of a stranger for our terminal: no control characters but line ends, and the middle left out where it is long.
fn excerpt(text: &str, characters: usize) -> String {
    let safe: Vec<_> = text
        .chars()
        .map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    let hidden = safe.len().saturating_sub(characters);
    if hidden == 0 {
        return safe.into_iter().collect();
    }
    let (start, end) = (&safe[..characters / 2], &safe[safe.len() - characters / 2..]);
    let middle = format!(" … {hidden} characters … ");
    start.iter().copied().chain(middle.chars()).chain(end.iter().copied()).collect()
}
