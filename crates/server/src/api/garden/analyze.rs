//! `POST /v1/garden/analyze`: the verdict about the memory in a trace or a log.
//!
//! Takes the file as the body, in any format that `memory analyze` reads, and streams it to disk; a child of the
//! server judges it. Gives the assessment and a chart of the curve.

use crate::{
    api::{
        error::ApiError,
        extract::{Json, Query, unreadable},
    },
    app::App,
    helper::{self, Bounds},
};
use axum::{body::Body, extract::State};
use futures_util::StreamExt;
use garden_memory::ByteSize;
use serde::Deserialize;
use serde_json::Value;
use std::{ffi::OsString, time::Duration};
use tempfile::TempPath;
use tokio::io::AsyncWriteExt;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The largest file that is judged.
const LARGEST: usize = 64 << 20;
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(120), memory: 1 << 30, output: 16 << 20 };

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(analyze))
}

/// What is known about the run.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Known {
    /// What the file is called.
    name: Option<String>,
    /// Rows in the dataset.
    #[param(minimum = 1)]
    dataset_size: Option<u64>,
    /// Rows used by one optimizer step.
    #[param(minimum = 1)]
    samples_per_step: Option<u64>,
    /// The limit, such as `32GB`.
    limit: Option<String>,
}

/// Judges a trace or a log: leak, fill, warm-up, steady or undecided, with the curve.
#[utoipa::path(post, path = "/v1/garden/analyze", tag = "Garden", params(Known),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Object)))]
async fn analyze(
    State(app): State<App>,
    Query(known): Query<Known>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let limit =
        known.limit.as_deref().filter(|limit| !limit.is_empty()).map(str::parse::<ByteSize>).transpose();
    let limit = limit.map_err(|error| ApiError::bad_request(error).param("limit"))?;
    let name = known.name.as_deref().unwrap_or("trace");
    let path = received(&app, name, body).await?;
    let mut words: Vec<OsString> =
        ["memory", "analyze", "--format", "json", "--with-chart"].map(Into::into).into();
    let facts = [
        ("--dataset-size", known.dataset_size.map(|size| size.to_string())),
        ("--samples-per-step", known.samples_per_step.map(|rows| rows.to_string())),
        ("--limit", limit.map(|ByteSize(bytes)| bytes.to_string())),
    ];
    // One word each, so that no value is read as a flag.
    words.extend(facts.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?).into())));
    words.push(path.as_os_str().to_owned());
    // All exit codes but 2 are verdicts.
    let answer = helper::ask(&app, &words, BOUNDS, &[0, 1, 3, 4]).await.map_err(|mut error| {
        error.message = helper::named(&app, &error.message, &path.to_string_lossy(), name);
        error
    })?;
    let mut answer: Value = serde_json::from_slice(&answer).map_err(ApiError::internal)?;
    answer["name"] = name.into();
    Ok(Json(answer))
}

/// The body on disk, which is gone with its path.
async fn received(app: &App, name: &str, body: Body) -> Result<TempPath, ApiError> {
    let full = |error: std::io::Error| ApiError::disk(&error);
    // Some formats are known by their extension.
    let extension = name.rsplit_once('.').map_or("log", |(_, extension)| extension);
    let plain = extension.len() <= 8 && extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let suffix = format!(".{}", if plain { extension } else { "log" });
    let file = tempfile::Builder::new().prefix("analyze-").suffix(&suffix).tempfile_in(app.data.cache());
    let (file, path) = file.map_err(full)?.into_parts();
    let mut file = tokio::fs::File::from_std(file);
    let mut pieces = body.into_data_stream();
    let mut bytes = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| unreadable(&error))?;
        bytes += piece.len();
        if bytes > LARGEST {
            return Err(ApiError::too_large("a trace of more than 64 MiB: judge it with `memory analyze`"));
        }
        file.write_all(&piece).await.map_err(full)?;
    }
    file.flush().await.map_err(full)?;
    match bytes {
        0 => Err(ApiError::bad_request("send the trace or the log as the body")),
        _ => Ok(path),
    }
}
