//! One row of a dataset, whatever its shape: a conversation of turns made of texts and images.
//!
//! Shapes make it from a raw row; the processor and the template read it. Control tokens inside a
//! [`Part::Text`] stay text, and images exist only as [`Part::Image`].

use crate::{held::HeldImage, value::Value};
use serde::{Serialize, Serializer};
use std::{borrow::Cow, fmt, path::Path, path::PathBuf, sync::Arc};

/// Where a row is: its file and its number there, counted from 1 as a person counts lines.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowId {
    /// The data file.
    pub file: Arc<Path>,
    /// The row's number in the file, from 1.
    pub number: u64,
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, row {}", self.file.display(), self.number)
    }
}

/// A row as the template sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The turns in order.
    pub turns: Vec<Turn>,
    /// The tools that the assistant may call, as the row describes them.
    pub tools: Vec<Json>,
}

/// What one speaker says.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// Texts and images in order.
    pub parts: Vec<Part>,
    /// Whether the row lets this turn be learned; only turns of the assistant ever are.
    pub learned: bool,
    /// The tools that the assistant calls in this turn, as the row writes them.
    pub tool_calls: Vec<Json>,
    /// The name of the speaker or of the tool that answers.
    pub name: Option<String>,
    /// The call that a tool answers.
    pub tool_call_id: Option<String>,
}

impl Turn {
    /// A turn that may be learned and calls no tool.
    pub fn new(role: Role, parts: Vec<Part>) -> Self {
        Self { role, parts, learned: true, tool_calls: Vec::new(), name: None, tool_call_id: None }
    }
}

/// What a row hands to the chat template as it is: descriptions of tools, and calls of them.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// Named values, in the order in which they were written: templates print them so.
    Map(Vec<(String, Json)>),
}

impl Json {
    /// Every text in it, names included.
    pub(crate) fn texts(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(list) => list.iter().flat_map(Self::texts).collect(),
            Self::Map(fields) => {
                fields.iter().flat_map(|(key, value)| [vec![key.as_str()], value.texts()].concat()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Writes named values in their order.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(truth) => serializer.serialize_bool(*truth),
            Self::Integer(number) => serializer.serialize_i64(*number),
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => serializer.collect_seq(list),
            Self::Map(fields) => serializer.collect_map(fields.iter().map(|(key, value)| (key, value))),
        }
    }
}

impl From<&Value<'_>> for Json {
    fn from(value: &Value<'_>) -> Self {
        match value {
            Value::Null | Value::Unread { .. } | Value::Held(_) => Self::Null,
            Value::Bool(truth) => Self::Bool(*truth),
            Value::Integer(number) => Self::Integer(*number),
            Value::Number(number) => Self::Number(*number),
            Value::Text(text) => Self::Text(text.as_ref().to_owned()),
            // A list of small numbers was read as bytes.
            Value::Bytes(bytes) => {
                Self::List(bytes.iter().map(|byte| Self::Integer((*byte).into())).collect())
            }
            Value::List(list) => Self::List(list.iter().map(Self::from).collect()),
            Value::Map(fields) => {
                let field =
                    |(key, value): &(Cow<'_, str>, Value<'_>)| (key.as_ref().to_owned(), Self::from(value));
                Self::Map(fields.iter().map(field).collect())
            }
        }
    }
}

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Plain text, never read for markers or control tokens.
    Text(String),
    /// An image, still encoded.
    Image(ImageSource),
}

/// Where the encoded bytes of an image are.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// A file; relative paths are relative to the folder of the data file.
    Path(PathBuf),
    /// The bytes themselves: data URIs, base64 and Parquet binaries arrive here.
    Bytes(Vec<u8>),
    /// An http(s) address, fetched only where the user allows it.
    Url(String),
    /// An object of the program that built the row.
    Held(Arc<HeldImage>),
}

impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "Path({})", path.display()),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Url(url) => write!(f, "Url({url})"),
            Self::Held(_) => f.write_str("Held"),
        }
    }
}

/// Who speaks in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The person.
    User,
    /// The model: what is learned.
    Assistant,
    /// The output of a tool.
    Tool,
}

impl Role {
    /// The name that chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// Reads a role by any of the names in use (`human`, `gpt`, ...).
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "system" | "developer" => Some(Self::System),
            "user" | "human" => Some(Self::User),
            "assistant" | "gpt" | "model" | "chatgpt" | "bot" => Some(Self::Assistant),
            "tool" | "function" | "observation" => Some(Self::Tool),
            _ => None,
        }
    }
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(turns: Vec<Turn>) -> Self {
        Self { turns, tools: Vec::new() }
    }

    /// Takes the images of all turns out, in the order of [`Self::images`]; their places in the turns stay.
    pub fn take_images(&mut self) -> Vec<ImageSource> {
        let parts = self.turns.iter_mut().flat_map(|turn| &mut turn.parts);
        let images = parts.filter_map(|part| match part {
            Part::Image(source) => Some(std::mem::replace(source, ImageSource::Bytes(Vec::new()))),
            Part::Text(_) => None,
        });
        images.collect()
    }

    /// The images of all turns, in the order in which the template shows them.
    pub fn images(&self) -> impl Iterator<Item = &ImageSource> {
        self.turns.iter().flat_map(|turn| &turn.parts).filter_map(|part| match part {
            Part::Image(source) => Some(source),
            Part::Text(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_in_the_order_of_the_turns() {
        let image = |name: &str| Part::Image(ImageSource::Path(name.into()));
        let turn = |parts| Turn::new(Role::User, parts);
        let row = Conversation::new(vec![
            turn(vec![image("a"), Part::Text("x".into()), image("b")]),
            turn(vec![image("c")]),
        ]);
        let names: Vec<_> = row.images().map(|source| format!("{source:?}")).collect();
        assert_eq!(names, ["Path(a)", "Path(b)", "Path(c)"]);
    }

    #[test]
    fn every_role_reads_its_own_name() {
        for role in [Role::System, Role::User, Role::Assistant, Role::Tool] {
            assert_eq!(Role::from_name(role.name()), Some(role));
        }
        assert_eq!(Role::from_name("narrator"), None);
    }
}
