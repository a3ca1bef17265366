//! Keeps text apart from control tokens.
//!
//! Takes a row's text and gives the same text with an invisible character inside everything that reads like a
//! control token, so that after the template has run, the only control tokens in the rendered text are the
//! template's own. The characters are Unicode noncharacters that the row does not use, and are removed again
//! before anything is tokenised: text without control tokens passes unchanged.

use crate::row::{Conversation, Json, Part, Role};
use aho_corasick::{AhoCorasick, MatchKind};
use std::{borrow::Cow, collections::HashMap, ops::Range};

/// What stands for a piece of an image, unless the tokenizer's configuration names another token.
pub(super) const IMAGE_TOKEN: &str = "<|image_pad|>";

/// Special tokens that build a conversation, whatever the template shows of them: in the text of a row they
/// stay text, since a row that could write them could end its turn, speak for another role, or claim an
/// image. Every other special token is a word that people and models write, such as `<|box_start|>` in
/// grounding data, and is one token as in HF.
const CONTROL: [(&str, &str); 8] = [
    ("<|im_start|>", "begins a turn"),
    ("<|im_end|>", "ends a turn"),
    ("<|endoftext|>", "ends the text, and pads"),
    ("<|vision_start|>", "begins an image or a video"),
    ("<|vision_end|>", "ends an image or a video"),
    ("<|vision_pad|>", "stands for a piece of an image"),
    (IMAGE_TOKEN, "stands for a piece of an image"),
    ("<|video_pad|>", "stands for a piece of a video"),
];

/// Whether a special token builds conversations in every model that has it.
pub(super) fn is_control(token: &str) -> bool {
    CONTROL.iter().any(|(control, _)| *control == token)
}

/// Two characters that occur nowhere in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guard {
    /// Breaks up what reads like a control token.
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
    let of_turns = row.turns.iter().flat_map(|turn| {
        let words = turn.parts.iter().filter_map(text_of);
        let names = [&turn.name, &turn.tool_call_id].into_iter().flatten().map(String::as_str);
        words.chain(names).chain(turn.tool_calls.iter().flat_map(Json::texts))
    });
    of_turns.chain(row.tools.iter().flat_map(Json::texts))
}

/// A row as the template will see it.
pub(super) struct SafeRow<'a> {
    pub turns: Vec<SafeTurn<'a>>,
    pub tools: Vec<Json>,
}

/// A turn as the template will see it.
pub(super) struct SafeTurn<'a> {
    pub role: Role,
    pub parts: Vec<SafePart<'a>>,
    pub tool_calls: Vec<Json>,
    pub name: Option<String>,
    pub tool_call_id: Option<String>,
}

/// A piece of a turn, its text guarded.
pub(super) enum SafePart<'a> {
    Text(Cow<'a, str>),
    Image,
}

/// What a special token takes with it, and where it is one at all: the settings of an added token of HF's tokenizers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Edges {
    /// It takes the blanks before it.
    pub lstrip: bool,
    /// It takes the blanks after it.
    pub rstrip: bool,
    /// It is a token only between characters that belong to no word.
    pub single_word: bool,
}

impl Edges {
    /// What a token at `range` covers, if it is one there. `free` is where the token before it ends.
    fn around(self, text: &str, range: Range<usize>, free: usize) -> Option<Range<usize>> {
        let (before, after) = (&text[..range.start], &text[range.end..]);
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        if self.single_word && (before.ends_with(in_word) || after.starts_with(in_word)) {
            return None;
        }
        let start = if self.lstrip { before.trim_end().len().max(free) } else { range.start };
        let end = if self.rstrip { text.len() - after.trim_start().len() } else { range.end };
        Some(start..end)
    }
}

/// The special tokens of a tokenizer.
pub(super) struct Specials {
    ids: HashMap<String, u32>,
    /// Those that are not found just where their text is.
    edges: HashMap<u32, Edges>,
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
    /// `is_control` tells the tokens that build conversations from those that are words.
    pub fn new(ids: HashMap<String, u32>, is_control: impl Fn(&str) -> bool) -> Result<Self, String> {
        let tokens =
            || ids.iter().map(|(text, &id)| (text.as_str(), id)).filter(|(text, _)| !text.is_empty());
        let all = Finder::new(tokens())?;
        let control = Finder::new(tokens().filter(|(text, _)| is_control(text)))?;
        Ok(Self { ids, edges: HashMap::new(), all, control })
    }

    /// The same with the edges of these tokens.
    pub fn with_edges(self, edges: HashMap<u32, Edges>) -> Self {
        Self { edges, ..self }
    }

    /// The id of a special token.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The special tokens in a rendered text: the template's own, and words of the row.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, Range<usize>)> + 'a {
        let mut free = 0;
        self.all.find(text).filter_map(move |(id, range)| {
            let edges = self.edges.get(&id).copied().unwrap_or_default();
            let range = edges.around(text, range, free)?;
            free = range.end;
            Some((id, range))
        })
    }

    /// Where the last special token of a text begins; its end where it has none.
    pub fn last(&self, text: &str) -> usize {
        self.find(text).last().map_or(text.len(), |(_, range)| range.start)
    }

    /// Breaks up the control tokens in everything that a row says.
    pub fn guarded<'a>(&self, row: &'a Conversation, guard: &Guard) -> SafeRow<'a> {
        let breaker = guard.breaker;
        let json =
            |values: &[Json]| values.iter().map(|value| self.control.guarded_json(value, breaker)).collect();
        let text = |text: &Option<String>| text.as_ref().map(|text| self.control.guarded_text(text, breaker));
        let turns = row.turns.iter().map(|turn| SafeTurn {
            role: turn.role,
            parts: self.control.guarded(&turn.parts, breaker),
            tool_calls: json(&turn.tool_calls),
            name: text(&turn.name),
            tool_call_id: text(&turn.tool_call_id),
        });
        SafeRow { turns: turns.collect(), tools: json(&row.tools) }
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

impl Finder {
    fn guarded_text(&self, text: &str, breaker: char) -> String {
        let mut guarded = text.to_owned();
        let places: Vec<usize> = self.find(text).map(|(_, range)| range.start).collect();
        for at in places.into_iter().rev() {
            let first = text[at..].chars().next().map_or(0, char::len_utf8);
            guarded.insert(at + first, breaker);
        }
        guarded
    }

    fn guarded_json(&self, value: &Json, breaker: char) -> Json {
        match value {
            Json::Text(text) => Json::Text(self.guarded_text(text, breaker)),
            Json::List(list) => Json::List(list.iter().map(|one| self.guarded_json(one, breaker)).collect()),
            Json::Map(fields) => Json::Map(
                fields
                    .iter()
                    .map(|(key, value)| (self.guarded_text(key, breaker), self.guarded_json(value, breaker)))
                    .collect(),
            ),
            other => other.clone(),
        }
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
        let row = Conversation { turns: vec![Turn::new(role, parts)], ..Conversation::default() };
        let safe = specials().guarded(&row, &GUARD);
        let texts = safe.turns[0].parts.iter().filter_map(|part| match part {
            SafePart::Text(text) => Some(text.as_ref()),
            SafePart::Image => None,
        });
        texts.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn control_tokens_are_broken_up_and_nothing_else() {
        assert_eq!(guarded(Role::User, &["a <b> c"]), "a <b> c");
        for role in [Role::System, Role::User, Role::Assistant, Role::Tool] {
            assert_eq!(guarded(role, &["a<end><box>"]), "a<!end><box>", "anybody may write boxes");
        }
    }

    #[test]
    fn tokens_take_blanks_and_stand_alone_as_they_are_set_to() {
        let found = |edges: Edges, text| {
            let specials = specials().with_edges(HashMap::from([(2, edges)]));
            specials.find(text).map(|(id, range)| (id, range.start, range.end)).collect::<Vec<_>>()
        };
        let plain = Edges::default();
        assert_eq!(found(plain, "a <box> b"), [(2, 2, 7)]);
        assert_eq!(found(Edges { lstrip: true, ..plain }, "a \n<box> b"), [(2, 1, 8)]);
        let right = Edges { rstrip: true, ..plain };
        assert_eq!(found(right, "a <box> \u{a0}b"), [(2, 2, 10)]);
        let both = Edges { lstrip: true, ..right };
        assert_eq!(
            found(both, "<box> <box>"),
            [(2, 0, 6), (2, 6, 11)],
            "the first one takes the blank between"
        );
        let alone = Edges { single_word: true, ..plain };
        assert_eq!(found(alone, "a<box> <box>_ \u{e9}<box>.<box>"), [(2, 22, 27)]);
    }

    #[test]
    fn control_tokens_cut_in_two_parts_are_broken_up() {
        assert_eq!(guarded(Role::User, &["a<e", "nd>b<end>"]), "a<!e|nd>b<!end>");
        assert_eq!(guarded(Role::User, &["a<", "end>"]), "a<!|end>");
    }

    #[test]
    fn tools_and_their_calls_are_guarded_too() {
        let text = |text: &str| Json::Text(text.into());
        let call = |text| Json::Map(vec![("<end>".into(), Json::List(vec![text, Json::Integer(1)]))]);
        let mut turn = Turn::new(Role::Assistant, vec![]);
        turn.tool_calls = vec![call(text("a<end><end>"))];
        turn.name = Some("<end>".into());
        let row = Conversation { turns: vec![turn], tools: vec![call(text("<box>"))] };
        let safe = specials().guarded(&row, &GUARD);
        let guarded =
            |inner: &str| Json::Map(vec![("<!end>".into(), Json::List(vec![text(inner), Json::Integer(1)]))]);
        assert_eq!(safe.turns[0].tool_calls, [guarded("a<!end><!end>")]);
        assert_eq!(safe.turns[0].name.as_deref(), Some("<!end>"));
        assert_eq!(safe.tools, [guarded("<box>")]);
    }

    #[test]
    fn characters_of_the_row_are_not_used_to_guard_it() {
        let parts = vec![Part::Text("\u{FDD0}\u{FDD2}".to_owned())];
        let tools = vec![Json::Text("\u{FDD3}".to_owned())];
        let row = Conversation { turns: vec![Turn::new(Role::User, parts)], tools };
        let guard = Guard::for_row(&row).expect("thirty are left");
        assert_eq!((guard.breaker, guard.mark), ('\u{FDD1}', '\u{FDD4}'));
    }
}
