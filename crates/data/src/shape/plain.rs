//! Rows that are a question and an answer in fields of their own.

use super::{
    Draft, Shape,
    fields::{Fields, Ignored},
    images, messages, place,
};
use crate::{
    error::BadRow,
    row::{Role, Turn},
    value::Value,
};

/// What asks, where a row is not an instruction.
const QUESTIONS: [&str; 3] = ["prompt", "question", "text"];
/// What answers.
const ANSWERS: [&str; 5] = ["completion", "response", "output", "answer", "answers"];

/// Recognises a question with its answer, an instruction, or a caption.
pub(super) fn read(row: &Fields<'_, '_>, ignored: &mut Ignored) -> Result<(Shape, Vec<Turn>), BadRow> {
    if row.has("instruction") && row.peek("output").is_some() {
        return alpaca(row);
    }
    let answer = row.only(&ANSWERS)?;
    let question = row.only(&QUESTIONS)?;
    let (Some(question), Some(answer)) = (question, answer) else { return caption(row, question) };
    let shape = match (question, answer) {
        ("prompt", "completion") => Shape::TrlPromptCompletion,
        _ => Shape::QuestionAnswer,
    };
    let mut turns = speech(row, question, Role::User, ignored)?;
    // What the assistant says in a prompt is an example, not the answer.
    turns.iter_mut().for_each(|draft| draft.turn.learned = draft.turn.role != Role::Assistant);
    turns.extend(match answer {
        "answers" => vec![Draft::text(Role::Assistant, most_given(row)?)],
        answer => speech(row, answer, Role::Assistant, ignored)?,
    });
    Ok((shape, place::beside_question(turns, images::beside(row)?)?))
}

/// Text of a role, or messages.
fn speech<'r>(
    row: &Fields<'r, '_>,
    field: &'static str,
    role: Role,
    ignored: &mut Ignored,
) -> Result<Vec<Draft<'r>>, BadRow> {
    match row.get(field) {
        Some(Value::Text(text)) => Ok(vec![Draft::text(role, text.as_ref())]),
        Some(Value::List(_)) => messages::read(row, field, ignored),
        _ => Err(row.wrong(field, "text or a list of messages")),
    }
}

/// The answer that most people gave to a question, the first of those that equally many gave.
fn most_given<'r>(row: &Fields<'r, '_>) -> Result<&'r str, BadRow> {
    let wrong = || row.wrong("answers", "a list of texts");
    let Some(Value::List(list)) = row.get("answers") else { return Err(wrong()) };
    let text = |value: &'r Value<'_>| match value {
        Value::Text(text) => Some(text.as_ref()),
        other => Fields::new(other).text("answer").ok(),
    };
    let answers: Vec<&str> = list.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?;
    let votes = |answer: &str| answers.iter().filter(|other| **other == answer).count();
    // `max_by_key` gives the last of equals.
    answers.iter().rev().max_by_key(|answer| votes(answer)).copied().ok_or_else(wrong)
}

/// `instruction`, perhaps with an `input` on a line of its own, `output`, and perhaps earlier exchanges as `history`.
fn alpaca(row: &Fields<'_, '_>) -> Result<(Shape, Vec<Turn>), BadRow> {
    let (instruction, input) = (row.text("instruction")?, row.optional_text("input")?);
    let asked = match input.filter(|input| !input.trim().is_empty()) {
        Some(input) => format!("{instruction}\n{input}"),
        None => instruction.to_owned(),
    };
    let mut turns = history(row)?;
    turns.push(Draft::text(Role::User, asked));
    turns.push(Draft::text(Role::Assistant, row.text("output")?));
    Ok((Shape::Alpaca, place::beside_question(turns, images::beside(row)?)?))
}

fn history<'r>(row: &Fields<'r, '_>) -> Result<Vec<Draft<'r>>, BadRow> {
    let wrong = || row.wrong("history", "a list of pairs of texts");
    let Some(history) = row.get("history").filter(|history| !history.is_blank()) else {
        return Ok(Vec::new());
    };
    let Value::List(pairs) = history else { return Err(wrong()) };
    let mut turns = Vec::with_capacity(2 * pairs.len() + 2);
    for pair in pairs {
        match pair {
            Value::List(pair) => match &pair[..] {
                [Value::Text(asked), Value::Text(said)] => {
                    turns.extend([
                        Draft::text(Role::User, asked.as_ref()),
                        Draft::text(Role::Assistant, said.as_ref()),
                    ]);
                }
                _ => return Err(wrong()),
            },
            _ => return Err(wrong()),
        }
    }
    Ok(turns)
}

/// An image with a text that belongs to it; `asked` is the field of a question that has no answer.
fn caption(row: &Fields<'_, '_>, asked: Option<&'static str>) -> Result<(Shape, Vec<Turn>), BadRow> {
    let text = match asked {
        Some("text") => "text",
        Some(field) => return Err(BadRow::NoAnswer { field }),
        None if row.has("caption") => "caption",
        None => return Err(BadRow::Shape { keys: String::new() }),
    };
    let images = images::beside(row)?;
    if images.is_empty() {
        return Err(BadRow::NoAnswer { field: text });
    }
    let asked = Draft { parts: Vec::new(), ..Draft::text(Role::User, "") };
    let turns = vec![asked, Draft::text(Role::Assistant, row.text(text)?)];
    Ok((Shape::Caption, place::beside_question(turns, images)?))
}
