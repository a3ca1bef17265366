//! The shapes in which people write rows, each recognised by itself.
//!
//! Takes a raw [`Value`] and gives the [`Conversation`] it means, the name of its [`Shape`], and the names of the fields
//! that no shape reads. A field that would change what is learned is followed or refused by name, never dropped.

mod fields;
mod images;
mod messages;
mod place;
mod plain;

pub(crate) use fields::refused_of_rows;
pub(crate) use place::MARKER;

use crate::{
    error::BadRow,
    row::{Conversation, ImageSource, Json, Part, Role, Turn},
    value::Value,
};
use fields::{Fields, Ignored, Place};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// The fields of a row that shapes are made of.
pub(crate) const FIELDS: [&str; 20] = [
    "messages",
    "conversations",
    "prompt",
    "completion",
    "response",
    "text",
    "output",
    "question",
    "answer",
    "answers",
    "instruction",
    "input",
    "history",
    "caption",
    "images",
    "image",
    "file_name",
    "file_names",
    "system",
    "tools",
];

/// How a row is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// `messages` with images inside their parts.
    OpenAiMessages,
    /// `messages` beside `images`; placeholder parts say where, else the first user turn begins with them.
    TrlMessages,
    /// `messages` beside `images`, text contents with as many `<image>` markers as there are images.
    MarkedMessages,
    /// `prompt` and `completion`, beside `images`; only the completion is learned.
    TrlPromptCompletion,
    /// `conversations` with `<image>` markers, beside `images`.
    ShareGpt,
    /// `conversations` with `<image>` markers, beside `image`.
    Llava,
    /// `instruction`, perhaps `input`, and `output`, beside `images`.
    Alpaca,
    /// A question and an answer in fields of their own, with an `image`.
    QuestionAnswer,
    /// An image and the text that belongs to it.
    Caption,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OpenAiMessages => "OpenAI messages",
            Self::TrlMessages => "TRL messages with images",
            Self::MarkedMessages => "messages with <image> markers",
            Self::TrlPromptCompletion => "TRL prompt and completion",
            Self::ShareGpt => "ShareGPT conversations",
            Self::Llava => "LLaVA conversations",
            Self::Alpaca => "Alpaca instructions",
            Self::QuestionAnswer => "question and answer",
            Self::Caption => "image and caption",
        })
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
pub fn read(row: &Value<'_>) -> Result<Reading, BadRow> {
    let mut ignored = Ignored::default();
    let fields = Fields::new(row);
    let (shape, mut turns) = turns(&fields, &mut ignored).map_err(|error| match error {
        BadRow::Shape { .. } => BadRow::Shape { keys: keys(row) },
        error => error,
    })?;
    add_system(&fields, &mut turns)?;
    let tools = messages::tools(&fields)?;
    check_turns(&turns)?;
    let place = match shape {
        Shape::QuestionAnswer | Shape::Alpaca | Shape::Caption => Place::Question,
        _ => Place::Row,
    };
    fields.finish(place, &mut ignored)?;
    let conversation = Conversation { turns, tools };
    match ignored.image {
        // A model that learns to answer without looking is worth nothing.
        Some(field) if conversation.images().next().is_none() => Err(BadRow::UnreadImage { field }),
        _ => Ok(Reading { shape, conversation, ignored: ignored.names }),
    }
}

fn turns(row: &Fields<'_, '_>, ignored: &mut Ignored) -> Result<(Shape, Vec<Turn>), BadRow> {
    let Some(field) = row.only(&["messages", "conversations"])? else { return plain::read(row, ignored) };
    let turns = messages::read(row, field, ignored)?;
    if field == "messages" {
        return place::beside_messages(turns, row);
    }
    let shape = if row.has("image") { Shape::Llava } else { Shape::ShareGpt };
    Ok((shape, place::at_markers(turns, images::beside(row)?)?))
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

/// Puts the row's `system` before the turns. A blank one asks for nothing, as other tools have it.
fn add_system(row: &Fields<'_, '_>, turns: &mut Vec<Turn>) -> Result<(), BadRow> {
    let Some(value) = row.get("system").filter(|value| !value.is_blank()) else { return Ok(()) };
    let text = |value: &Value<'_>| match value {
        Value::Text(text) => Ok(text.as_ref().to_owned()),
        part => Fields::new(part).text("text").map(str::to_owned),
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

/// A turn whose images may still be placeholders.
struct Draft<'a> {
    turn: Turn,
    parts: Vec<DraftPart<'a>>,
    /// Whether the content was one text: only there is `<image>` a marker by itself.
    plain: bool,
}

impl<'a> Draft<'a> {
    fn text(role: Role, text: impl Into<Cow<'a, str>>) -> Self {
        Self { turn: Turn::new(role, Vec::new()), parts: vec![DraftPart::Text(text.into())], plain: true }
    }
}

enum DraftPart<'a> {
    Text(Cow<'a, str>),
    Image(ImageSource),
    /// `{"type": "image"}` without an image: the next of the row's list goes here.
    Placeholder,
}

/// What holds for every shape: there are turns, and only those of the user or a tool show images.
fn check_turns(turns: &[Turn]) -> Result<(), BadRow> {
    if turns.is_empty() {
        return Err(BadRow::Empty);
    }
    let misplaced = |turn: &&Turn| {
        !place::may_hold_images(turn.role) && turn.parts.iter().any(|part| matches!(part, Part::Image(_)))
    };
    match turns.iter().find(misplaced) {
        Some(turn) => Err(BadRow::ImageInTurn(turn.role.name())),
        None => Ok(()),
    }
}

/// Keeps what a row made up readable in a message.
fn shorten(text: &str) -> String {
    if text.chars().nth(40).is_some() {
        text.chars().take(40).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

/// Reads JSON that a row keeps as a text; anything else is taken as it is.
fn json(value: &Value<'_>) -> Option<Json> {
    match value {
        Value::Text(text) if text.trim().is_empty() => Some(Json::List(Vec::new())),
        Value::Text(text) => Value::from_json(text.as_bytes()).ok().as_ref().map(Json::from),
        other => Some(Json::from(other)),
    }
}
