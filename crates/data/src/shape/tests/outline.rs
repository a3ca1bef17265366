//! A row's conversation in one line, to read and to compare.

use super::super::{Reading, Shape, read as read_row};
use crate::{
    error::BadRow,
    row::{Conversation, ImageSource, Json, Part},
    value::Value,
};

pub fn reading(row: &str) -> Result<Reading, BadRow> {
    read_row(&Value::from_json(row.as_bytes()).expect("the test writes JSON"))
}

pub fn read(row: &str) -> Result<(Shape, Conversation), BadRow> {
    reading(row).map(|reading| (reading.shape, reading.conversation))
}

/// A conversation in one line: `user[img(a.png)|What?] assistant[A cat]`. A turn that the row excludes from
/// learning has a minus before it, and calls of tools stand behind their turn.
pub fn outline(row: &str) -> (Shape, String) {
    let (shape, conversation) = read(row).unwrap_or_else(|error| panic!("{row}: {error}"));
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Image(ImageSource::Path(path)) => format!("img({})", path.display()),
        Part::Image(ImageSource::Bytes(bytes)) => format!("img({} bytes)", bytes.len()),
        Part::Image(ImageSource::Url(url)) => format!("img({url})"),
        Part::Image(ImageSource::Held(_)) => "img(held)".into(),
    };
    let turns = conversation.turns.iter().map(|turn| {
        let parts: Vec<_> = turn.parts.iter().map(part).collect();
        let calls: Vec<_> = turn.tool_calls.iter().map(call).collect();
        let minus = if turn.learned { "" } else { "-" };
        format!("{minus}{}[{}]{}", turn.role.name(), parts.join("|"), calls.concat())
    });
    (shape, turns.collect::<Vec<_>>().join(" "))
}

/// `->name` of a call.
fn call(call: &Json) -> String {
    match field(field(call, "function").unwrap_or(call), "name") {
        Some(Json::Text(name)) => format!("->{name}"),
        other => panic!("a call without a name: {other:?}"),
    }
}

fn field<'a>(value: &'a Json, name: &str) -> Option<&'a Json> {
    match value {
        Json::Map(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, value)| value),
        _ => None,
    }
}
