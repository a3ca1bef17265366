//! Loss on what an answer says rather than on how JSON is laid out.
//!
//! Takes token ids with their labels, and changes labels in place. A label is set to be ignored if all
//! characters of its token are layout or, depending on the level, quotes, `null` and known keys. Values are
//! never masked. Text that is not a JSON object or array is left alone and counted.

mod characters;
mod keys;
mod token_bytes;

pub use keys::{KeyFinder, ROWS_LOOKED_AT};
pub use token_bytes::TokenBytes;

use characters::{Characters, Kind, classify};
use garden_data::NO_LABEL;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// How much of the structure is taken out of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Punctuation and white space outside strings.
    Conservative,
    /// Also string quotes and `null`.
    Moderate,
    /// Also object keys.
    Aggressive,
}

/// What was masked so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Tokens that had a label before.
    pub labelled_tokens: u64,
    /// Tokens whose label was taken away.
    pub masked_tokens: u64,
    /// Answers that are a JSON object or array.
    pub json_answers: u64,
    /// Answers that are something else, left alone.
    pub other_answers: u64,
}

/// Masks labels at one level.
pub struct SelectiveLoss {
    level: Level,
    keys: HashSet<Vec<u8>>,
    tokens: TokenBytes,
    statistics: Statistics,
    text: Vec<u8>,
}

impl SelectiveLoss {
    /// A mask at this level; `keys` are the object keys that the aggressive level masks, as they are written.
    pub fn new(level: Level, keys: impl IntoIterator<Item = String>, tokens: TokenBytes) -> Self {
        let keys = keys.into_iter().map(String::into_bytes).collect();
        Self { level, keys, tokens, statistics: Statistics::default(), text: Vec::new() }
    }

    /// Replaces the keys that the aggressive level masks.
    pub fn set_keys(&mut self, keys: impl IntoIterator<Item = String>) {
        self.keys = keys.into_iter().map(String::into_bytes).collect();
    }

    /// What was masked since the start.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Masks the labels of one packed batch: a run of labelled tokens is an answer, up to its first special
    /// token.
    pub fn apply(&mut self, ids: &[u32], labels: &mut [i32]) {
        assert_eq!(ids.len(), labels.len(), "a label or none for each token");
        let mut start = 0;
        while start < ids.len() {
            if labels[start] == NO_LABEL || self.tokens.bytes(ids[start]).is_none() {
                self.statistics.labelled_tokens += u64::from(labels[start] != NO_LABEL);
                start += 1;
                continue;
            }
            let in_answer = |at: &usize| labels[*at] != NO_LABEL && self.tokens.bytes(ids[*at]).is_some();
            let end = (start..ids.len()).take_while(in_answer).last().map_or(start, |last| last + 1);
            self.answer(&ids[start..end], &mut labels[start..end]);
            start = end;
        }
    }

    /// Which tokens of one row are learned after masking; nothing is counted.
    pub fn learned(&mut self, ids: &[u32], trained: &[bool]) -> Vec<bool> {
        let counted = self.statistics;
        let label = |(id, trained): (&u32, &bool)| if *trained { *id as i32 } else { NO_LABEL };
        let mut labels: Vec<i32> = ids.iter().zip(trained).map(label).collect();
        self.apply(ids, &mut labels);
        self.statistics = counted;
        labels.into_iter().map(|label| label != NO_LABEL).collect()
    }

    fn answer(&mut self, ids: &[u32], labels: &mut [i32]) {
        self.text.clear();
        for id in ids {
            self.text.extend_from_slice(self.tokens.bytes(*id).unwrap_or_default());
        }
        self.statistics.labelled_tokens += ids.len() as u64;
        // What follows the end-of-turn token is layout of the chat template, not an answer.
        if self.text.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Some(characters) = classify(&self.text) else {
            self.statistics.other_answers += 1;
            return;
        };
        self.statistics.json_answers += 1;
        let masked = self.masked_bytes(&characters);
        let mut at = 0;
        for (id, label) in ids.iter().zip(labels) {
            let len = self.tokens.bytes(*id).map_or(0, <[u8]>::len);
            if len > 0 && masked[at..at + len].iter().all(|masked| *masked) {
                *label = NO_LABEL;
                self.statistics.masked_tokens += 1;
            }
            at += len;
        }
    }

    fn masked_bytes(&self, characters: &Characters) -> Vec<bool> {
        let at_level = |kind: &Kind| match kind {
            Kind::Layout => self.level >= Level::Conservative,
            Kind::Quote | Kind::Null => self.level >= Level::Moderate,
            Kind::Key | Kind::Value => false,
        };
        let mut masked: Vec<bool> = characters.kinds.iter().map(at_level).collect();
        if self.level == Level::Aggressive {
            for key in characters.keys.iter().filter(|key| self.keys.contains(&self.text[(*key).clone()])) {
                masked[key.clone()].fill(true);
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END_OF_TURN: u32 = 1000;

    /// A tokenizer of the given pieces: ids are places in the list.
    fn tokens(pieces: &[&str]) -> (Vec<u32>, TokenBytes) {
        let ids = (0..pieces.len() as u32).collect();
        let table = TokenBytes::from_bytes(
            pieces.iter().enumerate().map(|(id, piece)| (id as u32, piece.as_bytes())),
        );
        (ids, table)
    }

    /// Which pieces keep their labels.
    fn kept<'a>(level: Level, keys: &[&str], pieces: &[&'a str]) -> Vec<&'a str> {
        let (ids, table) = tokens(pieces);
        let mut labels: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let mut loss = SelectiveLoss::new(level, keys.iter().map(|key| (*key).to_owned()), table);
        loss.apply(&ids, &mut labels);
        pieces.iter().zip(&labels).filter(|(_, label)| **label != NO_LABEL).map(|(piece, _)| *piece).collect()
    }

    const PIECES: [&str; 14] =
        ["{", "\"", "colour", "\"", ":", " ", "\"", "red", "\"", ", ", "\"size", "\":", " null", "}"];

    #[test]
    fn each_level_masks_what_it_says() {
        assert_eq!(kept(Level::None, &[], &PIECES), PIECES);
        assert_eq!(
            kept(Level::Conservative, &[], &PIECES),
            ["\"", "colour", "\"", "\"", "red", "\"", "\"size", "\":", " null"]
        );
        assert_eq!(kept(Level::Moderate, &[], &PIECES), ["colour", "red", "\"size"]);
        assert_eq!(kept(Level::Aggressive, &["colour"], &PIECES), ["red", "\"size"]);
        assert_eq!(kept(Level::Aggressive, &["colour", "size"], &PIECES), ["red"]);
    }

    #[test]
    fn a_token_is_masked_only_if_all_its_characters_are() {
        // The quote and the colon go, but the 7 shares a token with the brace.
        assert_eq!(kept(Level::Aggressive, &["a"], &["{\"", "a", "\":", "7}"]), ["7}"]);
    }

    #[test]
    fn values_are_never_masked_even_if_they_look_like_keys() {
        let pieces = ["{", "\"a\"", ":", "[", "\"a\"", ",", "true", ",", "0", "]", "}"];
        assert_eq!(kept(Level::Aggressive, &["a"], &pieces), ["\"a\"", "true", "0"]);
    }

    #[test]
    fn other_text_is_left_alone_and_counted() {
        let pieces = ["a ", "red", " {square}"];
        let (ids, table) = tokens(&pieces);
        let mut labels = vec![1, 2, 3];
        let mut loss = SelectiveLoss::new(Level::Aggressive, [], table);
        loss.apply(&ids, &mut labels);
        assert_eq!(labels, [1, 2, 3]);
        let expected = Statistics { labelled_tokens: 3, masked_tokens: 0, json_answers: 0, other_answers: 1 };
        assert_eq!(loss.statistics(), expected);
    }

    #[test]
    fn special_tokens_end_an_answer_and_keep_their_labels() {
        let (_, table) = tokens(&["{}", "[", "1", "]", "\n"]);
        // Two answers of a packed batch, with a prompt between them.
        let ids = [0, END_OF_TURN, 4, 2, 2, 1, 2, 3, END_OF_TURN];
        const X: i32 = NO_LABEL;
        let mut labels = [7, 7, 7, X, X, 7, 7, 7, 7];
        let mut loss = SelectiveLoss::new(Level::Conservative, [], table);
        loss.apply(&ids, &mut labels);
        assert_eq!(labels, [X, 7, 7, X, X, X, 7, X, 7]);
        let expected = Statistics { labelled_tokens: 7, masked_tokens: 3, json_answers: 2, other_answers: 0 };
        assert_eq!(loss.statistics(), expected);
    }

    #[test]
    fn a_character_split_over_tokens_is_still_one_value() {
        let (ids, _) = tokens(&["[\"", "\u{e4}", "x", "\"]"]);
        let pieces: [&[u8]; 4] = [b"[\"", b"\xc3", b"\xa4", b"\"]"];
        let table =
            TokenBytes::from_bytes(pieces.into_iter().enumerate().map(|(id, piece)| (id as u32, piece)));
        let mut labels = [1; 4];
        SelectiveLoss::new(Level::Moderate, [], table).apply(&ids, &mut labels);
        assert_eq!(labels, [NO_LABEL, 1, 1, NO_LABEL]);
    }
}
