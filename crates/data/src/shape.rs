//! The shapes in which people write rows, each recognised by itself.
//!
//! In comes a raw [`Value`]; out goes the [`Conversation`] it means, and the name of its [`Shape`]. Where a shape has
//! markers or placeholders for images, their number must be that of the images; elsewhere `<image>` is text.

use crate::{
    embedded,
    error::BadRow,
    row::{Conversation, ImageSource, Part, Role, Turn},
    value::Value,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// What stands for an image in shapes whose text has markers.
const MARKER: &str = "<image>";

/// The longest path that systems open; more text than this is something else.
const LONGEST_PATH: usize = 4096;

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
    /// `prompt` and `completion`, beside `images`.
    TrlPromptCompletion,
    /// `conversations` with `<image>` markers, beside `images`.
    ShareGpt,
    /// `conversations` with `<image>` markers, beside `image`.
    Llava,
    /// `text` and `response` or `output`, with an `image`.
    QuestionAnswer,
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
            Self::QuestionAnswer => "text, image and response",
        })
    }
}

/// Recognises the shape of a row and reads it.
pub fn read(row: &Value<'_>) -> Result<(Shape, Conversation), BadRow> {
    let has = |name: &str| row.get(name).is_some();
    let images = row.get("images").or_else(|| row.get("image"));
    let (shape, turns) = if has("messages") {
        read_messages(messages(row, "messages")?, images)?
    } else if has("conversations") {
        let shape = if has("image") { Shape::Llava } else { Shape::ShareGpt };
        (shape, with_markers(messages(row, "conversations")?, image_list(images)?)?)
    } else if has("prompt") && has("completion") {
        let mut turns = prompt_or_completion(row, "prompt", Role::User)?;
        turns.extend(prompt_or_completion(row, "completion", Role::Assistant)?);
        (Shape::TrlPromptCompletion, with_placeholders(turns, image_list(images)?)?)
    } else if has("text") && (has("response") || has("output")) {
        (Shape::QuestionAnswer, question_and_answer(row, images)?)
    } else {
        return Err(BadRow::Shape { keys: keys(row) });
    };
    check_turns(&turns)?;
    Ok((shape, Conversation { turns }))
}

/// The names of the fields of a row, for the message that no shape has them.
fn keys(row: &Value<'_>) -> String {
    match row {
        Value::Map(fields) if fields.is_empty() => "no fields".into(),
        Value::Map(fields) => {
            fields.iter().map(|(key, _)| shorten(key)).take(12).collect::<Vec<_>>().join(", ")
        }
        other => other.kind().into(),
    }
}

/// A turn whose images may still be placeholders.
struct Draft<'a> {
    role: Role,
    parts: Vec<DraftPart<'a>>,
}

enum DraftPart<'a> {
    Text(Cow<'a, str>),
    Image(ImageSource),
    /// `{"type": "image"}` without an image: the next of the row's list goes here.
    Placeholder,
}

fn read_messages(turns: Vec<Draft<'_>>, images: Option<&Value<'_>>) -> Result<(Shape, Vec<Turn>), BadRow> {
    let images = image_list(images)?;
    let plain = |part: &DraftPart| matches!(part, DraftPart::Text(_));
    let all_text = turns.iter().all(|turn| turn.parts.iter().all(plain));
    if !images.is_empty() && all_text && count_markers(&turns) == images.len() {
        return Ok((Shape::MarkedMessages, with_markers(turns, images)?));
    }
    let shape = if images.is_empty() { Shape::OpenAiMessages } else { Shape::TrlMessages };
    Ok((shape, with_placeholders(turns, images)?))
}

fn question_and_answer(row: &Value<'_>, images: Option<&Value<'_>>) -> Result<Vec<Turn>, BadRow> {
    let answer = if row.get("response").is_some() { "response" } else { "output" };
    let text = |field| Ok::<_, BadRow>(Part::Text(text_field(row, field)?.to_owned()));
    let mut question: Vec<_> = image_list(images)?.into_iter().map(Part::Image).collect();
    question.push(text("text")?);
    let mut turns = Vec::with_capacity(3);
    if row.get("system").is_some() {
        turns.push(Turn { role: Role::System, parts: vec![text("system")?] });
    }
    turns.push(Turn { role: Role::User, parts: question });
    turns.push(Turn { role: Role::Assistant, parts: vec![text(answer)?] });
    Ok(turns)
}

fn prompt_or_completion<'a>(
    row: &'a Value<'_>,
    field: &'static str,
    role: Role,
) -> Result<Vec<Draft<'a>>, BadRow> {
    match row.get(field) {
        Some(Value::Text(text)) => {
            Ok(vec![Draft { role, parts: vec![DraftPart::Text(Cow::Borrowed(text.as_ref()))] }])
        }
        _ => messages(row, field),
    }
}

/// Reads a list of messages by either spelling: `role`/`content` or `from`/`value`.
fn messages<'a>(row: &'a Value<'_>, field: &'static str) -> Result<Vec<Draft<'a>>, BadRow> {
    let Some(Value::List(list)) = row.get(field) else {
        return Err(wrong_field(row, field, "a list of messages"));
    };
    list.iter().map(message).collect()
}

fn message<'a>(message: &'a Value<'_>) -> Result<Draft<'a>, BadRow> {
    let (who, what) = if message.get("from").is_some() { ("from", "value") } else { ("role", "content") };
    let name = text_field(message, who)?;
    let role = Role::from_name(name).ok_or_else(|| BadRow::Role(shorten(name)))?;
    let parts = match message.get(what) {
        Some(Value::Text(text)) => vec![DraftPart::Text(Cow::Borrowed(text.as_ref()))],
        Some(Value::List(parts)) => parts.iter().map(part).collect::<Result<_, _>>()?,
        _ => return Err(wrong_field(message, what, "text or a list of parts")),
    };
    Ok(Draft { role, parts })
}

fn part<'a>(part: &'a Value<'_>) -> Result<DraftPart<'a>, BadRow> {
    if let Value::Text(text) = part {
        return Ok(DraftPart::Text(Cow::Borrowed(text.as_ref())));
    }
    match text_field(part, "type")? {
        "text" => Ok(DraftPart::Text(Cow::Borrowed(text_field(part, "text")?))),
        "image_url" => {
            let url = part.get("image_url").ok_or_else(|| wrong_field(part, "image_url", "an address"))?;
            Ok(DraftPart::Image(image(url)?))
        }
        "image" => {
            let nested = part.get("image");
            let inside = ["path", "url", "base64", "bytes"].iter().any(|field| part.get(field).is_some());
            match nested.or(inside.then_some(part)) {
                Some(value) => Ok(DraftPart::Image(image(value)?)),
                None => Ok(DraftPart::Placeholder),
            }
        }
        other => Err(BadRow::PartType(shorten(other))),
    }
}

/// The images beside the messages: one or a list.
fn image_list(images: Option<&Value<'_>>) -> Result<Vec<ImageSource>, BadRow> {
    match images {
        None => Ok(Vec::new()),
        Some(Value::List(list)) => list.iter().map(image).collect(),
        Some(one) => Ok(vec![image(one)?]),
    }
}

/// Reads an image by any of its spellings: text, bytes, or an object with `bytes`, `base64`, `url` or `path`.
fn image(value: &Value<'_>) -> Result<ImageSource, BadRow> {
    match value {
        Value::Bytes(bytes) if bytes.is_empty() => Err(BadRow::NoImage("bytes that are empty")),
        Value::Bytes(bytes) => Ok(ImageSource::Bytes(bytes.to_vec())),
        Value::Text(text) => image_text(text),
        Value::Map(_) => match ["bytes", "base64", "url", "path"].map(|field| value.get(field)) {
            [Some(Value::Text(text)), ..] | [_, Some(Value::Text(text)), ..] => {
                let decode = if embedded::is_data_uri(text) {
                    embedded::decode_data_uri
                } else {
                    embedded::decode_base64
                };
                Ok(ImageSource::Bytes(decode(text)?))
            }
            [Some(bytes @ Value::Bytes(_)), ..] => image(bytes),
            [None, None, Some(Value::Text(text)), _] | [None, None, None, Some(Value::Text(text))] => {
                image_text(text)
            }
            _ => Err(BadRow::NoImage("an object without bytes, base64, url or path")),
        },
        other => Err(BadRow::NoImage(other.kind())),
    }
}

fn image_text(text: &str) -> Result<ImageSource, BadRow> {
    let scheme = |name: &str| text.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
    if text.is_empty() {
        Err(BadRow::NoImage("an empty text"))
    } else if embedded::is_data_uri(text) {
        Ok(ImageSource::Bytes(embedded::decode_data_uri(text)?))
    } else if scheme("http://") || scheme("https://") {
        Ok(ImageSource::Url(text.to_owned()))
    } else if embedded::looks_like_base64(text) {
        Ok(ImageSource::Bytes(embedded::decode_base64(text)?))
    } else if text.len() > LONGEST_PATH {
        Err(BadRow::NoImage("a text too long for a path, and not base64 of a JPEG, PNG, GIF, WebP or TIFF"))
    } else if scheme("file://") {
        Ok(ImageSource::Path(text[7..].into()))
    } else {
        Ok(ImageSource::Path(text.into()))
    }
}

/// A marker in what the model says is text that it said.
fn may_hold_images(role: Role) -> bool {
    matches!(role, Role::User | Role::Tool)
}

fn count_markers(turns: &[Draft<'_>]) -> usize {
    let texts = turns.iter().filter(|turn| may_hold_images(turn.role)).flat_map(|turn| &turn.parts);
    texts.map(|part| if let DraftPart::Text(text) = part { text.matches(MARKER).count() } else { 0 }).sum()
}

/// Puts the images where the markers are.
fn with_markers(turns: Vec<Draft<'_>>, images: Vec<ImageSource>) -> Result<Vec<Turn>, BadRow> {
    let markers = count_markers(&turns);
    if markers != images.len() {
        return Err(BadRow::Markers { markers, images: images.len() });
    }
    let turns = turns.into_iter().map(split_at_markers).collect::<Result<_, _>>()?;
    with_placeholders(turns, images)
}

fn split_at_markers(turn: Draft<'_>) -> Result<Draft<'_>, BadRow> {
    if !may_hold_images(turn.role) {
        return Ok(turn);
    }
    let mut parts = Vec::new();
    for part in turn.parts {
        let DraftPart::Text(text) = part else { return Err(BadRow::PartType("image".into())) };
        for (i, piece) in text.split(MARKER).enumerate() {
            if i > 0 {
                parts.push(DraftPart::Placeholder);
            }
            if !piece.is_empty() {
                parts.push(DraftPart::Text(Cow::Owned(piece.to_owned())));
            }
        }
    }
    Ok(Draft { role: turn.role, parts })
}

/// Puts the images where the placeholders are; where there are none, before the first user turn.
fn with_placeholders(mut turns: Vec<Draft<'_>>, images: Vec<ImageSource>) -> Result<Vec<Turn>, BadRow> {
    let is_placeholder = |part: &&DraftPart| matches!(part, DraftPart::Placeholder);
    let placeholders = turns.iter().flat_map(|turn| &turn.parts).filter(is_placeholder).count();
    if placeholders == 0 && !images.is_empty() {
        let first = turns.iter_mut().find(|turn| turn.role == Role::User);
        let parts = &mut first.ok_or(BadRow::NoTurnForImages)?.parts;
        parts.splice(0..0, images.iter().map(|_| DraftPart::Placeholder));
    } else if placeholders != images.len() {
        return Err(BadRow::Markers { markers: placeholders, images: images.len() });
    }
    let mut images = images.into_iter();
    let mut place = |part| match part {
        DraftPart::Text(text) => Some(Part::Text(text.into_owned())),
        DraftPart::Image(source) => Some(Part::Image(source)),
        DraftPart::Placeholder => images.next().map(Part::Image),
    };
    Ok(turns
        .into_iter()
        .map(|turn| Turn { role: turn.role, parts: turn.parts.into_iter().filter_map(&mut place).collect() })
        .collect())
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

fn text_field<'a>(value: &'a Value<'_>, field: &'static str) -> Result<&'a str, BadRow> {
    match value.get(field) {
        Some(Value::Text(text)) => Ok(text),
        _ => Err(wrong_field(value, field, "text")),
    }
}

fn wrong_field(value: &Value<'_>, field: &'static str, expected: &'static str) -> BadRow {
    BadRow::Field { field, expected, found: value.get(field).map_or("nothing", Value::kind) }
}

/// Keeps what a row made up readable in a message.
fn shorten(text: &str) -> String {
    if text.chars().nth(40).is_some() {
        text.chars().take(40).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}
