//! New jobs: asked for, planned, refused or queued; and old ones again with other settings.

use super::{JobObject, find, folder_of, once::once};
use crate::{
    api::{
        error::ApiError,
        extract::{Json, Path},
    },
    app::App,
    files::hex,
    id::{Kind, random},
    job::{
        keeper::seconds_now,
        manager::NewJob,
        names::Names,
        planner::{JobPlan, PlanFault, Refusal, code_of},
        record::{CheckpointOf, JobRecord, KeyedRequest},
        request::{CreateJob, CreateJobForm},
        settings::{JobFiles, resolve},
    },
    models::{ModelPlace, is_hub_id},
};
use axum::{extract::State, http::HeaderMap};
use garden_train::TrainOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    path::{Path as FsPath, PathBuf},
    time::Duration,
};
use utoipa::ToSchema;

/// How long a client waits for the plan of a new job. A larger dataset is read after the job was accepted.
const PATIENCE: Duration = Duration::from_secs(20);
/// A live plan on a page is asked for at every change of a form.
const LIVE_PATIENCE: Duration = Duration::from_secs(60);
/// Creates a fine-tuning job.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs", tag = "Jobs", request_body = CreateJobForm,
    responses((status = 200, body = JobObject)))]
pub(super) async fn create(
    State(app): State<App>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<Json<JobObject>, ApiError> {
    let request = CreateJob::read(&body)?;
    let maker = app.clone();
    let work = |keyed| async move { make(&maker, &request, None, keyed).await };
    let job = once(&app, &headers, "create", &body, work).await?;
    find(&app, &job).await.map(Json)
}

/// What a job comes from, if it is not new.
struct Origin {
    rerun_of: String,
    checkpoint: Option<(CheckpointOf, PathBuf)>,
}

/// Plans a job and hands it to the manager; gives its id.
async fn make(
    app: &App,
    request: &CreateJob,
    origin: Option<Origin>,
    keyed: Option<KeyedRequest>,
) -> Result<String, ApiError> {
    let model = app.models.find_for_training(&request.model)?;
    let files = std::iter::once(&request.training_file).chain(&request.validation_file);
    let _pin = app.jobs.pin(files.chain([&model.name, &model.base_name]).cloned().collect());
    let id = Kind::Job.fresh();
    let output = app.data.jobs().join(&id).join("output");
    let (options, names) = prepared(app, request, &model, output).await?;
    let seed = options.seed.unwrap_or(3407);
    let plan = match planned(app, &options, PATIENCE, &names).await {
        Ok(plan) if plan.fits => Some(plan),
        Ok(plan) => {
            let error = ApiError::bad_request(plan.refusal()).code("memory_budget_exceeded");
            let own = request.settings.contains_key("memory_budget");
            return Err(if own { error.param("memory_budget") } else { error });
        }
        Err(PlanFault::TimeOut(_)) => None,
        Err(fault) => return Err(refused(fault)),
    };
    let (rerun_of, checkpoint) =
        origin.map_or((None, None), |origin| (Some(origin.rerun_of), origin.checkpoint));
    let (resumed_from, from) = checkpoint.unzip();
    let record = JobRecord {
        id: id.clone(),
        // The manager counts.
        number: 0,
        created_at: seconds_now(),
        model: request.model.clone(),
        base: model.base_name,
        suffix: request.suffix.clone(),
        training_file: request.training_file.clone(),
        validation_file: request.validation_file.clone(),
        hyperparameters: request.hyperparameters.complete(),
        seed,
        metadata: request.metadata.clone().unwrap_or_default(),
        settings: request.settings.clone(),
        max_restarts: request.max_restarts.unwrap_or(0),
        rerun_of,
        resumed_from,
        request: keyed,
    };
    let priority = request.priority.unwrap_or(0);
    app.jobs.create(NewJob { record, priority, options, plan, from }).await?;
    Ok(id)
}

/// The settings of the run that is asked for, and what its client calls the paths in them.
async fn prepared(
    app: &App,
    request: &CreateJob,
    model: &ModelPlace,
    output: PathBuf,
) -> Result<(TrainOptions, Names), ApiError> {
    let (training, name) = rows_of(app, &request.training_file, "training_file").await?;
    let validation = match &request.validation_file {
        Some(id) => Some(rows_of(app, id, "validation_file").await?),
        None => None,
    };
    let models = [
        (model.base.as_path(), model.base_name.as_str()),
        (model.adapter.as_deref().unwrap_or(FsPath::new("")), model.name.as_str()),
    ];
    let of_validation = validation.iter().map(|(path, name)| (FsPath::new(path), name.as_str()));
    let files = std::iter::once((FsPath::new(&training), name.as_str())).chain(of_validation);
    let names = Names::new(models, files).below(app.data.root());
    let files = JobFiles { training, validation: validation.map(|(path, _)| PathBuf::from(path)) };
    let options = request.options(model, &files, &output, app.budget.total(), &app.config.engines())?;
    let clean = |error: ApiError| ApiError { message: names.clean(&error.message), ..error };
    resolve(options.clone()).map_err(clean)?;
    Ok((options, names))
}

/// The rows behind a file's id, or `hub:owner/name`, and what its owner calls them.
async fn rows_of(app: &App, id: &str, param: &str) -> Result<(String, String), ApiError> {
    if let Some(name) = id.strip_prefix("hub:") {
        let wrong =
            || ApiError::bad_request(format!("{param}: hub:owner/name is needed, not {id}")).param(param);
        return is_hub_id(name).then(|| (name.to_owned(), name.to_owned())).ok_or_else(wrong);
    }
    let missing =
        || ApiError::bad_request(format!("{param}: no such file: {id}")).param(param).code("file_not_found");
    let record = app.files.get(id).await?.ok_or_else(missing)?;
    let path = app.files.content(&record).ok_or_else(missing)?;
    Ok((path.to_string_lossy().into_owned(), record.filename))
}

async fn planned(
    app: &App,
    options: &TrainOptions,
    patience: Duration,
    names: &Names,
) -> Result<JobPlan, PlanFault> {
    let broken = |error: std::io::Error| PlanFault::Broken(error.to_string());
    let settings = app.data.cache().join(format!("plan-{}.json", hex(&random::<8>())));
    let text = serde_json::to_vec(options).map_err(|error| broken(error.into()))?;
    tokio::fs::write(&settings, text).await.map_err(|error| PlanFault::Disk(error.kind()))?;
    let plan = app.planner.plan(&settings, app.budget.total(), patience, names).await;
    let _ = tokio::fs::remove_file(&settings).await;
    plan
}

/// The error of a plan that could not be made.
fn refused(fault: PlanFault) -> ApiError {
    match fault {
        PlanFault::Refused(Refusal { words, param }) => {
            let code = code_of(param.as_deref());
            ApiError { param, ..ApiError::bad_request(words).code(code) }
        }
        PlanFault::TimeOut(_) => ApiError::bad_request(fault).param("training_file"),
        PlanFault::Disk(kind) => ApiError::disk(&kind.into()),
        PlanFault::Broken(_) => ApiError::internal(fault),
    }
}

/// The memory plan that a job would have, without creating it.
#[utoipa::path(post, path = "/v1/garden/plan", tag = "Jobs", request_body = CreateJobForm,
    responses((status = 200, body = JobPlan)))]
pub(super) async fn plan(State(app): State<App>, Json(body): Json<Value>) -> Result<Json<JobPlan>, ApiError> {
    let request = CreateJob::read(&body)?;
    let model = app.models.find_for_training(&request.model)?;
    let output = app.data.cache().join("planned");
    let (options, names) = prepared(&app, &request, &model, output).await?;
    planned(&app, &options, LIVE_PATIENCE, &names).await.map(Json).map_err(refused)
}

/// What is different in a rerun.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
pub(super) struct Rerun {
    /// A checkpoint of the job to go on from.
    from_checkpoint: Option<String>,
    /// Any field of a new job; `null` takes a setting back to its default.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    changes: Map<String, Value>,
}

/// Runs a job again with other settings, or on from one of its checkpoints. The new job is linked to the old one.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs/{id}/rerun", tag = "Jobs", params(("id" = String, Path)),
    request_body = Rerun, responses((status = 200, body = JobObject)))]
pub(super) async fn rerun(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(rerun): Json<Rerun>,
) -> Result<Json<JobObject>, ApiError> {
    let folder = folder_of(&app, &id)?;
    let old = folder.read_record().map_err(|error| ApiError::internal(format!("{id}: {error}")))?;
    let checkpoint = match &rerun.from_checkpoint {
        None => None,
        Some(name) => {
            let step = super::events::step_of(&id, name).filter(|step| folder.checkpoints().contains(step));
            let missing = || {
                ApiError::bad_request(format!("no such checkpoint of {id}: {name}")).param("from_checkpoint")
            };
            let step = step.ok_or_else(missing)?;
            Some((CheckpointOf { job: id.clone(), step }, folder.checkpoint(step)))
        }
    };
    let request = CreateJob::again(&old, &rerun.changes)?;
    let (maker, route) = (app.clone(), format!("rerun {id}"));
    let origin = Origin { rerun_of: id, checkpoint };
    let work = |keyed| async move { make(&maker, &request, Some(origin), keyed).await };
    let body = serde_json::to_value(&rerun).map_err(ApiError::internal)?;
    let made = once(&app, &headers, &route, &body, work).await?;
    find(&app, &made).await.map(Json)
}
