//! A job as it happens: server-sent events that a client can take up again where it lost them.
//!
//! Every event has an id, which is a place in the job's journals; `Last-Event-ID` goes on from there. A client that is
//! slower than the job reads the rest from disk when it comes back: nothing is queued for it in memory.

use super::{find, folder_of};
use crate::{
    api::{
        error::ApiError,
        extract::{Path, Query},
    },
    app::App,
    guard::{Client, StreamPermit},
    job::journal::{Cursor, Entry, Journal, Said},
};
use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event as SseEvent, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::Deserialize;
use std::{convert::Infallible, time::Duration};
use tokio::sync::watch;
use utoipa::IntoParams;

/// Entries between two pauses for other requests.
const BATCH: usize = 200;
/// A stream looks at the journal this often even if nothing was announced.
const PATIENCE: Duration = Duration::from_secs(5);
/// Progress of reading and loading is told often enough without every line of it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct From {
    /// Where to begin: the `cursor` of the curves, or the id of an event. `Last-Event-ID` goes before it.
    after: Option<String>,
}

/// Follows a job: its history, steps, evaluations, checkpoints, memory, and its state whenever that changes.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/stream", tag = "Jobs", params(("id" = String, Path), From,
    ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen")),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(super) async fn stream(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(from): Query<From>,
    client: Client,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let folder = folder_of(&app, &id)?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let cursor = match last.filter(|id| !id.is_empty()).or(from.after.as_deref()) {
        Some(id) => id
            .parse()
            .map_err(|()| ApiError::bad_request(format!("no such event: {id}")).param("Last-Event-ID"))?,
        None => Cursor::default(),
    };
    let follower = Follower {
        _place: app.streams.open(&client)?,
        journal: Journal::new(&folder, cursor),
        cursor,
        changes: app.jobs.changes(),
        app,
        id,
        shown: String::new(),
        over: false,
    };
    let events = stream::unfold((follower, Vec::new().into_iter()), |(mut follower, mut ready)| async move {
        loop {
            if let Some(event) = ready.next() {
                return Some((Ok::<_, Infallible>(event), (follower, ready)));
            }
            ready = follower.next().await?.into_iter();
        }
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}

struct Follower {
    /// One of the streams that the server has at once.
    _place: StreamPermit,
    app: App,
    id: String,
    journal: Journal,
    cursor: Cursor,
    changes: watch::Receiver<u64>,
    /// The state that was sent last.
    shown: String,
    over: bool,
}

impl Follower {
    /// The next events; nothing once the job is over and all was told, or the server ends.
    async fn next(&mut self) -> Option<Vec<SseEvent>> {
        loop {
            if self.over {
                return None;
            }
            self.changes.mark_unchanged();
            // What the job is now comes after what led to it.
            let job = find(&self.app, &self.id).await.ok();
            let mut events = self.read();
            if events.len() < BATCH {
                let Some(job) = job else {
                    // It was deleted.
                    self.over = true;
                    return Some(events);
                };
                let state = serde_json::to_string(&job).unwrap_or_default();
                if state != self.shown {
                    events.push(SseEvent::default().event("state").id(self.cursor.to_string()).data(&state));
                    self.shown = state;
                }
                self.over = job.is_over();
            }
            if !events.is_empty() {
                return Some(events);
            }
            let app = self.app.clone();
            tokio::select! {
                changed = tokio::time::timeout(PATIENCE, self.changes.changed()) => {
                    if matches!(changed, Ok(Err(_))) {
                        return None;
                    }
                }
                () = app.stopping.wait() => return None,
            }
        }
    }

    fn read(&mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while events.len() < BATCH {
            let Ok(Some(entry)) = self.journal.next() else { break };
            self.cursor = entry.after;
            events
                .push(SseEvent::default().event(kind(&entry)).id(entry.after.to_string()).data(&entry.line));
        }
        events
    }
}

/// What an entry is, as the client listens for it.
fn kind(entry: &Entry) -> String {
    match &entry.said {
        Said::History(_) => "history".to_owned(),
        Said::Trainer(_) => serde_json::from_str::<serde_json::Value>(&entry.line)
            .ok()
            .and_then(|line| Some(line.get("event")?.as_str()?.to_owned()))
            .unwrap_or_else(|| "text".to_owned()),
    }
}
