//! `GET /v1/garden/watch`: readings of a running process with their verdict, as server-sent events.
//!
//! A child of the server takes the readings, and ends when the client leaves. Only processes of the server's own user
//! are watched, and only a few at once.

use super::processes::is_ours;
use crate::{
    api::{error::ApiError, extract::Query},
    app::App,
    guard::Client,
    helper,
};
use axum::{
    extract::State,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::Deserialize;
use std::{convert::Infallible, ffi::OsString, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::Semaphore,
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Watches at once.
static PLACES: Semaphore = Semaphore::const_new(8);
/// What the child may take; an analyst's memory is bounded.
const MEMORY: u64 = 512 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(watch))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Watch {
    /// The process.
    #[param(minimum = 1)]
    pid: i32,
    /// Seconds between two readings, from 1 to 60; 1 without it.
    #[param(minimum = 1, maximum = 60)]
    interval: Option<u64>,
    /// Rows in the dataset, where it trains.
    #[param(minimum = 1)]
    dataset_size: Option<u64>,
    /// Rows used by one optimizer step.
    #[param(minimum = 1)]
    samples_per_step: Option<u64>,
}

/// Watches a process and all its descendants until it ends or the client leaves.
#[utoipa::path(get, path = "/v1/garden/watch", tag = "Garden", params(Watch),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
async fn watch(
    State(app): State<App>,
    Query(asked): Query<Watch>,
    client: Client,
) -> Result<Response, ApiError> {
    if !(1..=60).contains(&asked.interval.unwrap_or(1)) {
        return Err(ApiError::bad_request("interval: from 1 to 60 seconds").param("interval"));
    }
    if !is_ours(asked.pid) {
        let message = format!("there is no process {} of this server's user", asked.pid);
        return Err(ApiError::bad_request(message).param("pid"));
    }
    let place =
        PLACES.try_acquire().map_err(|_| ApiError::busy("eight processes are watched already", 30))?;
    let permit = app.streams.open(&client)?;
    let mut child = helper::command(&app, &words(&asked)).spawn().map_err(ApiError::internal)?;
    helper::bound(&app, &child, MEMORY);
    let output = child.stdout.take().ok_or_else(|| ApiError::internal("a child without an output"))?;
    // The stream owns the child, which is killed with it.
    let state = (BufReader::new(output).lines(), child, place, permit, app);
    let events = stream::unfold(state, |(mut lines, child, place, permit, app)| async move {
        let line = tokio::select! {
            line = lines.next_line() => line.ok().flatten()?,
            () = app.stopping.wait() => return None,
        };
        let name = if line.contains("\"sample\":") { "reading" } else { "note" };
        let event = Event::default().event(name).data(line);
        Some((Ok::<_, Infallible>(event), (lines, child, place, permit, app)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn words(asked: &Watch) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["memory", "watch", "--format=json", "--duration=12h"].map(Into::into).into();
    let interval = format!("--interval={}s", asked.interval.unwrap_or(1));
    words.extend([interval.into(), format!("--pid={}", asked.pid).into()]);
    let facts = [("dataset-size", asked.dataset_size), ("samples-per-step", asked.samples_per_step)];
    words.extend(facts.iter().filter_map(|(flag, value)| Some(format!("--{flag}={}", (*value)?).into())));
    words
}
