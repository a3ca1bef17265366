//! Sentences for people that may mention a setting.
//!
//! A library does not know how its user sets things: by a flag, a key or an argument. A [`Sentence`] says
//! everything in words of its own and carries the [`Setting`] it is about, so that a front end can name that
//! setting as its users know it.

use serde::{Serialize, Serializer};
use std::fmt;

/// What a user can set to get a better answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Which of several processes in a file is judged.
    Process,
    /// The unit of memory in a file.
    SizeUnit,
    /// The unit of times in a file.
    TimeUnit,
    /// How many rows the dataset has and how many of them one step uses.
    EpochLength,
    /// That a run is stopped and started again before it reaches its limit.
    RestartAtLimit,
    /// Recording a run again, for longer or more often.
    Recording,
}

/// A sentence, with the setting it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    text: String,
    setting: Option<Setting>,
}

impl Sentence {
    /// A sentence about a setting.
    pub(crate) fn about(setting: Setting, text: impl Into<String>) -> Self {
        Self { text: text.into(), setting: Some(setting) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same sentence with the words that `name` has for its setting, in brackets at the end. A sentence
    /// that names its setting is not about it any more, so naming twice changes nothing.
    fn naming(self, name: impl Fn(Setting) -> &'static str) -> Self {
        let Some(setting) = self.setting else { return self };
        let words = self.text.trim_end_matches('.');
        Self { text: format!("{words} ({}).", name(setting)), setting: None }
    }

    /// Names the settings of all sentences.
    pub(crate) fn name_all(sentences: &mut [Self], name: impl Fn(Setting) -> &'static str) {
        for sentence in sentences {
            let plain = std::mem::replace(sentence, Self::from(""));
            *sentence = plain.naming(&name);
        }
    }
}

impl From<String> for Sentence {
    fn from(text: String) -> Self {
        Self { text, setting: None }
    }
}

impl From<&str> for Sentence {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Serialize for Sentence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_named_once_and_where_there_is_one() {
        let mut sentences =
            vec![Sentence::about(Setting::SizeUnit, "It was taken for MB."), "Nothing to do.".into()];
        for _ in 0..2 {
            Sentence::name_all(&mut sentences, |_| "the flag U says another");
            let said: Vec<&str> = sentences.iter().map(Sentence::as_str).collect();
            assert_eq!(said, ["It was taken for MB (the flag U says another).", "Nothing to do."]);
        }
    }
}
