//! `GET /v1/garden/options`: the settings that a job may have, for forms.

use crate::{api::extract::Json, app::App, job::settings::NOT_ASKED};
use garden_train::{OptionInfo, TrainOptions};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Settings that are refused though they are the trainer's: rows come as one file, with their images inside.
const NOT_HERE: [&str; 3] = ["add_dataset", "dataset_weights", "allow_remote_images"];

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
async fn options() -> Json<Options> {
    let asked = |option: &OptionInfo| {
        !NOT_ASKED.iter().any(|(name, _)| *name == option.key) && !NOT_HERE.contains(&option.key)
    };
    Json(Options { data: TrainOptions::describe().into_iter().filter(asked).collect() })
}
