//! What shapes are made of: fields of an object, messages, images, and the places of images.

mod fields;
mod images;
mod messages;
mod place;
mod row;

pub(super) use fields::{Field, Meaning, NO_CHOICES, Refusal, refused_of_rows};
pub(super) use messages::tools;
pub(super) use place::{Arrangement, at_markers, at_placeholders, beside_question, may_hold_images};
pub(super) use row::{Draft, RowFields};

pub(crate) use place::MARKER;

use super::Json;
use crate::value::Value;

/// Shortens text of a row for a message.
pub(super) fn shorten(text: &str) -> String {
    if text.chars().nth(40).is_some() {
        text.chars().take(40).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

/// Parses JSON that a row keeps as text; any other value is converted as it is.
fn json(value: &Value<'_>) -> Option<Json> {
    match value {
        Value::Text(text) if text.trim().is_empty() => Some(Json::List(Vec::new())),
        Value::Text(text) => Value::from_json(text.as_bytes()).ok().as_ref().map(Json::from),
        other => Some(Json::from(other)),
    }
}
