//! The rows that are asked: those that the run held out, read by a child.

use super::kept::AnswersRow;
use crate::{
    api::{
        error::ApiError,
        garden::datasets::{Look, Rows},
    },
    app::App,
    job::record::JobRecord,
};
use garden_chat::{Message, MessagePart, Speaker};
use serde_json::Value;

/// How many rows are asked.
const ASKED: usize = 4;
/// Longest side of the images that are shown, in pixels.
const SHOWN: u32 = 224;

/// A row that can be asked.
pub(super) struct Question {
    pub row: u64,
    pub messages: Vec<Message>,
}

/// The rows of a job that were not trained on, as they are shown.
pub(super) async fn shown(app: &App, record: &JobRecord) -> Result<Vec<AnswersRow>, ApiError> {
    let rows = look(app, record, SHOWN).await?;
    Ok(rows.iter().filter_map(row_of).collect())
}

/// The same rows, as they are asked.
pub(super) async fn questions(app: &App, record: &JobRecord) -> Result<Vec<Question>, ApiError> {
    let rows = look(app, record, 0).await?;
    Ok(rows.iter().filter_map(question_of).collect())
}

/// Rows of the evaluation set, or those that the split holds out. A run without either has no such row.
async fn look(app: &App, record: &JobRecord, side: u32) -> Result<Vec<Value>, ApiError> {
    let split = record.settings.get("eval_split").map(|split| match split {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let (file, held_out) = match (&record.validation_file, split) {
        (Some(file), _) => (file, None),
        (None, Some(split)) => (&record.training_file, Some((split, record.seed))),
        (None, None) => {
            let message = "this job held no rows out: start it with an eval_split or a validation file";
            return Err(ApiError::bad_request(message));
        }
    };
    let rows = Rows::find(app, file).await?;
    rows.show(app, &Look { row: 1, count: ASKED, side, held_out, ..Look::default() }).await
}

/// The turns before the last answer, and that answer.
fn parted(row: &Value) -> Option<(&[Value], String)> {
    let turns = row["turns"].as_array()?;
    let last = turns.iter().rposition(|turn| turn["role"] == "assistant")?;
    Some((&turns[..last], words(&turns[last])))
}

fn words(turn: &Value) -> String {
    let parts = turn["parts"].as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join(" ")
}

fn row_of(row: &Value) -> Option<AnswersRow> {
    let (before, right) = parted(row)?;
    let images = row["images"].as_array().into_iter().flatten();
    Some(AnswersRow {
        row: row["row"].as_u64()?,
        question: before.iter().rev().find(|turn| turn["role"] == "user").map(words)?,
        right,
        images: images.filter_map(|image| image["uri"].as_str().map(str::to_owned)).collect(),
        answers: Vec::new(),
    })
}

fn question_of(row: &Value) -> Option<Question> {
    let (before, _) = parted(row)?;
    let messages: Option<Vec<Message>> = before.iter().map(|turn| message_of(row, turn)).collect();
    Some(Question { row: row["row"].as_u64()?, messages: messages? })
}

fn message_of(row: &Value, turn: &Value) -> Option<Message> {
    let role = match turn["role"].as_str()? {
        "system" => Speaker::System,
        "user" => Speaker::User,
        "assistant" => Speaker::Assistant,
        // A row with tools cannot be asked.
        _ => return None,
    };
    let part = |part: &Value| match part["text"].as_str() {
        Some(text) => Some(MessagePart::Text(text.to_owned())),
        None => {
            let uri = row["images"].get(usize::try_from(part["image"].as_u64()?).ok()?)?["uri"].as_str()?;
            Some(MessagePart::Image(uri.split_once(";base64,")?.1.to_owned()))
        }
    };
    let parts: Option<Vec<MessagePart>> = turn["parts"].as_array()?.iter().map(part).collect();
    Some(Message { role, parts: parts? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_asked_up_to_its_last_answer() {
        let row = json!({"row": 3, "images": [{"uri": "data:image/png;base64,QUJD"}], "turns": [
            {"role": "user", "parts": [{"image": 0}, {"text": "Colour?"}]},
            {"role": "assistant", "parts": [{"text": "red"}]}]});
        let shown = row_of(&row).unwrap();
        assert_eq!((shown.question.as_str(), shown.right.as_str(), shown.row), ("Colour?", "red", 3));
        let question = question_of(&row).unwrap();
        let parts = [MessagePart::Image("QUJD".into()), MessagePart::Text("Colour?".into())];
        assert_eq!((question.messages.len(), &question.messages[0].parts[..]), (1, &parts[..]));
        assert!(question_of(&json!({"row": 1, "turns": [{"role": "user", "parts": []}]})).is_none());
    }
}
