//! An encoded row for people: what the model reads, and which of it is learned.
//!
//! In comes an [`Encoded`] row; out go its runs of learned and unlearned text, each placeholder run of an image as one
//! short word. Printed, what is learned stands between `[[` and `]]`.

use super::{Encoded, Encoder, TextError};
use std::fmt;

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

/// A row as runs; prints itself.
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

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Run { trained, text, .. } in &self.0 {
            match trained {
                true => write!(f, "[[{text}]]")?,
                false => f.write_str(text)?,
            }
        }
        Ok(())
    }
}
