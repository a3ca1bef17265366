//! An encoded row for people: what the model reads, and what it learns.
//!
//! Takes an [`Encoded`] row and gives its runs of learned and unlearned tokens; the placeholders of an image
//! become one short word. When shown, learned text stands between marks that the row itself does not contain,
//! and nothing in it can control a terminal.

use super::{Encoded, Encoder, TextError, bytes};

/// What stands around what is learned: the first pair that the row does not have. Boxes and tables have many
/// brackets.
const MARKS: [[&str; 2]; 3] = [["[[", "]]"], ["⟦", "⟧"], ["⟪learned⟫", "⟪/learned⟫"]];

/// A stretch of tokens that are all learned or all not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRun {
    /// Whether these tokens are targets.
    pub trained: bool,
    /// How many tokens.
    pub tokens: usize,
    /// Their text; an image is one placeholder and a count.
    pub text: String,
}

impl TokenRun {
    /// The run for programs.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({"learned": self.trained, "tokens": self.tokens, "text": self.text})
    }
}

/// A row as runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRuns(pub Vec<TokenRun>);

impl Encoder {
    /// Decodes a row into runs of learned and unlearned tokens. The first token is never learned, because
    /// nothing precedes it that could predict it.
    pub fn runs(&self, row: &Encoded) -> Result<TokenRuns, TextError> {
        let learned: Vec<bool> =
            row.trained.iter().enumerate().map(|(at, trained)| at > 0 && *trained).collect();
        let mut runs = Vec::new();
        let mut start = 0;
        for run in learned.chunk_by(|a, b| a == b) {
            let end = start + run.len();
            let text = self.text_of(row, start, end)?;
            runs.push(TokenRun { trained: run[0], tokens: run.len(), text });
            start = end;
        }
        Ok(TokenRuns(runs))
    }

    fn text_of(&self, row: &Encoded, start: usize, end: usize) -> Result<String, TextError> {
        let mut text = String::new();
        let mut done = start;
        for image in row.images.iter().filter(|image| start <= image.start && image.end <= end) {
            text += &self.exact(&row.ids[done..image.start])?;
            if let Some(&placeholder) = row.ids.get(image.start).filter(|_| !image.is_empty()) {
                text += &format!("{}x{}", self.exact(&[placeholder])?, image.len());
            }
            done = image.end;
        }
        Ok(text + &self.exact(&row.ids[done..end])?)
    }

    /// The text of some ids. Where they begin or end within a character, its bytes are shown.
    fn exact(&self, ids: &[u32]) -> Result<String, TextError> {
        let decoded = self.decode(ids)?;
        if !decoded.contains(char::REPLACEMENT_CHARACTER) {
            return Ok(decoded);
        }
        let written = |id: &u32| self.tokenizer.id_to_token(*id).unwrap_or_default();
        let all: Vec<u8> = ids.iter().flat_map(|id| bytes::token_bytes(&written(id))).collect();
        // Another kind of vocabulary is decoded by its own rules alone.
        let same = String::from_utf8_lossy(&all) == decoded;
        Ok(if same { bytes::shown(&all) } else { decoded })
    }
}

impl TokenRuns {
    /// What stands before and after what is learned in this row.
    pub fn marks(&self) -> [&'static str; 2] {
        // A bracket that touches a mark would be read as a part of it.
        let touches = |text: &str, mark: &str| {
            let ends = [mark.chars().next(), mark.chars().next_back()];
            ends.into_iter().flatten().any(|end| text.starts_with(end) || text.ends_with(end))
        };
        let taken = |text: &str, mark: &str| text.contains(mark) || touches(text, mark);
        let free =
            |marks: &&[&str; 2]| !self.0.iter().any(|run| marks.iter().any(|mark| taken(&run.text, mark)));
        // A row that has all of them is shown with the plainest.
        MARKS.iter().find(free).copied().unwrap_or(MARKS[0])
    }

    /// The row's text, with what is learned between [`TokenRuns::marks`]. A run of more than `characters`
    /// characters loses its middle.
    pub fn shown(&self, characters: usize) -> String {
        let [before, after] = self.marks();
        let stretch = |run: &TokenRun| match (run.trained, excerpt(&run.text, characters)) {
            (true, text) => format!("{before}{text}{after}"),
            (false, text) => text,
        };
        self.0.iter().map(stretch).collect()
    }
}

/// Makes text of a row safe to print: replaces control characters other than line ends, and leaves out the
/// middle of long text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bracket_beside_what_is_learned_is_not_taken_for_a_mark() {
        let runs = |texts: [&str; 3]| {
            let run =
                |(at, text): (usize, &&str)| TokenRun { trained: at == 1, tokens: 1, text: (*text).into() };
            TokenRuns(texts.iter().enumerate().map(run).collect())
        };
        assert_eq!(runs(["sides: [", "4", ", 5]"]).shown(100), "sides: [⟦4⟧, 5]");
        assert_eq!(runs(["", "[4, 5]", ""]).shown(100), "⟦[4, 5]⟧");
        assert_eq!(runs(["a [b] c", "d", "e"]).shown(100), "a [b] c[[d]]e");
    }
}
