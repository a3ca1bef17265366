//! The fields of an object, and which of them were read.
//!
//! Takes an object of a row and gives its fields by name. Afterwards it reports every field that nobody asked
//! for: one that would change what is learned is an error that names it, any other is named in the survey. So
//! nothing is dropped silently.

use super::{images, shorten};
use crate::{error::BadRow, row::ImageSource, value::Value};
use std::cell::Cell;

/// How many fields of an object are tracked; any further ones count as unread.
const NOTED: u32 = u128::BITS;
/// How many ignored fields are named for each row; more would only cost memory.
const MOST_IGNORED: usize = 32;

/// Which values of a field are refused; blank ones never are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum If {
    /// Anything.
    Given,
    /// Anything but 1.
    NotOne,
    /// A truth value; other values are classes and ids.
    Truth,
}

/// A field that other tools follow and that is not followed here.
#[derive(Clone, Copy)]
pub(in crate::shape) struct Refusal {
    /// Its name.
    pub field: &'static str,
    when: If,
    /// What to do about it.
    advice: &'static str,
}

impl Refusal {
    /// Refuses the field whatever it says. `advice` says what to do about it.
    pub const fn given(field: &'static str, advice: &'static str) -> Self {
        Self { field, when: If::Given, advice }
    }

    /// Refuses a weight other than 1.
    pub const fn unless_one(field: &'static str, advice: &'static str) -> Self {
        Self { field, when: If::NotOne, advice }
    }

    /// Refuses a truth value.
    pub const fn if_truth(field: &'static str, advice: &'static str) -> Self {
        Self { field, when: If::Truth, advice }
    }
}

/// What a field of a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shape) enum Meaning {
    /// The question.
    Question,
    /// The answer.
    Answer,
    /// Questions and answers.
    Conversation,
    /// Images.
    Image,
    /// Something that no other field says.
    Other,
    /// The same, but columns cannot be given this meaning.
    Fixed,
}

impl Meaning {
    /// Whether two fields of these meanings would say the same thing.
    pub fn rivals(self, other: Self) -> bool {
        match (self, other) {
            (Self::Other | Self::Fixed, _) => false,
            (Self::Conversation, Self::Question | Self::Answer)
            | (Self::Question | Self::Answer, Self::Conversation) => true,
            (one, other) => one == other,
        }
    }
}

/// A field that a shape reads.
pub(in crate::shape) struct Field {
    pub name: &'static str,
    pub meaning: Meaning,
}

impl Field {
    pub const fn question(name: &'static str) -> Self {
        Self { name, meaning: Meaning::Question }
    }

    pub const fn answer(name: &'static str) -> Self {
        Self { name, meaning: Meaning::Answer }
    }

    pub const fn conversation(name: &'static str) -> Self {
        Self { name, meaning: Meaning::Conversation }
    }

    pub const fn image(name: &'static str) -> Self {
        Self { name, meaning: Meaning::Image }
    }

    pub const fn other(name: &'static str) -> Self {
        Self { name, meaning: Meaning::Other }
    }

    pub const fn fixed(name: &'static str) -> Self {
        Self { name, meaning: Meaning::Fixed }
    }
}

const NO_VIDEO: &str = "videos are not trained on; remove the field, or the row";
const NO_AUDIO: &str = "sound is not trained on; remove the field, or the row";
const NO_PAIRS: &str = "preference pairs are not trained on; keep the answer to learn as 'completion'";
const NO_WEIGHT: &str = "rows cannot be weighted; repeat the row, or remove the field";
const OLD_TOOLS: &str = "this is the old spelling; write 'tools' and 'tool_calls'";
const NO_THOUGHTS: &str = "thoughts are not learned from a field of their own; write them into the content";
const IMAGES_BESIDE: &str = "images belong into the parts of the content, or beside the messages";
const SIZES: &str = "images are sized alike; remove it and set the limits for all of them";
const CHOICES: &str = "write the choices into the question";

/// Refused beside any shape.
const OF_ROWS: &[Refusal] = &[
    Refusal::given("videos", NO_VIDEO),
    Refusal::given("video", NO_VIDEO),
    Refusal::given("audios", NO_AUDIO),
    Refusal::given("audio", NO_AUDIO),
    Refusal::given("functions", OLD_TOOLS),
    Refusal::given("function_call", OLD_TOOLS),
    Refusal::given("chosen", NO_PAIRS),
    Refusal::given("rejected", NO_PAIRS),
    Refusal::if_truth(
        "label",
        "rows judged good or bad are not trained on; keep the good ones and remove the field",
    ),
    Refusal::unless_one("weight", NO_WEIGHT),
    Refusal::unless_one("sample_weight", NO_WEIGHT),
    Refusal::unless_one("loss_weight", NO_WEIGHT),
    Refusal::given("system_prompt", "name it 'system'"),
    Refusal::given("documents", "write the documents into the conversation"),
    Refusal::given("chat_template_kwargs", "the chat template is run without settings; remove the field"),
];

/// Refused beside a question in a field of its own: the other shapes have the choices inside their messages.
pub(in crate::shape) const NO_CHOICES: &[Refusal] =
    &[Refusal::given("choices", CHOICES), Refusal::given("options", CHOICES)];

const OF_MESSAGES: &[Refusal] = &[
    Refusal::given("function_call", OLD_TOOLS),
    Refusal::given("images", IMAGES_BESIDE),
    Refusal::given("image", IMAGES_BESIDE),
    Refusal::given("videos", NO_VIDEO),
    Refusal::given("video", NO_VIDEO),
    Refusal::given("audio", NO_AUDIO),
    Refusal::given("refusal", "write the refusal as the content"),
    Refusal::given("reasoning_content", NO_THOUGHTS),
    Refusal::given("reasoning", NO_THOUGHTS),
    Refusal::given("thinking", NO_THOUGHTS),
    Refusal::unless_one("loss_weight", "only weight 0 and 1 are followed; remove the field"),
    Refusal::unless_one("loss_scale", "only weight 0 and 1 are followed; remove the field"),
];

const OF_PARTS: &[Refusal] = &[
    Refusal::given("min_pixels", SIZES),
    Refusal::given("max_pixels", SIZES),
    Refusal::given("total_pixels", SIZES),
    Refusal::given("resized_height", SIZES),
    Refusal::given("resized_width", SIZES),
    Refusal::given("video", NO_VIDEO),
    Refusal::given("audio", NO_AUDIO),
];

/// What an object is, which decides what is refused in it.
#[derive(Clone, Copy)]
pub(in crate::shape) enum Place {
    /// A row, with the refusals of its shape.
    Row(&'static [Refusal]),
    Message,
    Part,
}

impl Place {
    fn refusals(self) -> [&'static [Refusal]; 2] {
        match self {
            Self::Row(own) => [OF_ROWS, own],
            Self::Message => [OF_MESSAGES, &[]],
            Self::Part => [OF_PARTS, &[]],
        }
    }
}

/// The fields of a row that every shape refuses.
pub(in crate::shape) fn refused_of_rows() -> impl Iterator<Item = &'static str> {
    OF_ROWS.iter().map(|refusal| refusal.field)
}

/// An object whose fields are read by name.
pub(in crate::shape) struct Fields<'r, 'a> {
    value: &'r Value<'a>,
    /// A bit for each field that was read.
    read: Cell<u128>,
}

impl<'r, 'a> Fields<'r, 'a> {
    pub fn new(value: &'r Value<'a>) -> Self {
        Self { value, read: Cell::new(0) }
    }

    fn all(&self) -> &'r [(std::borrow::Cow<'a, str>, Value<'a>)] {
        match self.value {
            Value::Map(fields) => fields,
            _ => &[],
        }
    }

    /// Whether there is such a field and it says something; it does not count as read.
    pub fn has(&self, name: &str) -> bool {
        self.value.get(name).is_some_and(|value| !value.is_blank())
    }

    /// The one of these fields that says something, or else the first that is there. Two that say something
    /// are an error.
    pub fn only(&self, names: &[&'static str]) -> Result<Option<&'static str>, BadRow> {
        let mut said = names.iter().copied().filter(|name| self.has(name));
        match (said.next(), said.next()) {
            (Some(first), Some(second)) => Err(BadRow::Twice { first, second }),
            (Some(first), None) => Ok(Some(first)),
            (None, _) => Ok(names.iter().copied().find(|name| self.peek(name).is_some())),
        }
    }

    /// A field, unless it is absent or null; it does not count as read.
    pub fn peek(&self, name: &str) -> Option<&'r Value<'a>> {
        self.value.get(name)
    }

    /// A field, unless it is absent or null. It counts as read.
    pub fn get(&self, name: &str) -> Option<&'r Value<'a>> {
        let place = self.all().iter().position(|(key, _)| key == name)?;
        if (place as u32) < NOTED {
            self.read.set(self.read.get() | 1 << place);
        }
        Some(&self.all()[place].1).filter(|value| !value.is_null())
    }

    /// The images of a field, one or a list, each in any spelling; none if it is absent. It counts as read.
    pub fn images_of(&self, field: &str) -> Result<Vec<ImageSource>, BadRow> {
        self.get(field).map_or_else(|| Ok(Vec::new()), images::list)
    }

    /// Refuses a field that was not read if one of the same meaning was. `known` are the fields of the shape.
    pub fn refuse_rivals(&self, known: impl Iterator<Item = &'static Field> + Clone) -> Result<(), BadRow> {
        let said = known.filter(|field| self.has(field.name));
        let is = |read| move |field: &&Field| self.is_read(field.name) == Some(read);
        for second in said.clone().filter(is(false)) {
            let mut read = said.clone().filter(is(true));
            if let Some(first) = read.find(|first| first.meaning.rivals(second.meaning)) {
                return Err(BadRow::Twice { first: first.name, second: second.name });
            }
        }
        Ok(())
    }

    /// Whether a field was read; unknown for one that is absent or not tracked.
    fn is_read(&self, name: &str) -> Option<bool> {
        let place = self.all().iter().position(|(key, _)| key == name)?;
        ((place as u32) < NOTED).then(|| self.read.get() & (1 << place) != 0)
    }

    /// A field that must be text.
    pub fn text(&self, field: &'static str) -> Result<&'r str, BadRow> {
        match self.get(field) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(self.wrong(field, "text")),
        }
    }

    /// A field that must be text, if it is given.
    pub fn optional_text(&self, field: &'static str) -> Result<Option<&'r str>, BadRow> {
        self.has(field).then(|| self.text(field)).transpose()
    }

    /// The error that a field is not what it should be.
    pub fn wrong(&self, field: &'static str, expected: &'static str) -> BadRow {
        BadRow::Field { field, expected, found: self.value.get(field).map_or("nothing", Value::kind) }
    }

    /// What says something and was not read: refused where it would change what is learned, else added to
    /// `ignored` under its name.
    pub fn finish(&self, place: Place, ignored: &mut Ignored) -> Result<(), BadRow> {
        let unread = self.all().iter().enumerate().filter(|(at, (_, value))| {
            !value.is_blank() && ((*at as u32) >= NOTED || self.read.get() & (1 << at) == 0)
        });
        for (_, (key, value)) in unread {
            if let Some(Refusal { field, advice, .. }) = refusal(place, key, value) {
                return Err(BadRow::Refused { field, advice });
            }
            if matches!(place, Place::Row(_)) && ignored.image.is_none() && images::is_meant(key, value) {
                ignored.image = Some(shorten(key));
            }
            ignored.add(place, key);
        }
        Ok(())
    }
}

fn refusal(place: Place, key: &str, value: &Value<'_>) -> Option<Refusal> {
    let applies = |refusal: &&Refusal| {
        refusal.field == key
            && match refusal.when {
                If::Given => true,
                If::NotOne => !matches!(value, Value::Integer(1)) && *value != Value::Number(1.0),
                If::Truth => matches!(value, Value::Bool(_)),
            }
    };
    place.refusals().into_iter().flatten().find(applies).copied()
}

/// The fields of a row that no shape reads.
#[derive(Debug, Default)]
pub(in crate::shape) struct Ignored {
    /// Their names, each once.
    pub names: Vec<String>,
    /// The first of them that holds an image.
    pub image: Option<String>,
}

impl Ignored {
    fn add(&mut self, place: Place, key: &str) {
        let name = match place {
            Place::Row(_) => shorten(key),
            Place::Message => format!("messages.{}", shorten(key)),
            Place::Part => format!("content.{}", shorten(key)),
        };
        if self.names.len() < MOST_IGNORED && !self.names.contains(&name) {
            self.names.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_means_the_same_as_one_that_was_read_is_refused_unless_it_was_read_too() {
        const KNOWN: &[Field] = &[Field::image("image"), Field::image("pic"), Field::question("ask")];
        let rivals = |row: &str, read: &[&str]| {
            let row = Value::from_json(row.as_bytes()).expect("JSON");
            let fields = Fields::new(&row);
            read.iter().for_each(|name| drop(fields.images_of(name)));
            fields.refuse_rivals(KNOWN.iter()).err().map(|error| error.to_string())
        };
        let both = r#"{"pic": "a.png", "image": "b.png", "ask": "What?"}"#;
        let refused = Some("'pic' and 'image' are both given: keep one of them".to_owned());
        assert_eq!(rivals(both, &["pic"]), refused);
        assert_eq!(rivals(both, &["pic", "image"]), None, "both are read");
        assert_eq!(rivals(both, &["ask"]), None, "another meaning");
        assert_eq!(rivals(r#"{"pic": "a.png", "image": ""}"#, &["pic"]), None, "it says nothing");
        assert_eq!(
            rivals(r#"{"pic": null, "image": "b.png"}"#, &["pic"]),
            None,
            "what was read says nothing"
        );
    }
}
