//! Models: listed, shown, deleted, merged, downloaded.

use super::{
    archive::Archive,
    blocking,
    error::ApiError,
    extract::{Json, Path},
    jobs::Deleted,
};
use crate::{
    app::App,
    guard::Client,
    id::Kind,
    models::{Catalogue, ListedModel, ModelKind, ModelPlace, is_name},
};
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use std::{fs, io, path::PathBuf, process::Stdio, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// How long a client may take nothing of a download before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a merge printed at its end, if it failed.
const LONGEST_ERROR: usize = 4000;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list))
        .routes(routes!(retrieve, delete))
        .routes(routes!(merge))
        .routes(routes!(download))
}

/// A model.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Model)]
struct ModelObject {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    owned_by: &'static str,
    garden: Garden,
}

/// What is ours.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = GardenModel)]
struct Garden {
    kind: ModelKind,
    /// The base model's name.
    base: String,
    /// The job that made it.
    job: Option<String>,
    step: Option<u64>,
    /// Bytes on disk.
    bytes: u64,
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
struct Models {
    object: &'static str,
    data: Vec<ModelObject>,
}

impl From<ListedModel> for ModelObject {
    fn from(model: ListedModel) -> Self {
        let bytes =
            own_files(&model.place).iter().map(|path| fs::metadata(path).map_or(0, |data| data.len())).sum();
        Self {
            id: model.place.name,
            object: "model",
            created: model.created,
            owned_by: if model.kind == ModelKind::Base { "models-dir" } else { "model-garden" },
            garden: Garden {
                kind: model.kind,
                base: model.place.base_name,
                job: model.job,
                step: model.step,
                bytes,
            },
        }
    }
}

/// The folder that a model has to itself.
fn own_folder(place: &ModelPlace) -> &PathBuf {
    place.adapter.as_ref().unwrap_or(&place.base)
}

/// The files that make a model, without what lies beside them: checkpoints, traces, the optimizer's state.
fn own_files(place: &ModelPlace) -> Vec<PathBuf> {
    const BESIDES: [&str; 8] = [
        "optimizer.safetensors",
        "events.jsonl",
        "memory.jsonl",
        "metrics.jsonl",
        "progress.json",
        "settings.json",
        "manifest.json",
        "trainer_state.json",
    ];
    let entries = fs::read_dir(own_folder(place)).into_iter().flatten().flatten();
    let files = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        entry.path().is_file() && !name.starts_with('.') && !BESIDES.contains(&&*name)
    });
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Lists base models, tuned models, their checkpoints, and merged models.
#[utoipa::path(get, path = "/v1/models", tag = "Models", responses((status = 200, body = Models)))]
async fn list(State(app): State<App>) -> Result<Json<Models>, ApiError> {
    let models = app.models.clone();
    let data = blocking(move || Ok(models.list().into_iter().map(ModelObject::from).collect())).await?;
    Ok(Json(Models { object: "list", data }))
}

/// Shows a model.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "Models", params(("id" = String, Path)),
    responses((status = 200, body = ModelObject)))]
async fn retrieve(State(app): State<App>, Path(id): Path<String>) -> Result<Json<ModelObject>, ApiError> {
    let models = app.models.clone();
    blocking(move || models.show(&id).map(ModelObject::from)).await.map(Json)
}

/// Deletes a tuned or merged model. The job that made it stays; base models belong to whoever runs the server.
#[utoipa::path(delete, path = "/v1/models/{id}", tag = "Models", params(("id" = String, Path)),
    responses((status = 200, body = Deleted)))]
async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Deleted>, ApiError> {
    let (models, name) = (app.models.clone(), id.clone());
    let model = blocking(move || models.show(&name)).await?;
    if model.kind == ModelKind::Base {
        let message =
            format!("{id} is a base model: it lies outside of the server's data and is not deleted");
        return Err(ApiError::bad_request(message).param("model"));
    }
    if let Some(job) = &model.job
        && !super::jobs::find(&app, job).await?.is_over()
    {
        return Err(
            ApiError::bad_request(format!("{job} is not over: cancel it first")).code("invalid_state")
        );
    }
    if app.jobs.uses_model(&id) {
        return Err(
            ApiError::bad_request(format!("a job that is not over starts from {id}")).code("invalid_state")
        );
    }
    let (models, name) = (app.models.clone(), id.clone());
    let removed = blocking(move || {
        refuse_if_needed(&models, |base| base == name)?;
        remove(&model).map_err(|error| ApiError::disk(&error))?;
        Ok(own_folder(&model.place).clone())
    });
    app.chat.retire_below(&removed.await?);
    Ok(Json(Deleted { id, object: "model", deleted: true }))
}

/// Refuses to delete a model that tuned models are based on: without it they could not be asked, and with
/// another one of its name they would answer wrongly.
pub(crate) fn refuse_if_needed(models: &Catalogue, is_base: impl Fn(&str) -> bool) -> Result<(), ApiError> {
    let jobs = models.jobs_on(is_base);
    if jobs.is_empty() {
        return Ok(());
    }
    let message = format!("these jobs have it as their base model: {}; delete them first", jobs.join(", "));
    Err(ApiError::bad_request(message).code("model_in_use"))
}

/// Removes what makes a model: the adapter of a job and not its checkpoints, a checkpoint, or a merged folder.
fn remove(model: &ListedModel) -> io::Result<()> {
    let folder = own_folder(&model.place);
    match model.kind {
        ModelKind::Base => Ok(()),
        ModelKind::Adapter => own_files(&model.place).iter().try_for_each(fs::remove_file),
        ModelKind::Checkpoint => {
            // Without its manifest it is no checkpoint any more, however far the rest gets.
            fs::remove_file(folder.join("manifest.json"))?;
            fs::remove_dir_all(folder)
        }
        ModelKind::Merged => {
            // Hidden first: a model that is half gone is not found any more, and the next start removes it.
            let hidden = folder.with_file_name(format!(".deleted-{}", Kind::Request.fresh()));
            garden_files::rename(folder, &hidden)?;
            fs::remove_dir_all(&hidden)
        }
    }
}

/// How a merged model is made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Merge {
    /// The new model is called `merged:NAME`.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
    name: String,
    /// How its weights are stored.
    #[serde(default)]
    save_as: SaveAs,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
enum SaveAs {
    #[default]
    #[serde(rename = "16bit")]
    SixteenBit,
    #[serde(rename = "4bit")]
    FourBit,
}

/// Writes a tuned model and its base as one model, in a process of its own; answers when it is done.
#[utoipa::path(post, path = "/v1/garden/models/{id}/merge", tag = "Models", params(("id" = String, Path)),
    request_body = Merge, responses((status = 200, body = ModelObject)))]
async fn merge(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<Merge>,
) -> Result<Json<ModelObject>, ApiError> {
    let (models, name) = (app.models.clone(), id.clone());
    let place = blocking(move || models.find_ready(&name)).await?;
    let Some(adapter) = place.adapter else {
        return Err(ApiError::bad_request(format!("{id} has no adapter to merge")).param("id"));
    };
    if !is_name(&asked.name) {
        return Err(ApiError::bad_request("name: letters, digits, '-', '_' and '.'").param("name"));
    }
    let output = app.data.models().join(&asked.name);
    if output.exists() {
        return Err(ApiError::bad_request(format!("merged:{} is there already", asked.name)).param("name"));
    }
    let busy = || ApiError::busy("another model is being merged", 30);
    let turn = app.merging.clone().try_acquire_owned().map_err(|_| busy())?;
    let mut command = tokio::process::Command::from(app.program.command());
    command.arg("merge").arg("--base-model").arg(&place.base).arg("--adapter").arg(adapter);
    command.arg("--output").arg(&output).arg("--save-as");
    command.arg(match asked.save_as {
        SaveAs::SixteenBit => "16bit",
        SaveAs::FourBit => "4bit",
    });
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // It goes on though the client leaves: the folder appears when it is whole.
    let merged = tokio::spawn(async move {
        let ended = command.output().await;
        drop(turn);
        ended
    });
    let ended = merged.await.map_err(io::Error::from).and_then(|ended| ended);
    let ended =
        ended.map_err(|error| ApiError::internal(format!("the merge could not be started: {error}")))?;
    if !ended.status.success() {
        let words = app.program.without_folders(&String::from_utf8_lossy(&ended.stderr));
        let words: String = words.trim().chars().take(LONGEST_ERROR).collect();
        return Err(ApiError::bad_request(format!("the model could not be merged: {words}")));
    }
    retrieve(State(app), Path(format!("merged:{}", asked.name))).await
}

/// A tuned or merged model as a tar archive.
#[utoipa::path(get, path = "/v1/garden/models/{id}/download", tag = "Models", params(("id" = String, Path)),
    responses((status = 200, content_type = "application/x-tar", body = [u8])))]
async fn download(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let place = app.streams.open(&client)?;
    let name: String = id
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' })
        .collect();
    let (models, folder) = (app.models.clone(), name.clone());
    let archive = blocking(move || {
        let files = own_files(&models.find(&id)?);
        Archive::of(&files, &folder).map_err(|error| ApiError::disk(&error))
    });
    let archive = archive.await?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar".to_owned()),
        (header::CONTENT_LENGTH, archive.bytes().to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.tar\"")),
    ];
    let stopping = app.stopping.clone();
    let body = archive.body(PATIENCE, async move { stopping.wait().await }, place);
    Ok((headers, body).into_response())
}
