//! `GET /v1/garden/options`: the settings that a job may have, for forms.

use crate::{api::extract::Json, app::App, job::settings::offered};
use axum::extract::State;
use garden_train::OptionInfo;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(options))
}

/// The settings of a job.
#[derive(Serialize, ToSchema)]
struct Options {
    /// In the order in which a form has them: key, group, help, default, type and what belongs to it.
    #[schema(value_type = Vec<Object>)]
    data: Vec<OptionInfo>,
}

/// Describes the settings that a job may have.
#[utoipa::path(get, path = "/v1/garden/options", tag = "Garden", responses((status = 200, body = Options)))]
async fn options(State(app): State<App>) -> Json<Options> {
    Json(Options { data: offered(&app.config.engines()) })
}
