//! `GET /v1/garden/storage` and `POST /clean`: what takes disk, and getting rid of it.
//!
//! Only what nobody needs is deleted: checkpoints of jobs that are over, contents that no file has, and leftovers of
//! work that was interrupted. A job's result stays, whatever is asked.

use crate::{
    api::{
        blocking,
        error::ApiError,
        extract::Json,
        jobs::{find, folder_of},
        models::refuse_if_needed,
    },
    app::App,
    data_dir::DataDir,
    files::cached::leftovers,
    job::{folder::JobFolder, record::JobState},
    models::folder_bytes,
    store::Store,
};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::machine::{Amount, disk};

/// Leftovers are at least this old: what is younger may be under way.
const AGE: Duration = Duration::from_secs(3600);
/// Checkpoints that one request deletes: as many as the values of a body can name.
const MOST: usize = 3000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(storage)).routes(routes!(clean))
}

/// What takes disk.
#[derive(Serialize, ToSchema)]
struct Storage {
    disk: Amount,
    /// Jobs, the largest first.
    jobs: Vec<JobStorage>,
    files_bytes: u64,
    models_bytes: u64,
    cache_bytes: u64,
    uploads_bytes: u64,
    index_bytes: u64,
    /// What belongs to nothing.
    orphans: Vec<Orphan>,
}

#[derive(Serialize, ToSchema)]
struct JobStorage {
    id: String,
    name: Option<String>,
    state: String,
    bytes: u64,
    checkpoints: Vec<CheckpointStorage>,
}

#[derive(Serialize, ToSchema)]
struct CheckpointStorage {
    step: u64,
    bytes: u64,
    /// Whether it may be deleted.
    deletable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct Orphan {
    /// Its place below the data folder.
    path: String,
    bytes: u64,
    why: &'static str,
}

/// Shows what takes disk.
#[utoipa::path(get, path = "/v1/garden/storage", tag = "Garden", responses((status = 200, body = Storage)))]
async fn storage(State(app): State<App>) -> Result<Json<Storage>, ApiError> {
    blocking(move || {
        let (data, store) = (&app.data, &app.store);
        let mut jobs: Vec<JobStorage> = entries(&data.jobs()).iter().filter_map(|path| job(path)).collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.bytes));
        Ok(Json(Storage {
            disk: disk(data.root()),
            jobs,
            files_bytes: folder_bytes(&data.blobs()),
            models_bytes: folder_bytes(&data.models()),
            cache_bytes: folder_bytes(&data.cache()),
            uploads_bytes: folder_bytes(&data.uploads()),
            index_bytes: fs::metadata(data.database()).map_or(0, |file| file.len()),
            orphans: orphans(data, store, AGE)?,
        }))
    })
    .await
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn job(path: &Path) -> Option<JobStorage> {
    let id = path.file_name()?.to_str()?;
    let folder = JobFolder::at(path);
    let (record, state) = (folder.read_record().ok()?, folder.read_state().ok()?);
    let checkpoint = |step| CheckpointStorage {
        step,
        bytes: folder_bytes(&folder.checkpoint(step)),
        deletable: refusal(&state, step).is_none(),
    };
    Some(JobStorage {
        id: id.to_owned(),
        name: record.suffix,
        state: state.word().to_owned(),
        bytes: folder_bytes(path),
        checkpoints: folder.checkpoints().into_iter().map(checkpoint).collect(),
    })
}

/// Why a checkpoint must stay.
fn refusal(state: &JobState, step: u64) -> Option<&'static str> {
    if !state.phase.is_final() {
        return Some("the job is not over: it may go on from this checkpoint");
    }
    (state.result_step == Some(step)).then_some("it is the job's result")
}

/// What belongs to nothing and has not been touched for `age`.
fn orphans(data: &DataDir, store: &Store, age: Duration) -> Result<Vec<Orphan>, ApiError> {
    let mut found = Vec::new();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for blob in entries(&data.blobs()).into_iter().filter(|path| is_old(path, age)) {
        if store.files_with_content(&name(&blob))?.is_empty() {
            found.push((blob, "a content that no file has"));
        }
    }
    let unfinished = entries(&data.jobs()).into_iter().filter(|path| name(path).starts_with(".new-"));
    found.extend(unfinished.map(|path| (path, "a job that was never made whole")));
    let begun = entries(&data.models()).into_iter().filter(|path| name(path).starts_with('.'));
    found.extend(begun.map(|path| (path, "a model that was never made whole")));
    let left = |path: &PathBuf| ["plan-", "analyze-"].iter().any(|start| name(path).starts_with(start));
    let cached = entries(&data.cache()).into_iter().filter(left);
    found.extend(cached.map(|path| (path, "left by a request that was interrupted")));
    let rows = leftovers(data).into_iter();
    found.extend(
        rows.map(|path| (path, "rows of a file that is gone, or that were not written to their end")),
    );
    found.retain(|(path, _)| is_old(path, age));
    let orphan = |(path, why): (PathBuf, &'static str)| Orphan {
        bytes: if path.is_dir() {
            folder_bytes(&path)
        } else {
            fs::metadata(&path).map_or(0, |file| file.len())
        },
        path: path.strip_prefix(data.root()).unwrap_or(&path).to_string_lossy().into_owned(),
        why,
    };
    Ok(found.into_iter().map(orphan).collect())
}

fn is_old(path: &Path, age: Duration) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|entry| entry.modified());
    changed.is_ok_and(|changed| SystemTime::now().duration_since(changed).is_ok_and(|since| since >= age))
}

/// What to delete.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct Clean {
    /// Checkpoints of jobs that are over.
    checkpoints: Vec<CheckpointName>,
    /// Everything that belongs to nothing.
    orphans: bool,
}

#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckpointName {
    job: String,
    step: u64,
}

/// What was deleted.
#[derive(Default, Serialize, ToSchema)]
struct Cleaned {
    freed_bytes: u64,
    deleted: usize,
    /// What was not, and why.
    refused: Vec<String>,
}

/// Deletes checkpoints of jobs that are over, and what belongs to nothing.
#[utoipa::path(post, path = "/v1/garden/storage/clean", tag = "Garden", request_body = Clean,
    responses((status = 200, body = Cleaned)))]
async fn clean(State(app): State<App>, Json(asked): Json<Clean>) -> Result<Json<Cleaned>, ApiError> {
    if asked.checkpoints.len() > MOST {
        return Err(ApiError::bad_request(format!("at most {MOST} checkpoints at once")).param("checkpoints"));
    }
    for CheckpointName { job, .. } in &asked.checkpoints {
        find(&app, job).await?;
    }
    blocking(move || {
        let mut cleaned = Cleaned::default();
        for name in &asked.checkpoints {
            match deletable(&app, name) {
                Ok(path) => {
                    cleaned.delete(&path);
                    app.chat.retire_below(&path);
                }
                Err(why) => cleaned.refused.push(format!("step {} of {}: {why}", name.step, name.job)),
            }
        }
        if asked.orphans {
            for orphan in orphans(&app.data, &app.store, AGE)? {
                cleaned.delete(&app.data.root().join(&orphan.path));
            }
        }
        Ok(Json(cleaned))
    })
    .await
}

/// The folder of a checkpoint that may be deleted.
fn deletable(app: &App, name: &CheckpointName) -> Result<PathBuf, String> {
    let folder = folder_of(app, &name.job).map_err(|error| error.message)?;
    let state = folder.read_state().map_err(|error| error.to_string())?;
    if let Some(why) = refusal(&state, name.step) {
        return Err(why.to_owned());
    }
    if !folder.checkpoints().contains(&name.step) {
        return Err("there is no such checkpoint".to_owned());
    }
    let record = folder.read_record().map_err(|error| error.to_string())?;
    let checkpoint = format!("{}:ckpt-step-{}", record.tuned_model(), name.step);
    refuse_if_needed(&app.models, |base| base == checkpoint).map_err(|error| error.message)?;
    Ok(folder.checkpoint(name.step))
}

impl Cleaned {
    fn delete(&mut self, path: &Path) {
        let is_folder = fs::symlink_metadata(path).is_ok_and(|entry| entry.is_dir());
        let bytes =
            if is_folder { folder_bytes(path) } else { fs::metadata(path).map_or(0, |file| file.len()) };
        let done = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match done {
            Ok(()) => {
                self.deleted += 1;
                self.freed_bytes += bytes;
            }
            Err(error) => self.refused.push(format!("{}: {error}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::record::Phase;

    #[test]
    fn a_result_and_what_may_go_on_stay() {
        let mut state = JobState::new(Phase::Running, 0);
        assert!(refusal(&state, 5).is_some());
        (state.phase, state.result_step) = (Phase::Cancelled, Some(10));
        assert_eq!((refusal(&state, 5), refusal(&state, 10)), (None, Some("it is the job's result")));
    }

    #[test]
    fn old_contents_without_a_file_are_orphans_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let (data, _lock) = DataDir::open(folder.path()).unwrap();
        let (store, _) = Store::open(&data).unwrap();
        for path in [data.blobs().join("aa"), data.jobs().join(".new-ftjob-a"), data.jobs().join("ftjob-b")] {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("rows.jsonl"), "four").unwrap();
        }
        let blob = data.blobs().join("bb");
        fs::create_dir_all(&blob).unwrap();
        fs::write(blob.join("rows.csv"), "a").unwrap();
        let owner = garden_data::cached_as(&blob.join("rows.csv")).unwrap();
        let rows = data.cache().join("model-garden/rows");
        fs::create_dir_all(&rows).unwrap();
        let kept = [format!("{owner}1-rows.csv.rows"), "0123-1-train.csv.rows".to_owned()];
        let left = [format!(".{owner}1-rows.csv.rows.0.partial"), "0123-1-rows.csv.rows".to_owned()];
        for name in kept.iter().chain(&left) {
            fs::write(rows.join(name), "12345").unwrap();
        }
        let mut found = orphans(&data, &store, Duration::ZERO).unwrap();
        let mut cached: Vec<Orphan> =
            found.extract_if(.., |orphan| orphan.path.starts_with("cache/")).collect();
        cached.sort_by(|a, b| a.path.cmp(&b.path));
        let names = left.map(|name| (format!("cache/model-garden/rows/{name}"), 5));
        assert_eq!(cached.into_iter().map(|orphan| (orphan.path, orphan.bytes)).collect::<Vec<_>>(), names);
        found.retain(|orphan| orphan.path != "blobs/bb");
        let paths: Vec<(&str, u64)> =
            found.iter().map(|orphan| (orphan.path.as_str(), orphan.bytes)).collect();
        assert_eq!(paths, [("blobs/aa", 4), ("jobs/.new-ftjob-a", 4)]);
        assert_eq!(orphans(&data, &store, AGE).unwrap(), []);
    }
}
