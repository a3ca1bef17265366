//! One row of a dataset, whatever shape it was written in: a conversation of turns made of texts and images.
//!
//! In comes what a shape made of a raw row; out goes what the processor and the template read. The text of a
//! [`Part::Text`] is plain text: special-token text inside it stays text, and images exist only as [`Part::Image`].

use std::{fmt, path::Path, path::PathBuf, sync::Arc};

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversation {
    /// The turns in order.
    pub turns: Vec<Turn>,
}

/// What one speaker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// Texts and images in order.
    pub parts: Vec<Part>,
}

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Plain text, never read for markers or special tokens.
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
}

impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "Path({})", path.display()),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Url(url) => write!(f, "Url({url})"),
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
        let turn = |parts| Turn { role: Role::User, parts };
        let row = Conversation {
            turns: vec![turn(vec![image("a"), Part::Text("x".into()), image("b")]), turn(vec![image("c")])],
        };
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
