//! `GET` and `POST /v1/garden/jobs/{id}/answers`: how a job's answers change over its training.
//!
//! A few rows that were not trained on are asked of the base model and of every checkpoint. What they answer stands in
//! the job's folder, so that it is asked once; one job is asked at a time.

mod asking;
mod kept;
mod rows;

use crate::{
    api::{
        blocking,
        error::ApiError,
        extract::{Json, Path},
        jobs::folder_of,
    },
    app::App,
};
use asking::Asking;
use axum::extract::State;
use kept::{AnswersRow, Kept};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(answers, ask))
}

/// Rows with all answers so far.
#[derive(Serialize, ToSchema)]
struct Answers {
    rows: Vec<AnswersRow>,
    /// Which model is being asked, while one is.
    asking: Option<String>,
    /// Why the last question was not answered.
    error: Option<String>,
}

/// Shows what the base model and the checkpoints of a job answered.
#[utoipa::path(get, path = "/v1/garden/jobs/{id}/answers", tag = "Garden", params(("id" = String, Path)),
    responses((status = 200, body = Answers)))]
async fn answers(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Answers>, ApiError> {
    let folder = folder_of(&app, &id)?;
    let (asking, error) = Asking::of(&id);
    let kept = blocking(move || Kept::read(&folder).map_err(|error| ApiError::disk(&error))).await?;
    Ok(Json(Answers { rows: kept.rows, asking, error }))
}

/// Asks the base model and every checkpoint that was not asked yet; the answers come one by one.
#[utoipa::path(post, path = "/v1/garden/jobs/{id}/answers", tag = "Garden", params(("id" = String, Path)),
    responses((status = 200, body = Answers)))]
async fn ask(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Answers>, ApiError> {
    let folder = folder_of(&app, &id)?;
    Asking::begin(app.clone(), id.clone(), folder)?;
    answers(State(app), Path(id)).await
}
