//! What happened in a job: messages, checkpoints, and the log as it was written.

use super::folder_of;
use crate::{
    api::{
        error::ApiError,
        extract::{Json, Path},
        list::{List, Narrowed, limit},
    },
    app::App,
    job::{
        folder::JobFolder,
        journal::{Cursor, Entry, Journal, Level, Said},
        words,
    },
    store::Page,
};
use axum::{
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use garden_train::events::Event;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    io,
};
use utoipa::{IntoParams, ToSchema};

/// A place in a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The last object of the page before.
    after: Option<String>,
    /// From 1 to 1000; 20 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
}

/// Something that happened in a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FineTuningJobEvent)]
pub(super) struct EventObject {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created_at: u64,
    level: Level,
    message: String,
    #[serde(rename = "type")]
    kind: EventKind,
    /// Numbers, where the type is `metrics`.
    #[schema(value_type = Option<Object>)]
    data: Option<Value>,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EventKind {
    Message,
    Metrics,
}

/// Lists what happened in a job, the newest first.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/events", tag = "Jobs", params(("id" = String, Path), PageQuery),
    responses((status = 200, body = List<EventObject>)))]
pub(super) async fn events(
    State(app): State<App>,
    Path(id): Path<String>,
    Narrowed(query): Narrowed<PageQuery>,
) -> Result<Json<List<EventObject>>, ApiError> {
    let folder = folder_of(&app, &id)?;
    let most = limit(query.limit, 20, 1000)?;
    let page = crate::api::blocking(move || newest(&folder, &id, query.after.as_deref(), most)).await?;
    Ok(Json(List::of(page, |event| event, |event| &event.id)))
}

/// The last messages before the one with the id `after`. The journal is read from its start, in bounded memory.
fn newest(
    folder: &JobFolder,
    job: &str,
    after: Option<&str>,
    most: usize,
) -> Result<Page<EventObject>, ApiError> {
    let mut journal = Journal::new(folder, Cursor::default());
    let mut last: VecDeque<EventObject> = VecDeque::new();
    let mut met = after.is_none();
    while let Some(entry) = journal.next().map_err(|error| ApiError::disk(&error))? {
        let Some(event) = event_object(job, &entry) else { continue };
        if after == Some(event.id.as_str()) {
            met = true;
            break;
        }
        last.push_back(event);
        // One more than asked for tells whether there are more.
        if last.len() > most + 1 {
            last.pop_front();
        }
    }
    if !met {
        let message = format!("no such event: {}", after.unwrap_or_default());
        return Err(ApiError::bad_request(message).param("after"));
    }
    let has_more = last.len() > most;
    Ok(Page { data: last.into_iter().rev().take(most).collect(), has_more })
}

fn event_object(job: &str, entry: &Entry) -> Option<EventObject> {
    let message = words::message(entry)?;
    let job = job.strip_prefix("ftjob-").unwrap_or(job);
    Some(EventObject {
        id: format!("ftevent-{job}-{}", entry.place),
        object: "fine_tuning.job.event",
        created_at: entry.time().max(0.0) as u64,
        level: message.level,
        message: message.text,
        kind: if message.metrics.is_some() { EventKind::Metrics } else { EventKind::Message },
        data: message.metrics,
    })
}

/// A checkpoint of a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FineTuningJobCheckpoint)]
pub(super) struct CheckpointObject {
    #[schema(pattern = "^ftckpt_[a-z0-9]{1,64}$")]
    id: String,
    object: &'static str,
    created_at: u64,
    /// The name under which it can be asked.
    fine_tuned_model_checkpoint: String,
    fine_tuning_job_id: String,
    metrics: Metrics,
    step_number: u64,
}

/// Numbers at a checkpoint.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = CheckpointMetrics)]
struct Metrics {
    step: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    train_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_valid_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_valid_mean_token_accuracy: Option<f64>,
}

/// The id of a job's checkpoint.
fn checkpoint_id(job: &str, step: u64) -> String {
    format!("ftckpt_{}s{step}", job.strip_prefix("ftjob-").unwrap_or(job))
}

/// The step of a job's checkpoint; nothing if the id is another's.
pub(super) fn step_of(job: &str, id: &str) -> Option<u64> {
    let step = id.rsplit_once('s')?.1.parse().ok()?;
    (checkpoint_id(job, step) == id).then_some(step)
}

/// Lists the checkpoints of a job that are on disk, the newest first.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/checkpoints", tag = "Jobs", params(("id" = String, Path), PageQuery),
    responses((status = 200, body = List<CheckpointObject>)))]
pub(super) async fn checkpoints(
    State(app): State<App>,
    Path(id): Path<String>,
    Narrowed(query): Narrowed<PageQuery>,
) -> Result<Json<List<CheckpointObject>>, ApiError> {
    let folder = folder_of(&app, &id)?;
    let most = limit(query.limit, 10, 1000)?;
    let mut all = crate::api::blocking(move || checkpoint_objects(&folder, &id)).await?;
    all.reverse();
    if let Some(after) = &query.after {
        let missing = || ApiError::bad_request(format!("no such checkpoint: {after}")).param("after");
        let place = all.iter().position(|checkpoint| checkpoint.id == *after).ok_or_else(missing)?;
        all.drain(..=place);
    }
    let has_more = all.len() > most;
    all.truncate(most);
    Ok(Json(List::of(Page { data: all, has_more }, |checkpoint| checkpoint, |checkpoint| &checkpoint.id)))
}

fn checkpoint_objects(folder: &JobFolder, id: &str) -> Result<Vec<CheckpointObject>, ApiError> {
    let fault = |error: io::Error| ApiError::disk(&error);
    let record = folder.read_record().map_err(fault)?;
    let mut found: BTreeMap<u64, (Metrics, u64)> = BTreeMap::new();
    for step in folder.checkpoints() {
        found.insert(step, (Metrics { step: step as f64, ..Metrics::default() }, record.created_at));
    }
    let mut journal = Journal::new(folder, Cursor::default());
    while let Some(entry) = journal.next().map_err(fault)? {
        let time = entry.time();
        let Said::Trainer(said) = entry.said else { continue };
        match said.event {
            Event::Step(step) => {
                if let Some((metrics, _)) = found.get_mut(&step.step) {
                    metrics.train_loss = Some(step.loss);
                }
            }
            Event::Evaluation(evaluation) => {
                if let Some((metrics, _)) = found.get_mut(&evaluation.step) {
                    metrics.full_valid_loss = Some(evaluation.loss);
                    metrics.full_valid_mean_token_accuracy = Some(evaluation.token_accuracy);
                }
            }
            Event::Checkpoint(place) => {
                if let Some((_, at)) = found.get_mut(&place.step) {
                    *at = time.max(0.0) as u64;
                }
            }
            _ => {}
        }
    }
    let name = record.tuned_model();
    let object = |(step, (metrics, created_at)): (u64, (Metrics, u64))| CheckpointObject {
        id: checkpoint_id(id, step),
        object: "fine_tuning.job.checkpoint",
        created_at,
        fine_tuned_model_checkpoint: format!("{name}:ckpt-step-{step}"),
        fine_tuning_job_id: id.to_owned(),
        metrics,
        step_number: step,
    };
    Ok(found.into_iter().map(object).collect())
}

/// The log of a job: a line for each thing that happened, for people.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/log", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn log(State(app): State<App>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let folder = folder_of(&app, &id)?;
    let mut journal = Journal::new(&folder, Cursor::default());
    // Each piece is read when the client has taken the one before it.
    let pieces = futures_util::stream::poll_fn(move |_| std::task::Poll::Ready(piece(&mut journal)));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(pieces)).into_response())
}

/// Some lines of a log; nothing at its end.
fn piece(journal: &mut Journal) -> Option<Result<String, io::Error>> {
    let mut text = String::new();
    while text.len() < 16 << 10 {
        match journal.next() {
            Ok(Some(entry)) => {
                if let Some(message) = words::message(&entry) {
                    let level = match message.level {
                        Level::Info => "info ",
                        Level::Warn => "warn ",
                        Level::Error => "error",
                    };
                    text.push_str(&format!(
                        "{:.3} {level} {}\n",
                        entry.time(),
                        message.text.replace('\n', "\n    ")
                    ));
                }
            }
            Ok(None) => break,
            Err(error) => return Some(Err(error)),
        }
    }
    (!text.is_empty()).then_some(Ok(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_known_by_its_job_and_step() {
        let id = checkpoint_id("ftjob-abs2", 40);
        assert_eq!(id, "ftckpt_abs2s40");
        assert_eq!(step_of("ftjob-abs2", &id), Some(40));
        for wrong in ["ftckpt_abs2s040", "ftckpt_others40", "ftckpt_abs2s", "", "s4"] {
            assert_eq!(step_of("ftjob-abs2", wrong), None, "{wrong}");
        }
    }
}
