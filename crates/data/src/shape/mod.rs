//! The shapes in which people write rows, each recognised by itself.
//!
//! Takes a raw [`Value`] and gives the [`Conversation`] it means, the [`Shape`] it has, and the names of the
//! fields that no shape reads. A field that would change what is learned is followed or refused by name,
//! never dropped.
//!
//! Each shape is one file here that holds its `Definition`, and one line of `SHAPES`. What shapes are
//! made of is in `common`.

mod common;

mod alpaca;
mod caption;
mod llava;
mod marked_messages;
mod open_ai_messages;
mod question_answer;
mod share_gpt;
mod trl_messages;
mod trl_prompt_completion;

/// Every shape. The first that recognises a row reads it.
const SHAPES: &[Definition] = &[
    open_ai_messages::SHAPE,
    trl_messages::SHAPE,
    marked_messages::SHAPE,
    trl_prompt_completion::SHAPE,
    share_gpt::SHAPE,
    llava::SHAPE,
    alpaca::SHAPE,
    question_answer::SHAPE,
    caption::SHAPE,
];

pub(crate) use common::MARKER;

use crate::{
    error::BadRow,
    row::{Conversation, Json, Part, Role, Turn},
    value::Value,
};
use common::{Field, Meaning, Refusal, RowFields, may_hold_images, shorten, tools};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;

/// Everything about a shape.
struct Definition {
    /// Its name for programs.
    id: &'static str,
    /// Its name for people.
    name: &'static str,
    /// The fields that make it, in the message about a row of no known shape.
    looks: &'static str,
    /// The fields it looks at, besides those of every shape. Of two with the same meaning, it reads both or the
    /// row has only one: a second one that is left unread is refused.
    fields: &'static [Field],
    /// Fields that it refuses, besides those that every shape refuses.
    refuses: &'static [Refusal],
    /// Whether a row has this shape. An error if the row contradicts itself.
    recognises: fn(&mut RowFields<'_, '_>) -> Result<bool, BadRow>,
    /// Reads a row of this shape.
    read: fn(&mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow>,
}

impl Definition {
    /// The fields that have a meaning in a row of this shape.
    fn known(&self) -> impl Iterator<Item = &'static Field> + Clone {
        OF_EVERY_SHAPE.iter().chain(self.fields)
    }
}

/// Fields that mean the same in every shape.
const OF_EVERY_SHAPE: &[Field] = &[
    Field::image("image"),
    Field::image("images"),
    Field::fixed("file_name"),
    Field::fixed("file_names"),
    Field::other("system"),
    Field::other("tools"),
];
/// The meanings that are enough for most data; messages name them first.
const USUAL: [&str; 3] = ["prompt", "response", "image"];

fn fields() -> impl Iterator<Item = &'static Field> {
    OF_EVERY_SHAPE.iter().chain(SHAPES.iter().flat_map(|shape| shape.fields))
}

/// Whether a field of a row is worth reading: a shape reads it, or refuses it.
pub fn is_known_field(name: &str) -> bool {
    let refused = SHAPES.iter().flat_map(|shape| shape.refuses).map(|refusal| refusal.field);
    fields().any(|field| field.name == name)
        || common::refused_of_rows().chain(refused).any(|refused| refused == name)
}

/// The fields whose meaning a column can be given, each once.
pub(crate) fn meanings() -> Vec<&'static str> {
    let mut names = USUAL.to_vec();
    for field in fields().filter(|field| field.meaning != Meaning::Fixed) {
        if !names.contains(&field.name) {
            names.push(field.name);
        }
    }
    names
}

/// Whether two fields would mean the same: where one is named, the other is not meant.
pub(crate) fn are_rivals(one: &str, other: &str) -> bool {
    let meaning = |name: &str| fields().find(|field| field.name == name).map(|field| field.meaning);
    meaning(one).zip(meaning(other)).is_some_and(|(one, other)| one.rivals(other))
}

/// What a row of any shape looks like, in words.
pub(crate) fn expected() -> String {
    let mut looks: Vec<&str> = SHAPES.iter().map(|shape| shape.looks).collect();
    looks.dedup();
    let last = looks.pop().unwrap_or_default();
    format!("{}, or {last}", looks.join(", "))
}

/// How a row is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Its place in [`SHAPES`].
    index: usize,
}

impl Shape {
    /// Its name for programs, such as `open-ai-messages`.
    pub(crate) fn id(self) -> &'static str {
        SHAPES[self.index].id
    }

    #[cfg(test)]
    pub(crate) fn by_id(id: &str) -> Self {
        Self { index: SHAPES.iter().position(|shape| shape.id == id).expect("a shape") }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(SHAPES[self.index].name)
    }
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        let index = SHAPES.iter().position(|shape| shape.id == id);
        index
            .map(|index| Self { index })
            .ok_or_else(|| D::Error::custom(format!("no shape of rows is called '{id}'")))
    }
}

/// A row whose shape was recognised.
#[derive(Debug)]
pub struct Reading {
    /// How it is written.
    pub shape: Shape,
    /// What it says.
    pub conversation: Conversation,
    /// Fields that no shape reads, by name; those inside messages and parts with what they are in.
    pub ignored: Vec<String>,
}

/// Recognises the shape of a row and reads it.
pub fn read(value: &Value<'_>) -> Result<Reading, BadRow> {
    let mut row = RowFields::new(value);
    let shape = recognise(&mut row)?.ok_or_else(|| BadRow::Shape { keys: keys(value) })?;
    let definition = &SHAPES[shape.index];
    let mut turns = (definition.read)(&mut row)?;
    add_system(&row, &mut turns)?;
    let tools = tools(&row)?;
    check_turns(&turns)?;
    row.refuse_rivals(definition.known())?;
    let ignored = row.finish(definition.refuses)?;
    let conversation = Conversation { turns, tools };
    match ignored.image {
        // A model that learns to answer without looking is worth nothing.
        Some(field) if conversation.images().next().is_none() => Err(BadRow::UnreadImage { field }),
        _ => Ok(Reading { shape, conversation, ignored: ignored.names }),
    }
}

fn recognise(row: &mut RowFields<'_, '_>) -> Result<Option<Shape>, BadRow> {
    for (index, shape) in SHAPES.iter().enumerate() {
        if (shape.recognises)(row)? {
            return Ok(Some(Shape { index }));
        }
    }
    Ok(None)
}

/// The names of the fields of a row, for the message that no shape has them.
pub(crate) fn keys(row: &Value<'_>) -> String {
    match row {
        Value::Map(fields) if fields.is_empty() => "no fields".into(),
        Value::Map(fields) => {
            fields.iter().map(|(key, _)| shorten(key)).take(12).collect::<Vec<_>>().join(", ")
        }
        other => other.kind().into(),
    }
}

/// Puts the row's `system` before the turns. A blank one asks for nothing, as in other tools.
fn add_system(row: &RowFields<'_, '_>, turns: &mut Vec<Turn>) -> Result<(), BadRow> {
    let Some(value) = row.get("system").filter(|value| !value.is_blank()) else { return Ok(()) };
    let text = |value: &Value<'_>| match value {
        Value::Text(text) => Ok(text.as_ref().to_owned()),
        part => RowFields::new(part).text("text").map(str::to_owned),
    };
    let words = match value {
        Value::List(parts) => parts.iter().map(text).collect::<Result<String, _>>()?,
        Value::Text(_) => text(value)?,
        _ => return Err(row.wrong("system", "text")),
    };
    let parts = vec![Part::Text(words)];
    match turns.iter().find(|turn| turn.role == Role::System) {
        Some(turn) if turn.parts == parts => {}
        Some(_) => return Err(BadRow::TwoSystems),
        None => turns.insert(0, Turn::new(Role::System, parts)),
    }
    Ok(())
}

/// What holds for every shape: there are turns, and only those of the user or a tool show images.
fn check_turns(turns: &[Turn]) -> Result<(), BadRow> {
    if turns.is_empty() {
        return Err(BadRow::Empty);
    }
    let misplaced = |turn: &&Turn| {
        !may_hold_images(turn.role) && turn.parts.iter().any(|part| matches!(part, Part::Image(_)))
    };
    match turns.iter().find(misplaced) {
        Some(turn) => Err(BadRow::ImageInTurn(turn.role.name())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
