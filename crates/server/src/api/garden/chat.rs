//! `/v1/garden/chat`: the models that are loaded for chat, loaded and unloaded by hand.

use crate::{
    api::{
        blocking,
        error::ApiError,
        extract::{Json, Path},
    },
    app::App,
    chat::{HostKey, Loaded},
};
use axum::extract::State;
use garden_model::Precision;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list)).routes(routes!(load, unload))
}

/// The models that answer now.
#[derive(Serialize, ToSchema)]
struct LoadedModels {
    data: Vec<Loaded>,
}

/// Lists the models that are loaded for chat, with the memory that they have and their open questions.
#[utoipa::path(get, path = "/v1/garden/chat", tag = "Chat", responses((status = 200, body = LoadedModels)))]
async fn list(State(app): State<App>) -> Json<LoadedModels> {
    Json(LoadedModels { data: app.chat.loaded() })
}

/// Starts a model's process, so that the first question need not wait for it.
#[utoipa::path(post, path = "/v1/garden/chat/{model}", tag = "Chat", params(("model" = String, Path)),
    responses((status = 200, body = LoadedModels)))]
async fn load(State(app): State<App>, Path(model): Path<String>) -> Result<Json<LoadedModels>, ApiError> {
    let (models, name) = (app.models.clone(), model.clone());
    let key = blocking(move || Ok(HostKey::new(&models.find_ready(&name)?, Precision::AsStored))).await?;
    app.chat.load(&model, &key).await?;
    Ok(list(State(app)).await)
}

/// Unloads a model, in every precision, after the questions that it has.
#[utoipa::path(delete, path = "/v1/garden/chat/{model}", tag = "Chat", params(("model" = String, Path)),
    responses((status = 200, body = LoadedModels)))]
async fn unload(State(app): State<App>, Path(model): Path<String>) -> Result<Json<LoadedModels>, ApiError> {
    match app.chat.unload(&model) {
        0 => Err(ApiError::not_found("loaded model", model)),
        _ => Ok(list(State(app)).await),
    }
}
