//! The keys that a dataset's answers share.
//!
//! Takes the texts of the first answers and gives the keys that at least 30 % of them use. A key counts once
//! in an answer, however often it occurs there.

use super::characters::classify;
use garden_data::{Conversation, Part, Role};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that are looked at: enough to see a schema, few enough to cost nothing.
pub const ROWS_LOOKED_AT: usize = 50;
/// Share of the answers that must use a key before it is taken as part of the schema.
const SHARE: f64 = 0.3;

/// Counts keys, answer by answer.
#[derive(Debug, Default)]
pub struct KeyFinder {
    answers: usize,
    counts: BTreeMap<Vec<u8>, usize>,
}

impl KeyFinder {
    /// Looks at what the assistant says in a row.
    pub fn observe_row(&mut self, row: &Conversation) {
        for turn in row.turns.iter().filter(|turn| turn.role == Role::Assistant) {
            let text = turn.parts.iter().filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::Image(_) => None,
            });
            self.observe(&text.collect::<String>());
        }
    }

    /// Whether it has seen as many answers as it looks at: its keys are final.
    pub fn is_done(&self) -> bool {
        self.answers == ROWS_LOOKED_AT
    }

    /// Looks at one answer; ignores those after the first [`ROWS_LOOKED_AT`].
    pub fn observe(&mut self, answer: &str) {
        if self.answers == ROWS_LOOKED_AT {
            return;
        }
        self.answers += 1;
        let text = answer.as_bytes();
        let Some(characters) = classify(text) else { return };
        let keys: BTreeSet<&[u8]> = characters.keys.iter().map(|key| &text[key.clone()]).collect();
        for key in keys {
            *self.counts.entry(key.to_vec()).or_default() += 1;
        }
    }

    /// The keys found, in order.
    pub fn keys(&self) -> Vec<String> {
        let enough = (self.answers as f64 * SHARE).ceil() as usize;
        let common = self.counts.iter().filter(|(_, count)| **count >= enough.max(1));
        common.filter_map(|(key, _)| String::from_utf8(key.clone()).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_thirty_percent_of_the_answers_is_found() {
        let mut finder = KeyFinder::default();
        for row in 0..10 {
            let rare = if row < 2 { r#","rare":1"# } else { "" };
            let third = if row < 3 { r#","third":1"# } else { "" };
            finder.observe(&format!(r#"{{"all":[{{"inner":1}},{{"inner":2}}]{rare}{third}}}"#));
        }
        assert_eq!(finder.keys(), ["all", "inner", "third"]);
    }

    #[test]
    fn answers_that_are_not_json_count_against_a_key() {
        let mut finder = KeyFinder::default();
        finder.observe(r#"{"a":1}"#);
        (0..4).for_each(|_| finder.observe("a red square"));
        assert!(finder.keys().is_empty(), "one in five is less than 30 %");
    }

    #[test]
    fn only_the_first_fifty_are_looked_at() {
        let mut finder = KeyFinder::default();
        (0..ROWS_LOOKED_AT).for_each(|_| finder.observe(r#"{"a":1}"#));
        (0..1000).for_each(|_| finder.observe(r#"{"b":1}"#));
        assert_eq!(finder.keys(), ["a"]);
    }
}
