//! A question and an answer in fields of their own, beside `images`. Only the answer is learned.

use super::{
    Definition,
    common::{Draft, Field, NO_CHOICES, RowFields, beside_question},
};
use crate::{
    error::BadRow,
    row::{Role, Turn},
    value::Value,
};

pub(super) const SHAPE: Definition = Definition {
    id: "question-answer",
    name: "question and answer",
    looks: "question and answer",
    fields: &[
        Field::question("prompt"),
        Field::question("question"),
        Field::question("text"),
        Field::answer("completion"),
        Field::answer("response"),
        Field::answer("output"),
        Field::answer("answer"),
        Field::answer("answers"),
    ],
    refuses: NO_CHOICES,
    recognises,
    read,
};

/// The fields that ask and answer, where a row has them.
pub(super) fn fields(
    row: &RowFields<'_, '_>,
) -> Result<(Option<&'static str>, Option<&'static str>), BadRow> {
    let answer = row.only(&["completion", "response", "output", "answer", "answers"])?;
    Ok((row.only(&["prompt", "question", "text"])?, answer))
}

/// A text without an answer may be a caption; any other question without one is refused when it is read.
fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(!matches!(fields(row)?, (None, _) | (Some("text"), None)))
}

pub(super) fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    let (question, answer) = fields(row)?;
    let question = question.unwrap_or("question");
    let answer = answer.ok_or(BadRow::NoAnswer { field: question })?;
    let mut turns = row.speech(question, Role::User)?;
    // What the assistant says in a prompt is an example, not the answer.
    turns.iter_mut().for_each(|draft| draft.turn.learned = draft.turn.role != Role::Assistant);
    turns.extend(match answer {
        "answers" => vec![Draft::text(Role::Assistant, most_given(row)?)],
        answer => row.speech(answer, Role::Assistant)?,
    });
    beside_question(turns, row.take_images()?)
}

/// The answer that most people gave; the first of them in a tie.
fn most_given<'r>(row: &RowFields<'r, '_>) -> Result<&'r str, BadRow> {
    let wrong = || row.wrong("answers", "a list of texts");
    let Some(Value::List(list)) = row.get("answers") else { return Err(wrong()) };
    let text = |value: &'r Value<'_>| match value {
        Value::Text(text) => Some(text.as_ref()),
        other => match other.get("answer") {
            Some(Value::Text(text)) => Some(text.as_ref()),
            _ => None,
        },
    };
    let answers: Vec<&str> = list.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?;
    let votes = |answer: &str| answers.iter().filter(|other| **other == answer).count();
    // `max_by_key` gives the last of equals.
    answers.iter().rev().max_by_key(|answer| votes(answer)).copied().ok_or_else(wrong)
}
