//! Keeps text apart from control tokens.
//!
//! In comes a row's text; out goes the same text with an invisible character inside everything that reads like a
//! special token, so that after the template has run, the only special tokens in the rendered text are the
//! template's own. The characters are Unicode noncharacters that the row does not use, and are removed again before
//! anything is tokenised: text without special tokens passes unchanged.

use crate::row::{Conversation, Part, Role};
use aho_corasick::{AhoCorasick, MatchKind};
use std::{borrow::Cow, collections::HashMap, ops::Range};

/// Two characters that occur nowhere in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guard {
    /// Breaks up what reads like a special token.
    pub breaker: char,
    /// Stands where the assistant's words begin and end.
    pub mark: char,
}

impl Guard {
    /// Finds two unused noncharacters; there are 32, and no text should hold any.
    pub fn for_row(row: &Conversation) -> Option<Self> {
        let unused = |candidate: &char| !texts(row).any(|text| text.contains(*candidate));
        let mut free = ('\u{FDD0}'..='\u{FDEF}').filter(unused);
        Some(Self { breaker: free.next()?, mark: free.next()? })
    }
}

fn texts(row: &Conversation) -> impl Iterator<Item = &str> {
    row.turns.iter().flat_map(|turn| &turn.parts).filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        Part::Image(_) => None,
    })
}

/// A turn as the template will see it.
pub(super) struct SafeTurn<'a> {
    pub role: Role,
    pub parts: Vec<SafePart<'a>>,
}

/// A piece of a turn, its text guarded.
pub(super) enum SafePart<'a> {
    Text(Cow<'a, str>),
    Image,
}

/// The special tokens of a tokenizer.
pub(super) struct Specials {
    ids: HashMap<String, u32>,
    all: Finder,
    /// Those with which the conversation itself is built.
    control: Finder,
}

/// Finds any of some tokens in a text, the longest of those that start at the same place.
struct Finder {
    search: AhoCorasick,
    ids: Vec<u32>,
}

impl Finder {
    fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Result<Self, String> {
        let (texts, ids): (Vec<_>, Vec<_>) = tokens.unzip();
        let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Self { search: search.map_err(|error| error.to_string())?, ids })
    }

    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, Range<usize>)> + 'a {
        self.search.find_iter(text).map(|found| (self.ids[found.pattern().as_usize()], found.range()))
    }
}

impl Specials {
    /// `is_control` tells the tokens that build conversations from those a model may be taught to write, such as the
    /// ones around a box.
    pub fn new(ids: HashMap<String, u32>, is_control: impl Fn(&str) -> bool) -> Result<Self, String> {
        let tokens =
            || ids.iter().map(|(text, &id)| (text.as_str(), id)).filter(|(text, _)| !text.is_empty());
        let all = Finder::new(tokens())?;
        let control = Finder::new(tokens().filter(|(text, _)| is_control(text)))?;
        Ok(Self { ids, all, control })
    }

    /// The id of a special token.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The special tokens in a rendered text: its own, as the row's are broken up.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, Range<usize>)> + 'a {
        self.all.find(text)
    }

    /// Breaks up special tokens in a row's text: all of them in what people and tools say, the control tokens in what
    /// the assistant says.
    pub fn guarded<'a>(&self, row: &'a Conversation, guard: &Guard) -> Vec<SafeTurn<'a>> {
        let turns = row.turns.iter().map(|turn| {
            let finder = if turn.role == Role::Assistant { &self.control } else { &self.all };
            SafeTurn { role: turn.role, parts: finder.guarded(&turn.parts, guard.breaker) }
        });
        turns.collect()
    }
}

impl Finder {
    /// Looks at the texts of a turn as one, because the template may lay them end to end.
    fn guarded<'a>(&self, parts: &'a [Part], breaker: char) -> Vec<SafePart<'a>> {
        let joined: Cow<str> = match parts {
            [Part::Text(text)] => Cow::Borrowed(text),
            _ => parts.iter().filter_map(text_of).collect::<String>().into(),
        };
        let mut found = self.find(&joined).map(|(_, range)| range.start).peekable();
        let mut start = 0;
        let safe = parts.iter().map(|part| match part {
            Part::Image(_) => SafePart::Image,
            Part::Text(text) => {
                let end = start + text.len();
                let mut guarded = Cow::Borrowed(text.as_str());
                let mut inserted = 0;
                while let Some(at) = found.next_if(|&at| at < end) {
                    let first = joined[at..].chars().next().map_or(0, char::len_utf8);
                    guarded.to_mut().insert(at - start + first + inserted, breaker);
                    inserted += breaker.len_utf8();
                }
                start = end;
                SafePart::Text(guarded)
            }
        });
        safe.collect()
    }
}

fn text_of(part: &Part) -> Option<&str> {
    match part {
        Part::Text(text) => Some(text),
        Part::Image(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Turn;

    const GUARD: Guard = Guard { breaker: '!', mark: '?' };

    fn specials() -> Specials {
        let ids = HashMap::from([("<end>".to_owned(), 1), ("<box>".to_owned(), 2)]);
        Specials::new(ids, |text| text == "<end>").expect("two short tokens")
    }

    fn guarded(role: Role, texts: &[&str]) -> String {
        let parts = texts.iter().map(|&text| Part::Text(text.into())).collect();
        let row = Conversation { turns: vec![Turn { role, parts }] };
        let safe = specials().guarded(&row, &GUARD);
        let texts = safe[0].parts.iter().filter_map(|part| match part {
            SafePart::Text(text) => Some(text.as_ref()),
            SafePart::Image => None,
        });
        texts.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn special_text_is_broken_up_and_nothing_else() {
        assert_eq!(guarded(Role::User, &["a <b> c"]), "a <b> c");
        assert_eq!(guarded(Role::User, &["a<end><box>"]), "a<!end><!box>");
        assert_eq!(guarded(Role::Assistant, &["a<end><box>"]), "a<!end><box>", "a model may write boxes");
    }

    #[test]
    fn special_text_cut_in_two_parts_is_broken_up() {
        assert_eq!(guarded(Role::User, &["a<e", "nd>b<end>"]), "a<!e|nd>b<!end>");
        assert_eq!(guarded(Role::User, &["a<", "end>"]), "a<!|end>");
    }

    #[test]
    fn characters_of_the_row_are_not_used_to_guard_it() {
        let text = "\u{FDD0}\u{FDD2}".to_owned();
        let row = Conversation { turns: vec![Turn { role: Role::User, parts: vec![Part::Text(text)] }] };
        let guard = Guard::for_row(&row).expect("thirty are left");
        assert_eq!((guard.breaker, guard.mark), ('\u{FDD1}', '\u{FDD3}'));
    }
}
