//! Fine-tuning jobs: OpenAI's routes, and ours beside them.

mod create;
mod curves;
mod events;
mod once;
mod stream;
mod view;

pub(crate) use once::Creating;
pub(crate) use view::JobObject;

use super::{
    error::ApiError,
    extract::{Json, Path},
    list::{List, Narrowed, limit},
    models::refuse_if_needed,
};
use crate::{
    app::App,
    id::Kind,
    job::{
        folder::JobFolder,
        keeper::seconds_now,
        manager::{Action, Indexed},
        settings::effective,
    },
    store::{JobQuery, JobRow, Page},
};
use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::header,
    response::{IntoResponse, Response},
};
use garden_train::{NoFrontEnd, RunConfig, TrainOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Pairs of metadata that a list may be filtered by.
const MOST_FILTERS: usize = 16;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(create::create, list))
        .routes(routes!(retrieve, delete))
        .routes(routes!(cancel))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(stop))
        .routes(routes!(priority))
        .routes(routes!(create::rerun))
        .routes(routes!(create::plan))
        .routes(routes!(events::events))
        .routes(routes!(events::checkpoints))
        .routes(routes!(events::log))
        .routes(routes!(curves::curves))
        .routes(routes!(stream::stream))
        .routes(routes!(report))
        .routes(routes!(settings))
}

/// What a list of jobs is narrowed to.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// The last job of the page before.
    after: Option<String>,
    /// From 1 to 1000; 20 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// Jobs in this state.
    #[param(inline)]
    state: Option<ListState>,
    /// `null` for jobs without metadata.
    #[param(inline, nullable = false)]
    metadata: Option<NoMetadata>,
}

/// The states of jobs, as `garden.state` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ListState {
    #[serde(alias = "validating_files")]
    Validating,
    Queued,
    Paused,
    Running,
    Stopping,
    Succeeded,
    Failed,
    Cancelled,
}

impl ListState {
    fn word(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Queued => "queued",
            Self::Paused => "paused",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a list is asked for that leaves out jobs with metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum NoMetadata {
    Null,
}

/// Lists jobs, the newest first.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs", tag = "Jobs", params(ListQuery,
    ("metadata[k]" = Option<String>, Query, description = "Jobs whose metadata has this value under `k`")),
    responses((status = 200, body = List<JobObject>)))]
async fn list(
    State(app): State<App>,
    Narrowed(query): Narrowed<ListQuery>,
    RawQuery(raw): RawQuery,
) -> Result<Json<List<JobObject>>, ApiError> {
    let page = app
        .store
        .list_jobs(JobQuery {
            after: query.after,
            limit: limit(query.limit, 20, 1000)?,
            metadata: metadata_filter(raw.as_deref().unwrap_or_default())?,
            without_metadata: query.metadata.is_some(),
            state: query.state.map(|state| state.word().to_owned()),
        })
        .await?;
    let has_more = page.has_more;
    let data = page.data.into_iter().map(|row| shown(&app, row)).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(List::of(Page { data, has_more }, |job| job, |job| &job.id)))
}

/// `metadata[k]=v` pairs of a query; a job has no more of them than may be asked for.
fn metadata_filter(query: &str) -> Result<Vec<(String, String)>, ApiError> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let key = |name: &str| Some(name.strip_prefix("metadata[")?.strip_suffix(']')?.to_owned());
    let pairs: Vec<_> = pairs.filter_map(|(name, value)| Some((key(&name)?, value.into_owned()))).collect();
    if pairs.len() > MOST_FILTERS {
        let message = format!("{} filters by metadata are more than {MOST_FILTERS}", pairs.len());
        return Err(ApiError::bad_request(message).param("metadata"));
    }
    Ok(pairs)
}

/// The job of a row of the index.
fn shown(app: &App, row: JobRow) -> Result<JobObject, ApiError> {
    let indexed: Indexed = serde_json::from_value(row.record)
        .map_err(|error| ApiError::internal(format!("the index of {} is broken: {error}", row.id)))?;
    Ok(now(app, indexed))
}

fn now(app: &App, job: Indexed) -> JobObject {
    let position = app.jobs.queue_position(&job.record.id);
    JobObject::new(job, position, seconds_now())
}

/// The job as it is now. One that a locked index does not have yet is read from its folder.
pub(crate) async fn find(app: &App, id: &str) -> Result<JobObject, ApiError> {
    if let Some(row) = app.store.get_job(id).await? {
        return shown(app, row);
    }
    let folder = folder_of(app, id)?;
    let missing = ApiError::not_found(Kind::Job, id);
    let read = super::blocking(move || Indexed::read(&folder).map_err(|_| missing));
    Ok(now(app, read.await?))
}

/// The folder of a job that exists.
pub(crate) fn folder_of(app: &App, id: &str) -> Result<JobFolder, ApiError> {
    let folder = app.data.job(id).filter(|path| path.is_dir()).map(JobFolder::at);
    folder.ok_or_else(|| ApiError::not_found(Kind::Job, id))
}

/// Shows a job.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = JobObject)))]
async fn retrieve(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobObject>, ApiError> {
    find(&app, &id).await.map(Json)
}

/// Deletes a job that is over, with its checkpoints, its log, its results and its tuned model.
#[utoipa::path(delete, path = "/v1/fine_tuning/jobs/{id}", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = Deleted)))]
async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Deleted>, ApiError> {
    let folder = folder_of(&app, &id)?;
    let (models, place) = (app.models.clone(), folder.path().to_owned());
    let results = super::blocking(move || {
        if let Ok(record) = folder.read_record() {
            // What it trained whole may be the base of others.
            refuse_if_needed(&models, |base| record.made(base))?;
        }
        Ok(folder.read_state().map(|state| state.result_files).unwrap_or_default())
    });
    let results = results.await?;
    app.jobs.delete(&id).await?;
    app.chat.retire_below(&place);
    let files = app.files.clone();
    super::blocking(move || {
        // The client may have deleted them before.
        results.iter().for_each(|file| drop(files.delete(file)));
        Ok(())
    })
    .await?;
    Ok(Json(Deleted { id, object: "fine_tuning.job", deleted: true }))
}

/// What was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    pub id: String,
    pub object: &'static str,
    pub deleted: bool,
}

async fn act(app: &App, id: &str, action: Action) -> Result<Json<JobObject>, ApiError> {
    let job = app.jobs.act(id, action).await?;
    Ok(Json(now(app, job)))
}

/// Ends a job at once.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs/{id}/cancel", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = JobObject)))]
async fn cancel(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobObject>, ApiError> {
    act(&app, &id, Action::Cancel).await
}

/// Pauses a job: it writes a checkpoint and waits until it is resumed.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs/{id}/pause", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = JobObject)))]
async fn pause(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobObject>, ApiError> {
    act(&app, &id, Action::Pause).await
}

/// Resumes a paused job: it goes back to the queue and on from its checkpoint.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs/{id}/resume", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = JobObject)))]
async fn resume(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobObject>, ApiError> {
    act(&app, &id, Action::Resume).await
}

/// Ends a job after a checkpoint, which is its result.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs/{id}/stop", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = JobObject)))]
async fn stop(State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobObject>, ApiError> {
    act(&app, &id, Action::Stop).await
}

/// A place in the queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Priority {
    /// Higher goes first.
    #[schema(minimum = -1000, maximum = 1000)]
    priority: i64,
}

/// Moves a job in the queue.
#[utoipa::path(post, path = "/v1/fine_tuning/jobs/{id}/priority", tag = "Jobs", params(("id" = String, Path)),
    request_body = Priority, responses((status = 200, body = JobObject)))]
async fn priority(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<Priority>,
) -> Result<Json<JobObject>, ApiError> {
    if !(-1000..=1000).contains(&asked.priority) {
        return Err(ApiError::bad_request("priority: from -1000 to 1000").param("priority"));
    }
    act(&app, &id, Action::Priority(asked.priority)).await
}

/// All settings of a job's run, defaults included.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/settings", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, description = "Settings by their names.", body = Object)))]
async fn settings(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let path = folder_of(&app, &id)?.settings();
    super::blocking(move || {
        let broken = |error: &dyn std::fmt::Display| {
            ApiError::internal(format!("{id}: its settings cannot be read: {error}"))
        };
        let (options, NoFrontEnd {}) = TrainOptions::from_file(&path).map_err(|error| broken(&error))?;
        Ok(Json(effective(&RunConfig::resolve(options).map_err(|error| broken(&error))?)))
    })
    .await
}

/// The report that the run wrote: curves, memory and verdict on one page.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/report", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn report(State(app): State<App>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let path = folder_of(&app, &id)?.output().join("report.html");
    let missing = |_| ApiError::not_found("report of the job", &id);
    let file = tokio::fs::File::open(path).await.map_err(missing)?;
    let body = Body::from_stream(tokio_util::io::ReaderStream::new(file));
    // The report has its own script inside; it may run, and do nothing else.
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; sandbox allow-scripts";
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)];
    Ok((headers, body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_by_metadata_is_read_from_the_query() {
        let query = "limit=3&metadata%5Bteam%5D=a%20b&metadata[run]=7&metadata=x";
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(metadata_filter(query).unwrap(), [pair("team", "a b"), pair("run", "7")]);
        let many = |count: usize| "metadata[a]=b&".repeat(count);
        assert_eq!(metadata_filter(&many(MOST_FILTERS)).unwrap().len(), MOST_FILTERS);
        let error = metadata_filter(&many(MOST_FILTERS + 1)).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("metadata")));
    }
}
