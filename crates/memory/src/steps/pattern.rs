//! The user's own patterns, for lines that the known forms do not cover.

use regex::{Captures, Regex};
use std::str::FromStr;

/// A pattern that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadPattern {
    /// It is no regular expression.
    #[error("not a regular expression: {0}")]
    Syntax(#[from] regex::Error),
    /// It captures nothing.
    #[error("the pattern has no group: put the number in parentheses, as in 'it=(\\d+)'")]
    NoGroup,
}

/// A regular expression whose groups are what is looked for in a line.
#[derive(Debug, Clone)]
pub struct LinePattern(Regex);

impl FromStr for LinePattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let regex = Regex::new(text)?;
        if regex.captures_len() < 2 { Err(BadPattern::NoGroup) } else { Ok(Self(regex)) }
    }
}

impl LinePattern {
    /// What the group called `name` holds, or else the group at `position`.
    pub(crate) fn find<'a>(&self, line: &'a str, name: &str, position: usize) -> Option<&'a str> {
        let found: Captures<'a> = self.0.captures(line)?;
        found.name(name).or_else(|| found.get(position)).map(|group| group.as_str())
    }

    /// What the group called `name` holds, if the pattern has one.
    pub(crate) fn named<'a>(&self, line: &'a str, name: &str) -> Option<&'a str> {
        self.0.captures(line)?.name(name).map(|group| group.as_str())
    }
}

/// How steps and epochs are written, in the user's words; `None` means the known forms.
#[derive(Debug, Clone, Default)]
pub struct StepPatterns {
    /// The step is the group named `step`, or the first one; a group named `epoch` gives the epoch. With it,
    /// no known form is read.
    pub step: Option<LinePattern>,
    /// The epoch is the group named `epoch`, or the first one.
    pub epoch: Option<LinePattern>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_a_group_or_with_bad_syntax_is_refused() {
        let refuse = |text: &str| text.parse::<LinePattern>().expect_err("an error").to_string();
        assert!(refuse(r"it=\d+").contains("has no group"));
        assert!(refuse(r"it=(").contains("not a regular expression"));
    }
}
