//! The pages for people: HTML frames from templates, scripts and styles from the program itself.
//!
//! A page is a frame; what it shows, its script asks of the API, as any other client would. Nothing is fetched from
//! elsewhere and no script stands inside a page: the guard's policy holds the browser to it.

mod assets;
mod frame;
#[cfg(test)]
mod tests;

use crate::app::App;
use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::Response,
    routing::get,
};
use frame::{Frame, render};
use serde::Deserialize;

/// Where each page lies.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(|app| page(app, "jobs")))
        .route("/jobs", get(|app| page(app, "jobs")))
        .route("/jobs/new", get(|app| page(app, "new_job")))
        .route("/jobs/{id}", get(job))
        .route("/compare", get(|app| page(app, "compare")))
        .route("/datasets", get(|app| page(app, "datasets")))
        .route("/models", get(|app| page(app, "models")))
        .route("/memory", get(|app| page(app, "memory")))
        .route("/machine", get(|app| page(app, "machine")))
        .route("/login", get(login))
        .route("/assets/{*path}", get(assets::asset))
}

async fn page(State(app): State<App>, name: &'static str) -> Response {
    render(StatusCode::OK, &Frame { keys: app.guard.keys.are_needed(), ..Frame::of(name) })
}

async fn job(State(app): State<App>, Path(id): Path<String>) -> Response {
    if !crate::id::Kind::Job.names(&id) {
        return missing();
    }
    render(StatusCode::OK, &Frame { id, keys: app.guard.keys.are_needed(), ..Frame::of("job") })
}

/// Where to go after the login, and whether a key was refused before.
#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    next: String,
    wrong: Option<String>,
}

async fn login(Query(Login { next, wrong }): Query<Login>) -> Response {
    let wrong = wrong.map(|_| "This key is not known, or it was revoked.");
    render(StatusCode::OK, &Frame { next, wrong, ..Frame::of("login") })
}

/// The page where no page is.
pub(crate) fn missing() -> Response {
    render(StatusCode::NOT_FOUND, &Frame::of("missing"))
}
