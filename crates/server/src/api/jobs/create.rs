//! New jobs: asked for, planned, refused or queued; and old ones again with other settings.

use super::{JobObject, find, folder_of, view};
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
        planner::{JobPlan, PlanFault},
        record::{CheckpointOf, JobRecord, OrAuto},
        settings::{CreateJob, JobFiles, MethodRequest, resolve},
    },
    models::{ModelPlace, is_hub_id},
    store::Claim,
};
use axum::{extract::State, http::HeaderMap};
use garden_train::TrainOptions;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;
use utoipa::ToSchema;

/// How long a client waits for the plan of a new job. A larger dataset is read after the job was accepted.
const PATIENCE: Duration = Duration::from_secs(20);
/// A live plan on a page is asked for at every change of a form.
const LIVE_PATIENCE: Duration = Duration::from_secs(60);
/// How long a request that is sent twice waits for the first one's job.
const DUPLICATE_PATIENCE: Duration = Duration::from_secs(30);

/// Creates a fine-tuning job.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs", tag = "Jobs", request_body = CreateJob,
    responses((status = 200, body = JobObject)))]
pub(super) async fn create(
    State(app): State<App>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<Json<JobObject>, ApiError> {
    let request = parse(&body)?;
    let hash = hex(&Sha256::digest(body.to_string()));
    let job = match headers.get("idempotency-key") {
        Some(key) => {
            let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len()));
            let key = key
                .ok_or_else(|| ApiError::bad_request("1 to 255 ASCII characters").param("Idempotency-Key"))?;
            let (app, key) = (app.clone(), key.to_owned());
            on_its_own(async move { by_key(&app, &key, &hash, &request).await }).await?
        }
        None => {
            let maker = app.clone();
            app.creating.once(hash, async move { make(&maker, &request, None).await }).await?
        }
    };
    find(&app, &job).await.map(Json)
}

/// Does something to its end though the client leaves.
async fn on_its_own<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(ApiError::internal(error)))
}

/// The job of a request with a key: the same key gives the same job, for a day.
async fn by_key(app: &App, key: &str, hash: &str, request: &CreateJob) -> Result<String, ApiError> {
    let begun = Instant::now();
    loop {
        match app.store.claim(key, hash).await? {
            Claim::New => break,
            Claim::Same(job) if app.store.get_job(&job).await?.is_some() => return Ok(job),
            Claim::Same(_) => {
                let message = "the job that was made with this idempotency key was deleted: use a new key";
                return Err(ApiError::bad_request(message).param("Idempotency-Key"));
            }
            Claim::Different => {
                let message = "this idempotency key was used for another request";
                return Err(ApiError::bad_request(message).param("Idempotency-Key"));
            }
            Claim::InFlight if begun.elapsed() > DUPLICATE_PATIENCE => {
                return Err(ApiError::busy("the same request is still being answered", 5));
            }
            Claim::InFlight => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let made = make(app, request, None).await;
    // The job is made: an index that cannot be written now costs the key, not the job.
    let _ = match &made {
        Ok(job) => app.store.fulfil(key, job).await,
        Err(_) => app.store.release(key).await,
    };
    made
}

/// Requests that are being answered, by their hash. The SDK repeats a POST whose answer was lost: an equal request in
/// flight is the same request, and gets the same job.
#[derive(Clone, Default)]
pub(crate) struct Creating(Arc<Mutex<HashMap<String, watch::Receiver<Option<Made>>>>>);

/// What came of a request: a job, or why there is none.
type Made = Result<String, ApiError>;

impl Creating {
    /// Does the work, or waits for whoever does the same already. The work goes on though the client leaves.
    async fn once(&self, hash: String, work: impl Future<Output = Made> + Send + 'static) -> Made {
        let mut answer = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match all.get(&hash) {
                Some(answer) => answer.clone(),
                None => {
                    let (sender, answer) = watch::channel(None);
                    all.insert(hash.clone(), answer.clone());
                    let creating = self.clone();
                    tokio::spawn(async move {
                        let made = work.await;
                        creating.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&hash);
                        sender.send_replace(Some(made));
                    });
                    answer
                }
            }
        };
        let gone = || ApiError::internal("the request could not be answered");
        let made = answer.wait_for(Option::is_some).await.map_err(|_| gone())?.clone();
        made.ok_or_else(gone)?
    }
}

fn parse(body: &Value) -> Result<CreateJob, ApiError> {
    let request: CreateJob = serde_json::from_value(body.clone()).map_err(ApiError::bad_request)?;
    request.check()?;
    Ok(request)
}

/// What a job comes from, if it is not new.
struct Origin {
    rerun_of: String,
    checkpoint: Option<(CheckpointOf, PathBuf)>,
}

/// Plans a job and hands it to the manager; gives its id.
async fn make(app: &App, request: &CreateJob, origin: Option<Origin>) -> Result<String, ApiError> {
    let files = std::iter::once(&request.training_file).chain(&request.validation_file).cloned().collect();
    let _pin = app.jobs.pin(files);
    let id = Kind::Job.fresh();
    let output = app.data.jobs().join(&id).join("output");
    let (model, options) = prepared(app, request, output).await?;
    let seed = options.seed.unwrap_or(3407);
    let plan = match planned(app, &options, PATIENCE).await {
        Ok(plan) if plan.fits => Some(plan),
        Ok(plan) => return Err(ApiError::bad_request(plan.refusal()).code("memory_budget_exceeded")),
        Err(PlanFault::TimeOut(_)) => None,
        Err(error @ PlanFault::Refused(_)) => {
            return Err(ApiError::bad_request(error).code("invalid_training_file").param("training_file"));
        }
        Err(PlanFault::Disk(kind)) => return Err(ApiError::disk(&kind.into())),
        Err(error) => return Err(ApiError::internal(error)),
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
        hyperparameters: request.hyperparameters(),
        seed,
        metadata: request.metadata.clone().unwrap_or_default(),
        settings: request.settings.clone(),
        max_restarts: request.max_restarts.unwrap_or(0),
        rerun_of,
        resumed_from,
    };
    let priority = request.priority.unwrap_or(0);
    app.jobs.create(NewJob { record, priority, options, plan, from }).await?;
    Ok(id)
}

/// The settings of the run that is asked for.
async fn prepared(
    app: &App,
    request: &CreateJob,
    output: PathBuf,
) -> Result<(ModelPlace, TrainOptions), ApiError> {
    let model = app.models.find_for_training(&request.model)?;
    let files = JobFiles {
        training: rows_of(app, &request.training_file, "training_file").await?,
        validation: match &request.validation_file {
            Some(id) => Some(PathBuf::from(rows_of(app, id, "validation_file").await?)),
            None => None,
        },
    };
    let options = request.options(&model, &files, &output, app.budget.total())?;
    resolve(options.clone())?;
    Ok((model, options))
}

/// The rows behind a file's id, or `hub:owner/name`.
async fn rows_of(app: &App, id: &str, param: &str) -> Result<String, ApiError> {
    if let Some(name) = id.strip_prefix("hub:") {
        let wrong =
            || ApiError::bad_request(format!("{param}: hub:owner/name is needed, not {id}")).param(param);
        return is_hub_id(name).then(|| name.to_owned()).ok_or_else(wrong);
    }
    let missing =
        || ApiError::bad_request(format!("{param}: no such file: {id}")).param(param).code("file_not_found");
    let record = app.files.get(id).await?.ok_or_else(missing)?;
    let path = app.files.content(&record).ok_or_else(missing)?;
    Ok(path.to_string_lossy().into_owned())
}

async fn planned(app: &App, options: &TrainOptions, patience: Duration) -> Result<JobPlan, PlanFault> {
    let broken = |error: std::io::Error| PlanFault::Broken(error.to_string());
    let settings = app.data.cache().join(format!("plan-{}.json", hex(&random::<8>())));
    let text = serde_json::to_vec(options).map_err(|error| broken(error.into()))?;
    tokio::fs::write(&settings, text).await.map_err(|error| PlanFault::Disk(error.kind()))?;
    let plan = app.planner.plan(&settings, app.budget.total(), patience).await;
    let _ = tokio::fs::remove_file(&settings).await;
    plan
}

/// The memory plan that a job would have, without creating it.
#[utoipa::path(post, path = "/v1/garden/plan", tag = "Jobs", request_body = CreateJob,
    responses((status = 200, body = JobPlan)))]
pub(super) async fn plan(State(app): State<App>, Json(body): Json<Value>) -> Result<Json<JobPlan>, ApiError> {
    let request = parse(&body)?;
    let output = app.data.cache().join("planned");
    let (_, options) = prepared(&app, &request, output).await?;
    planned(&app, &options, LIVE_PATIENCE).await.map(Json).map_err(|error| match error {
        PlanFault::Broken(_) => ApiError::internal(error),
        PlanFault::Disk(kind) => ApiError::disk(&kind.into()),
        _ => ApiError::bad_request(error).param("training_file"),
    })
}

/// What is different in a rerun.
#[derive(Debug, Default, Deserialize, ToSchema)]
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
    let request = changed(&old, &rerun.changes)?;
    let maker = app.clone();
    let work = async move { make(&maker, &request, Some(Origin { rerun_of: id, checkpoint })).await };
    let made = on_its_own(work).await?;
    find(&app, &made).await.map(Json)
}

/// The request that made a job, with changes.
fn changed(old: &JobRecord, changes: &Map<String, Value>) -> Result<CreateJob, ApiError> {
    let mut request = CreateJob {
        model: old.model.clone(),
        training_file: old.training_file.clone(),
        validation_file: old.validation_file.clone(),
        suffix: old.suffix.clone(),
        seed: (!old.settings.contains_key("seed")).then_some(old.seed),
        metadata: (!old.metadata.is_empty()).then(|| old.metadata.clone()),
        method: (!view::as_auto(&old.hyperparameters))
            .then(|| MethodRequest::supervised(&old.hyperparameters)),
        hyperparameters: None,
        integrations: None,
        priority: None,
        max_restarts: Some(old.max_restarts),
        settings: old.settings.clone(),
    };
    let fields = [
        "model",
        "training_file",
        "validation_file",
        "suffix",
        "seed",
        "metadata",
        "method",
        "priority",
        "max_restarts",
    ];
    for (key, value) in changes {
        match fields.contains(&key.as_str()) {
            true => set_field(&mut request, key, value.clone())?,
            false if value.is_null() => drop(request.settings.remove(key)),
            false => {
                forget_hyperparameter(&mut request, key);
                request.settings.insert(key.clone(), value.clone());
            }
        }
    }
    request.check()?;
    Ok(request)
}

/// A setting that replaces a hyperparameter of the same meaning.
fn forget_hyperparameter(request: &mut CreateJob, key: &str) {
    let supervised = request.method.as_mut().and_then(|method| method.supervised.as_mut());
    let Some(asked) = supervised.and_then(|supervised| supervised.hyperparameters.as_mut()) else { return };
    match key {
        "batch_size" => asked.batch_size = Some(OrAuto::AUTO),
        "epochs" => asked.n_epochs = Some(OrAuto::AUTO),
        "learning_rate" => asked.learning_rate_multiplier = Some(OrAuto::AUTO),
        _ => {}
    }
}

fn set_field(request: &mut CreateJob, key: &str, value: Value) -> Result<(), ApiError> {
    fn read<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<T, ApiError> {
        serde_json::from_value(value)
            .map_err(|error| ApiError::bad_request(format!("{key}: {error}")).param(key))
    }
    match key {
        "model" => request.model = read(key, value)?,
        "training_file" => request.training_file = read(key, value)?,
        "validation_file" => request.validation_file = read(key, value)?,
        "suffix" => request.suffix = read(key, value)?,
        "seed" => request.seed = read(key, value)?,
        "metadata" => request.metadata = read(key, value)?,
        "method" => request.method = read(key, value)?,
        "priority" => request.priority = read(key, value)?,
        _ => request.max_restarts = read(key, value)?,
    }
    Ok(())
}
