//! Reads messages in either spelling: `role` and `content`, or `from` and `value`.

use super::{
    fields::{Fields, Ignored, Place},
    images, json,
    row::{Draft, DraftPart},
    shorten,
};
use crate::{
    embedded,
    error::BadRow,
    row::{ImageSource, Json, Role, Turn},
    value::Value,
};
use std::borrow::Cow;

/// The names by which tools say whether a message is learned: OpenAI and Axolotl, Axolotl, ms-swift.
const LEARNED: [&str; 3] = ["weight", "train", "loss"];

/// Reads a list of messages.
pub(in crate::shape) fn read<'r>(
    row: &Fields<'r, '_>,
    field: &'static str,
    ignored: &mut Ignored,
) -> Result<Vec<Draft<'r>>, BadRow> {
    let Some(Value::List(list)) = row.get(field) else {
        return Err(row.wrong(field, "a list of messages"));
    };
    list.iter().map(|one| message(one, ignored)).collect()
}

/// The tools of a row: a list of descriptions, or JSON of one as text.
pub(in crate::shape) fn tools(row: &Fields<'_, '_>) -> Result<Vec<Json>, BadRow> {
    objects(row, "tools", "a list of tools, each an object, or JSON of it")
}

/// A list of objects, or nothing where the field is absent.
fn objects(
    fields: &Fields<'_, '_>,
    field: &'static str,
    expected: &'static str,
) -> Result<Vec<Json>, BadRow> {
    let Some(value) = fields.get(field) else { return Ok(Vec::new()) };
    match json(value) {
        Some(Json::List(list)) if list.iter().all(|one| matches!(one, Json::Map(_))) => Ok(list),
        _ => Err(fields.wrong(field, expected)),
    }
}

fn message<'r>(message: &'r Value<'_>, ignored: &mut Ignored) -> Result<Draft<'r>, BadRow> {
    let fields = Fields::new(message);
    if fields.has("from") && fields.has("role") {
        return Err(BadRow::Twice { first: "from", second: "role" });
    }
    let (who, what) = if fields.has("from") { ("from", "value") } else { ("role", "content") };
    let name = fields.text(who)?;
    // LLaMA-Factory's role for a turn of the assistant that is the JSON of a call.
    let is_call = name == "function_call";
    let role = if is_call { Some(Role::Assistant) } else { Role::from_name(name) };
    let role = role.ok_or_else(|| BadRow::Role(shorten(name)))?;
    let mut tool_calls = objects(&fields, "tool_calls", "a list of calls, each an object, or JSON of it")?;
    if role != Role::Assistant && !tool_calls.is_empty() {
        return Err(BadRow::CallsInTurn(role.name()));
    }
    let (plain, parts) = match fields.get(what) {
        Some(value) if is_call => {
            tool_calls = calls(value).ok_or_else(|| fields.wrong(what, "a call as JSON"))?;
            (true, Vec::new())
        }
        Some(Value::Text(text)) => (true, vec![DraftPart::Text(Cow::Borrowed(text.as_ref()))]),
        Some(Value::List(parts)) => {
            (false, parts.iter().map(|one| part(one, ignored)).collect::<Result<_, _>>()?)
        }
        None if !tool_calls.is_empty() => (true, Vec::new()),
        _ => return Err(fields.wrong(what, "text or a list of parts")),
    };
    let turn = Turn {
        learned: learned(&fields, role)?,
        tool_calls,
        name: fields.optional_text("name")?.map(str::to_owned),
        tool_call_id: fields.optional_text("tool_call_id")?.map(str::to_owned),
        ..Turn::new(role, Vec::new())
    };
    fields.finish(Place::Message, ignored)?;
    Ok(Draft { turn, parts, plain })
}

/// One call or a list of them, as JSON.
fn calls(value: &Value<'_>) -> Option<Vec<Json>> {
    match json(value)? {
        call @ Json::Map(_) => Some(vec![call]),
        Json::List(list) if !list.is_empty() && list.iter().all(|one| matches!(one, Json::Map(_))) => {
            Some(list)
        }
        _ => None,
    }
}

/// Whether a message may be learned.
fn learned(fields: &Fields<'_, '_>, role: Role) -> Result<bool, BadRow> {
    let mut learned = true;
    for field in LEARNED {
        let wanted = match fields.get(field) {
            None => continue,
            Some(Value::Bool(wanted)) => *wanted,
            Some(Value::Integer(0)) => false,
            Some(Value::Integer(1)) => true,
            Some(Value::Number(number)) if *number == 0.0 || *number == 1.0 => *number == 1.0,
            Some(_) => return Err(BadRow::Weight { field }),
        };
        if wanted && role != Role::Assistant {
            return Err(BadRow::LearnedTurn { field, role: role.name() });
        }
        learned &= wanted;
    }
    Ok(learned || role != Role::Assistant)
}

fn part<'r>(part: &'r Value<'_>, ignored: &mut Ignored) -> Result<DraftPart<'r>, BadRow> {
    if let Value::Text(text) = part {
        return Ok(DraftPart::Text(Cow::Borrowed(text.as_ref())));
    }
    let fields = Fields::new(part);
    // Qwen's own examples omit the type where it is obvious.
    let is_there = |field| fields.peek(field).is_some();
    let kind = match (fields.optional_text("type")?, is_there("image"), is_there("text")) {
        (Some(kind), ..) => kind,
        (None, true, false) => "image",
        (None, false, true) => "text",
        _ => return Err(fields.wrong("type", "text")),
    };
    let read = match kind {
        "text" | "input_text" | "output_text" => DraftPart::Text(Cow::Borrowed(fields.text("text")?)),
        "image_url" | "input_image" => {
            let url = fields.get("image_url").ok_or_else(|| fields.wrong("image_url", "an address"))?;
            DraftPart::Image(images::image(url)?)
        }
        "image" => image_part(part, &fields)?,
        other => return Err(BadRow::PartType(shorten(other))),
    };
    fields.finish(Place::Part, ignored)?;
    Ok(read)
}

/// An image inside its part, by one of its spellings, or a place for the next image beside the messages.
fn image_part<'r>(part: &Value<'_>, fields: &Fields<'_, '_>) -> Result<DraftPart<'r>, BadRow> {
    if let Some(source) = fields.get("source").filter(|source| matches!(source, Value::Map(_))) {
        return anthropic_source(source).map(DraftPart::Image);
    }
    let inside = ["path", "url", "base64", "bytes"].map(|field| fields.get(field).is_some()).contains(&true);
    match fields.get("image").or(inside.then_some(part)) {
        Some(value) => Ok(DraftPart::Image(images::image(value)?)),
        None => Ok(DraftPart::Placeholder),
    }
}

/// `{"type": "base64", "media_type": "image/png", "data": "..."}`, or `{"type": "url", "url": "..."}`. The
/// media type is not believed: the bytes say what they are.
fn anthropic_source(source: &Value<'_>) -> Result<ImageSource, BadRow> {
    let fields = Fields::new(source);
    match fields.text("type")? {
        "base64" => Ok(ImageSource::Bytes(embedded::decode_base64(fields.text("data")?)?)),
        "url" => {
            fields.text("url")?;
            images::image(source)
        }
        other => Err(BadRow::PartType(shorten(other))),
    }
}
