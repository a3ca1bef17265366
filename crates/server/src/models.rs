//! The models of a server by their names: base models, tuned ones, their checkpoints, and merged ones.
//!
//! Takes the name that a client gives and finds the folders behind it. A name is never a path: a base model is found
//! below the folders of models, one or two names deep, a tuned one by its job, and one of the hub in the
//! cache of the children that download it.

use crate::{
    api::error::ApiError,
    data_dir::{DataDir, DataDirError},
    job::{
        folder::JobFolder,
        record::{JobRecord, JobState, Phase},
    },
};
use serde::Serialize;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};
use utoipa::ToSchema;

/// The folders behind a model's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelPlace {
    /// Its name.
    pub name: String,
    /// The name of the base model behind it.
    pub base_name: String,
    /// The base model's folder; for a job to come, also a hub id.
    pub base: PathBuf,
    /// The folder of the adapter.
    pub adapter: Option<PathBuf>,
}

/// What kind of model it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelKind {
    Base,
    Adapter,
    Checkpoint,
    Merged,
}

/// A model in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedModel {
    pub place: ModelPlace,
    pub kind: ModelKind,
    /// Seconds since 1970.
    pub created: u64,
    pub job: Option<String>,
    pub step: Option<u64>,
}

/// Finds models.
#[derive(Debug, Clone)]
pub(crate) struct Catalogue {
    data: DataDir,
    folders: Vec<PathBuf>,
}

impl Catalogue {
    /// Finds models of the server's own, and base models in `folders`.
    pub(crate) fn open(data: DataDir, folders: &[PathBuf]) -> Result<Self, DataDirError> {
        // Children run in other folders: every path must be whole.
        let whole = |path: &PathBuf| {
            fs::canonicalize(path).map_err(|source| DataDirError::Io { path: path.clone(), source })
        };
        Ok(Self { data, folders: folders.iter().map(whole).collect::<Result<_, _>>()? })
    }

    /// The model of this name on this machine.
    pub(crate) fn find(&self, name: &str) -> Result<ModelPlace, ApiError> {
        self.show(name).map(|model| model.place)
    }

    /// The model of this name, as a list has it.
    pub(crate) fn show(&self, name: &str) -> Result<ListedModel, ApiError> {
        let missing = || ApiError::not_found("model", name).param("model").code("model_not_found");
        let found = if let Some(tuned) = name.strip_prefix("ft:") {
            self.show_tuned(tuned)
        } else if let Some(merged) = name.strip_prefix("merged:") {
            let folder = is_name(merged).then(|| self.data.models().join(merged));
            let folder = folder.filter(|folder| is_model(folder));
            folder.map(|folder| ListedModel::untuned(name, folder, ModelKind::Merged))
        } else {
            self.find_base(name).map(|folder| ListedModel::untuned(name, folder, ModelKind::Base))
        };
        found.ok_or_else(missing)
    }

    /// The model that a job starts from: one of ours, or a hub id, which the job downloads.
    pub(crate) fn find_for_training(&self, name: &str) -> Result<ModelPlace, ApiError> {
        let mut place = self.find(name).or_else(|error| match is_hub_id(name) {
            true => Ok(whole(name, PathBuf::from(name))),
            false => Err(error),
        })?;
        if is_hub_id(&place.base_name) && !is_model(&place.base) {
            place.base = PathBuf::from(&place.base_name);
        }
        Ok(place)
    }

    /// The model to ask or to merge: all of its folders are there. One of the hub is, once a job has
    /// downloaded it.
    pub(crate) fn find_ready(&self, name: &str) -> Result<ModelPlace, ApiError> {
        let place = self.find(name).or_else(|error| {
            let folder = is_hub_id(name).then(|| self.hub_folder(name)).filter(|folder| is_model(folder));
            folder.map(|folder| whole(name, folder)).ok_or(error)
        })?;
        if !is_model(&place.base) {
            let message =
                format!("{}, the base model of {name}, is not on this server any more", place.base_name);
            return Err(ApiError::bad_request(message).param("model").code("model_not_found"));
        }
        Ok(place)
    }

    /// The jobs whose results need a base model that is named so.
    pub(crate) fn jobs_on(&self, is_base: impl Fn(&str) -> bool) -> Vec<String> {
        let records = names_in(&self.data.jobs()).into_iter().filter_map(|id| {
            let record = JobFolder::at(self.data.job(&id)?).read_record().ok()?;
            is_base(&record.base).then_some(id)
        });
        records.collect()
    }

    /// Where the children keep a model of the hub.
    fn hub_folder(&self, name: &str) -> PathBuf {
        garden_data::cached_model_folder(&self.data.cache().join("huggingface"), name)
    }

    /// The folder of a base model, which may be one that was trained whole here.
    fn base_folder(&self, base: &str) -> Option<PathBuf> {
        let found = self.find(base).ok().map(|place| place.base);
        found.or_else(|| is_hub_id(base).then(|| self.hub_folder(base)))
    }

    fn find_base(&self, name: &str) -> Option<PathBuf> {
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return None;
        }
        self.folders.iter().map(|folder| folder.join(name)).find(|folder| is_model(folder))
    }

    /// `{base}:{suffix}:{end of the job's id}`, and `:ckpt-step-{n}` for a checkpoint.
    fn show_tuned(&self, tuned: &str) -> Option<ListedModel> {
        // A base model that is a checkpoint has such a word inside its name.
        let checkpoint = tuned.rsplit_once(":ckpt-step-");
        let checkpoint = checkpoint.and_then(|(tuned, step)| Some((tuned, step.parse::<u64>().ok()?)));
        let (tuned, step) = checkpoint.map_or((tuned, None), |(tuned, step)| (tuned, Some(step)));
        let (_, end) = tuned.rsplit_once(':')?;
        let jobs = fs::read_dir(self.data.jobs()).ok()?.flatten();
        let ids =
            jobs.filter_map(|entry| entry.file_name().into_string().ok()).filter(|id| id.ends_with(end));
        let job = ids.filter_map(|id| TunedJob::read(&self.data, &id));
        let job = job.into_iter().find(|job| job.record.tuned_model().strip_prefix("ft:") == Some(tuned))?;
        job.model(step, |base| self.base_folder(base))
    }

    /// All models, the newest first within each kind.
    pub(crate) fn list(&self) -> Vec<ListedModel> {
        let mut all = self.list_base();
        all.extend(self.list_tuned());
        let merged = names_in(&self.data.models()).into_iter();
        all.extend(merged.filter_map(|name| self.show(&format!("merged:{name}")).ok()));
        all
    }

    fn list_base(&self) -> Vec<ListedModel> {
        let mut names: Vec<String> = Vec::new();
        for folder in &self.folders {
            for name in names_in(folder) {
                if is_model(&folder.join(&name)) {
                    names.push(name);
                    continue;
                }
                let inner = names_in(&folder.join(&name)).into_iter();
                names.extend(inner.map(|inner| format!("{name}/{inner}")));
            }
        }
        names.sort();
        names.dedup();
        let listed = names
            .iter()
            .filter_map(|name| Some(ListedModel::untuned(name, self.find_base(name)?, ModelKind::Base)));
        listed.collect()
    }

    fn list_tuned(&self) -> Vec<ListedModel> {
        let mut all = Vec::new();
        // Many jobs have the same base.
        let mut bases: HashMap<String, Option<PathBuf>> = HashMap::new();
        let mut find_base = |base: &str| match bases.get(base) {
            Some(found) => found.clone(),
            None => {
                let found = self.base_folder(base);
                bases.insert(base.to_owned(), found.clone());
                found
            }
        };
        for id in names_in(&self.data.jobs()) {
            let Some(job) = TunedJob::read(&self.data, &id) else { continue };
            let steps = job.folder.checkpoints().into_iter().map(Some);
            all.extend(std::iter::once(None).chain(steps).filter_map(|step| job.model(step, &mut find_base)));
        }
        all.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.place.name.cmp(&b.place.name)));
        all
    }
}

impl ListedModel {
    /// A model without a job.
    fn untuned(name: &str, folder: PathBuf, kind: ModelKind) -> Self {
        let created = modified(&folder);
        Self { place: whole(name, folder), kind, created, job: None, step: None }
    }
}

/// A job, which may have made models.
struct TunedJob {
    folder: JobFolder,
    record: JobRecord,
    state: JobState,
}

impl TunedJob {
    fn read(data: &DataDir, id: &str) -> Option<Self> {
        let folder = JobFolder::at(data.job(id)?);
        let (record, state) = (folder.read_record().ok()?, folder.read_state().ok()?);
        Some(Self { folder, record, state })
    }

    /// The job's model: its result, or the checkpoint of a step.
    fn model(
        &self,
        step: Option<u64>,
        find_base: impl FnOnce(&str) -> Option<PathBuf>,
    ) -> Option<ListedModel> {
        let Self { folder, record, state } = self;
        let adapter = match step {
            Some(step) => folder.checkpoint(step),
            None => self.result()?,
        };
        let (base, adapter) = if adapter.join("adapter_config.json").exists() {
            (find_base(&record.base)?, Some(adapter))
        } else if is_model(&adapter) {
            // All weights were trained: the result is a model of its own.
            (adapter, None)
        } else {
            return None;
        };
        let own = adapter.as_ref().unwrap_or(&base);
        let tuned = record.tuned_model();
        let (name, kind, created) = match step {
            Some(step) => (format!("{tuned}:ckpt-step-{step}"), ModelKind::Checkpoint, modified(own)),
            None => (tuned, ModelKind::Adapter, state.finished_at.unwrap_or(record.created_at)),
        };
        Some(ListedModel {
            // What was trained whole is a base model for others.
            place: ModelPlace {
                base_name: if adapter.is_some() { record.base.clone() } else { name.clone() },
                name,
                base,
                adapter,
            },
            kind,
            created,
            job: Some(record.id.clone()),
            step: step.or(state.result_step),
        })
    }

    /// Where the result lies: the output folder, or the checkpoint at which the job was stopped.
    fn result(&self) -> Option<PathBuf> {
        match (self.state.phase, self.state.result_step) {
            (Phase::Succeeded, _) => Some(self.folder.output()),
            (Phase::Cancelled, Some(step)) => Some(self.folder.checkpoint(step)),
            _ => None,
        }
    }
}

fn whole(name: &str, base: PathBuf) -> ModelPlace {
    ModelPlace { name: name.to_owned(), base_name: name.to_owned(), base, adapter: None }
}

/// Whether a text is a plain name: no path, nothing hidden.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=128).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('.')
}

/// Whether a text is `owner/name` or `owner/name@revision`, each of them a plain name. Children run in an empty folder,
/// so no such text is a path for them.
pub(crate) fn is_hub_id(text: &str) -> bool {
    let (id, revision) = text.split_once('@').map_or((text, None), |(id, revision)| (id, Some(revision)));
    let names = id.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name));
    names && revision.is_none_or(is_name)
}

fn is_model(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}

/// Plain names in a folder; nothing where it cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_name(name))
        .collect();
    names.sort();
    names
}

fn modified(path: &Path) -> u64 {
    let time = fs::metadata(path).and_then(|data| data.modified()).ok();
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs())
}

/// Bytes of all files in a folder and below, each counted once.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let mut sum = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) => sum += data.len(),
                Err(_) => {}
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Kind;

    #[test]
    fn base_models_are_found_by_name_and_never_by_path() {
        let root = tempfile::tempdir().unwrap();
        let (data, _lock) = DataDir::open(&root.path().join("data")).unwrap();
        let models = root.path().join("models");
        for name in ["tiny", "Qwen/small", ".hidden"] {
            fs::create_dir_all(models.join(name)).unwrap();
            fs::write(models.join(name).join("config.json"), "{}").unwrap();
        }
        let catalogue = Catalogue::open(data, std::slice::from_ref(&models)).unwrap();
        let models = models.canonicalize().unwrap();
        assert_eq!(catalogue.find("tiny").unwrap().base, models.join("tiny"));
        assert_eq!(catalogue.find("Qwen/small").unwrap().base_name, "Qwen/small");
        for wrong in [
            "",
            ".",
            "..",
            "../tiny",
            "tiny/..",
            "/etc",
            ".hidden",
            "Qwen",
            "a/b/c",
            "ft:",
            "ft:x:y:z",
            "merged:..",
            "tiny\0",
        ] {
            assert_eq!(catalogue.find(wrong).unwrap_err().status.as_u16(), 404, "{wrong:?}");
        }
        let names: Vec<String> = catalogue.list().into_iter().map(|model| model.place.name).collect();
        assert_eq!(names, ["Qwen/small", "tiny"]);
        assert_eq!(catalogue.find_for_training("Qwen/other").unwrap().base, Path::new("Qwen/other"));
        for wrong in ["/etc/passwd", "a/b@../../c", "a/b@", "a/b@main\0", "a/..", "a/b/c"] {
            assert!(catalogue.find_for_training(wrong).is_err(), "{wrong:?}");
        }
    }

    /// A job that succeeded with an adapter and kept a checkpoint.
    fn tuned_job(data: &DataDir, number: u64) -> String {
        let id = Kind::Job.fresh();
        let auto = serde_json::json!("auto");
        let record = serde_json::json!({
            "id": id, "number": number, "created_at": number, "model": "tiny", "base": "tiny", "training_file": "file-a",
            "hyperparameters": {"batch_size": auto, "learning_rate_multiplier": auto, "n_epochs": auto},
            "seed": 1, "metadata": {}, "settings": {}, "max_restarts": 0,
        });
        let state = JobState { finished_at: Some(number), ..JobState::new(Phase::Succeeded, 0) };
        let checkpoint = data.jobs().join(&id).join("output/checkpoint-7");
        fs::create_dir_all(&checkpoint).unwrap();
        let write = |path: &Path, text: String| fs::write(path, text).unwrap();
        write(&data.jobs().join(&id).join("job.json"), record.to_string());
        write(&data.jobs().join(&id).join("state.json"), serde_json::to_string(&state).unwrap());
        write(&checkpoint.join("manifest.json"), "{}".into());
        for folder in [&checkpoint, checkpoint.parent().unwrap()] {
            write(&folder.join("adapter_config.json"), "{}".into());
        }
        id
    }

    /// A job that made a model from this base; with `all`, of all weights.
    fn job_on(data: &DataDir, base: &str, all: bool) -> JobRecord {
        let id = tuned_job(data, 1);
        let folder = JobFolder::at(data.jobs().join(&id));
        let record = JobRecord { base: base.into(), model: base.into(), ..folder.read_record().unwrap() };
        fs::write(folder.path().join("job.json"), serde_json::to_string(&record).unwrap()).unwrap();
        if all {
            for folder in [folder.output(), folder.checkpoint(7)] {
                let names = ["adapter_config.json", "config.json"].map(|name| folder.join(name));
                garden_files::rename(&names[0], &names[1]).unwrap();
            }
        }
        record
    }

    #[test]
    fn the_base_of_a_model_from_the_hub_is_its_snapshot_and_never_a_path_from_here() {
        let root = tempfile::tempdir().unwrap();
        let (data, _lock) = DataDir::open(&root.path().join("data")).unwrap();
        // The tests run in the crate's folder, which has one of this name.
        let record = job_on(&data, "src/api", false);
        let catalogue = Catalogue::open(data.clone(), &[]).unwrap();
        let tuned = record.tuned_model();
        assert!(catalogue.find(&tuned).unwrap().base.is_absolute());
        let gone = catalogue.find_ready(&tuned).unwrap_err();
        assert_eq!(
            (gone.status.as_u16(), gone.message.contains("src/api, the base model")),
            (400, true),
            "{gone:?}"
        );
        assert_eq!(
            catalogue.find_for_training(&tuned).unwrap().base,
            Path::new("src/api"),
            "it is downloaded"
        );
        assert_eq!(catalogue.find_ready("src/api").unwrap_err().status.as_u16(), 404);

        let hub = data.cache().join("huggingface/hub/models--src--api");
        let snapshot = hub.join("snapshots/abc");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(hub.join("refs")).unwrap();
        fs::write(hub.join("refs/main"), "abc").unwrap();
        fs::write(snapshot.join("config.json"), "{}").unwrap();
        assert_eq!(catalogue.find_ready(&tuned).unwrap().base, snapshot);
        assert_eq!(catalogue.find_ready("src/api").unwrap().base, snapshot);
        assert_eq!(catalogue.list()[0].place.base, snapshot);
    }

    #[test]
    fn what_was_trained_whole_is_the_base_of_what_is_trained_from_it() {
        let root = tempfile::tempdir().unwrap();
        let (data, _lock) = DataDir::open(&root.path().join("data")).unwrap();
        let catalogue = Catalogue::open(data.clone(), &[]).unwrap();
        let whole = job_on(&data, "tiny", true);
        for name in [whole.tuned_model(), format!("{}:ckpt-step-7", whole.tuned_model())] {
            let place = catalogue.find(&name).unwrap();
            assert_eq!((&place.base_name, &place.adapter), (&name, &None));
            assert!(whole.made(&name) && !whole.made("tiny"));
            let second = job_on(&data, &place.base_name, false);
            assert_eq!(catalogue.find_ready(&second.tuned_model()).unwrap().base, place.base);
            assert_eq!(catalogue.jobs_on(|base| base == name), [second.id]);
        }
    }

    #[test]
    fn a_model_is_shown_as_the_list_has_it() {
        let root = tempfile::tempdir().unwrap();
        let (data, _lock) = DataDir::open(&root.path().join("data")).unwrap();
        let models = root.path().join("models");
        for folder in [models.join("tiny"), data.models().join("one")] {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config.json"), "{}").unwrap();
        }
        let jobs: Vec<String> = (1..=1000).map(|number| tuned_job(&data, number)).collect();
        let catalogue = Catalogue::open(data, &[models]).unwrap();
        let started = std::time::Instant::now();
        let listed = catalogue.list();
        println!("{} models listed in {:?}", listed.len(), started.elapsed());
        assert_eq!(listed.len(), 2 + 2 * jobs.len());
        let first = listed.iter().find(|model| model.job.as_ref() == Some(&jobs[0])).unwrap();
        assert_eq!(first.place.base_name, "tiny");
        let started = std::time::Instant::now();
        let shown = listed.iter().step_by(100).chain([first]);
        shown.for_each(|model| assert_eq!(&catalogue.show(&model.place.name).unwrap(), model));
        println!("21 models shown in {:?}", started.elapsed());
    }
}
