//! OpenAI's API, and what the pages need beside it.
//!
//! [`routes`] is the one place where routes are registered; [`router`] puts the guard around them.

mod archive;
pub(crate) mod chat;
pub(crate) mod error;
pub(crate) mod extract;
mod files;
mod garden;
mod health;
pub(crate) mod jobs;
pub(crate) mod list;
mod metrics;
mod models;
mod multipart;
mod openapi;
mod uploads;
mod webhooks;

use crate::{app::App, guard, pages};
use axum::{
    Router,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use error::ApiError;
use utoipa_axum::router::OpenApiRouter;

/// All routes that the OpenAPI document tells of.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .merge(files::routes())
        .merge(uploads::routes())
        .merge(webhooks::routes())
        .merge(jobs::routes())
        .merge(garden::routes())
        .merge(models::routes())
        .merge(chat::routes())
        .merge(health::routes())
        .merge(metrics::routes())
}

/// Everything that the server answers.
pub(crate) fn router(app: &App) -> Router {
    let (routes, document) = routes().split_for_parts();
    let all = routes
        .merge(openapi::routes(openapi::complete(document)))
        .merge(guard::routes())
        .merge(pages::routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    guard::around(all, app).with_state(app.clone())
}

async fn no_route(uri: Uri, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    match accept {
        Some(accept) if accept.contains("text/html") && !uri.path().starts_with("/v1/") => pages::missing(),
        _ => ApiError::not_found("route", uri.path()).into_response(),
    }
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{method} is not done at {}", uri.path());
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Runs what waits for the disk on a thread for that. It goes on to its end though the client leaves.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(ApiError::internal(error)))
}
