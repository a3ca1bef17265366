//! What a job's events say, in sentences: the messages that OpenAI's clients list.

use super::journal::{Entry, Level, Said};
use garden_train::events::{EndReason, Event};
use serde_json::{Value, json};

/// An entry for people and, where it has numbers, for charts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub level: Level,
    pub text: String,
    /// Numbers of a step or an evaluation.
    pub metrics: Option<Value>,
}

/// The message of an entry; nothing for those that only a live view needs.
pub(crate) fn message(entry: &Entry) -> Option<Message> {
    let record = match &entry.said {
        Said::History(line) => {
            return Some(Message { level: line.level, text: line.text.clone(), metrics: None });
        }
        Said::Trainer(record) => record,
    };
    let info = |text: String| Some(Message { level: Level::Info, text, metrics: None });
    match &record.event {
        Event::Resumed(place) => info(format!("Going on from the checkpoint of step {}", place.step)),
        Event::RowsSurveyed(rows) => info(format!(
            "Read {} rows: {} can be used, {} are too long, {} have nothing to learn, {} are bad",
            rows.rows, rows.usable, rows.too_long, rows.no_label, rows.bad
        )),
        Event::ModelLoaded(model) => info(format!(
            "Loaded the model: {} parameters, {} of them trained",
            model.parameters, model.trained_parameters
        )),
        Event::Started(started) => {
            info(format!("Training from step {} to step {}", started.step, started.max_steps))
        }
        Event::Step(step) => Some(Message {
            level: Level::Info,
            text: format!("Step {}/{}: training loss={:.4}", step.step, step.max_steps, step.loss),
            metrics: Some(json!({
                "step": step.step, "total_steps": step.max_steps, "train_loss": step.loss,
                "learning_rate": step.learning_rate, "epoch": step.epoch, "tokens": step.tokens,
            })),
        }),
        Event::Evaluation(evaluation) => Some(Message {
            level: Level::Info,
            text: format!("Step {}: validation loss={:.4}", evaluation.step, evaluation.loss),
            metrics: Some(json!({
                "step": evaluation.step, "total_steps": evaluation.max_steps, "valid_loss": evaluation.loss,
                "valid_mean_token_accuracy": evaluation.token_accuracy,
            })),
        }),
        Event::Checkpoint(place) => info(format!("Checkpoint created at step {}", place.step)),
        Event::Note(note) => Some(Message { level: Level::Warn, text: note.text.clone(), metrics: None }),
        Event::End(end) => {
            let level = if end.reason == EndReason::Failed { Level::Error } else { Level::Info };
            let memory = end.memory.as_ref().map(|memory| format!("; {memory}")).unwrap_or_default();
            let text = match &end.message {
                Some(message) => format!("The training ended at step {}: {message}{memory}", end.step),
                None => format!("The training ended at step {}{memory}", end.step),
            };
            Some(Message { level, text, metrics: None })
        }
        _ => None,
    }
}
