//! Datasets and models of the hub: found, downloaded once, and read from the cache that Python's tools share.
//!
//! Takes an id (`owner/name` or `owner/name@revision`) and gives local files. `HF_TOKEN`, `HF_HOME`,
//! `HF_ENDPOINT` and `HF_HUB_OFFLINE` mean what they mean to `huggingface_hub`; offline, only the cache is
//! read.

use crate::{
    card::{Card, README},
    dataset::{self, Found},
    error::DataError,
    missing,
    progress::{Progress, ProgressUnit},
    split::{self, SplitChoice},
};
use hf_hub::{
    Cache, CacheRepo, Repo, RepoType,
    api::sync::{ApiBuilder, ApiError, ApiRepo},
};
use std::{
    env, fs,
    path::{Component, Path, PathBuf},
};

/// Images that rows may name by their path are downloaded with the rows.
const IMAGE_EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Whether a name that is no file could be on the hub.
pub(crate) fn is_id(name: &str) -> bool {
    let id = name.split_once('@').map_or(name, |(id, _)| id);
    let word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let parts: Vec<_> = id.split('/').collect();
    parts.len() == 2 && parts.iter().all(|part| word(part)) && !dataset::is_data(Path::new(id), None)
}

/// The settings of the environment, as values that tests can choose.
struct Hub {
    cache: Cache,
    endpoint: Option<String>,
    token: Option<String>,
    offline: bool,
}

impl Hub {
    fn from_env() -> Self {
        let variable = |name| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let yes = |value: String| ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str());
        let cache = match variable("HF_HUB_CACHE") {
            Some(folder) => Cache::new(folder.into()),
            None => Cache::from_env(),
        };
        Self {
            token: variable("HF_TOKEN").or_else(|| cache.token()),
            cache,
            endpoint: variable("HF_ENDPOINT"),
            offline: variable("HF_HUB_OFFLINE").is_some_and(yes),
        }
    }

    fn dataset(&self, name: &str, split: &SplitChoice, progress: &dyn Progress) -> Result<Found, DataError> {
        let failed = |reason| DataError::Hub { id: name.to_owned(), reason };
        let place = self.place(name, RepoType::Dataset);
        let choose: &Choose<'_> = &|names, fetch| {
            let card = names.iter().any(|name| name == README).then(|| fetch.text(README)).transpose()?;
            let card = card.map(|text| Card::parse(&text)).transpose()?.flatten();
            dataset_files(names, card.as_ref(), split)
        };
        let snapshot = self.snapshot(&place, choose, progress).map_err(failed)?;
        let chosen = dataset::choose_in(&snapshot, split)?;
        Ok(Found {
            chosen,
            index_folder: Some(place.folder.join("garden-index")),
            bounds: Some(place.folder),
        })
    }

    fn model(&self, name: &str, progress: &dyn Progress) -> Result<PathBuf, DataError> {
        let place = self.place(name, RepoType::Model);
        let snapshot = self.snapshot(&place, &|names, _| model_files(names), progress);
        snapshot.map_err(|reason| DataError::Hub { id: name.to_owned(), reason })
    }

    fn place(&self, name: &str, kind: RepoType) -> Place {
        let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
        let repo = Repo::with_revision(id.to_owned(), kind, revision.to_owned());
        let folder = self.cache.path().join(repo.folder_name());
        Place { id: id.to_owned(), revision: revision.to_owned(), kind, repo, folder }
    }

    /// The folder of a revision in the cache, with the files that `choose` wants of those there are.
    fn snapshot(
        &self,
        place: &Place,
        choose: &Choose<'_>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, String> {
        if self.offline {
            return place.cached();
        }
        let mut builder =
            ApiBuilder::from_cache(self.cache.clone()).with_retries(2).with_token(self.token.clone());
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let explain = |error: ApiError| explain(&error, place.what());
        let api = builder.build().map_err(explain)?;
        let info = api.repo(place.repo.clone()).info().map_err(explain)?;
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric());
        if !is_name(&info.sha) {
            return Err(format!("the hub names a commit that is none: {}", info.sha));
        }
        // By commit, not by branch: all files then belong to one version.
        let commit = Repo::with_revision(place.id.clone(), place.kind, info.sha.clone());
        let fetch = Fetch { api: api.repo(commit.clone()), cache: self.cache.repo(commit), progress, place };
        let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
        for name in choose(&names, &fetch)? {
            fetch.file(name)?;
        }
        self.cache.repo(place.repo.clone()).create_ref(&info.sha).map_err(|error| error.to_string())?;
        Ok(place.folder.join("snapshots").join(info.sha))
    }
}

/// Chooses the files to fetch, by the names of all files.
type Choose<'a> = dyn for<'n> Fn(&'n [String], &Fetch<'_>) -> Result<Vec<&'n String>, String> + 'a;

/// A name on the hub, and where the cache keeps it.
struct Place {
    id: String,
    revision: String,
    kind: RepoType,
    repo: Repo,
    folder: PathBuf,
}

impl Place {
    fn what(&self) -> &'static str {
        match self.kind {
            RepoType::Dataset => "dataset",
            _ => "model",
        }
    }

    /// The snapshot that is already here.
    fn cached(&self) -> Result<PathBuf, String> {
        let commit = fs::read_to_string(self.folder.join("refs").join(&self.revision));
        let commit = commit.unwrap_or_else(|_| self.revision.clone());
        let snapshot = self.folder.join("snapshots").join(commit.trim());
        match snapshot.is_dir() {
            true => Ok(snapshot),
            false => Err(format!("not in the cache ({}), and HF_HUB_OFFLINE is set", snapshot.display())),
        }
    }
}

/// The rows of a split of a dataset, and its images.
fn dataset_files<'n>(
    names: &'n [String],
    card: Option<&Card>,
    split: &SplitChoice,
) -> Result<Vec<&'n String>, String> {
    let data: Vec<_> = names.iter().map(PathBuf::from).filter(|name| dataset::is_data(name, card)).collect();
    if data.is_empty() {
        return Err("it has no .jsonl, .json or .parquet file".into());
    }
    let data = split::choose(Path::new(""), data, card, split).map_err(without_folder)?.files;
    let wanted =
        |name: &&String| is_image(Path::new(name)) || data.iter().any(|data| data == Path::new(name));
    Ok(names.iter().filter(wanted).collect())
}

/// The message of an error about a folder, without the folder: there is none yet.
fn without_folder(error: DataError) -> String {
    error.to_string().trim_start_matches(": ").to_owned()
}

/// The weights of a model, and the files beside them that say what it is: those at the top, in Hugging Face's
/// layout.
fn model_files(names: &[String]) -> Result<Vec<&String>, String> {
    if !names.iter().any(|name| name.ends_with(".safetensors")) {
        return Err("it has no .safetensors file".into());
    }
    let known = [".safetensors", ".json", ".jinja", ".txt"];
    let wanted = |name: &&String| !name.contains('/') && known.iter().any(|end| name.ends_with(end));
    Ok(names.iter().filter(wanted).collect())
}

/// Fetches files of one commit.
struct Fetch<'a> {
    api: ApiRepo,
    cache: CacheRepo,
    progress: &'a dyn Progress,
    place: &'a Place,
}

impl Fetch<'_> {
    /// The text of a file.
    fn text(&self, name: &str) -> Result<String, String> {
        self.file(name)?;
        let path = self.cache.get(name).ok_or_else(|| format!("{name}: not in the cache"))?;
        let bytes = fs::read(&path).map_err(|error| format!("{name}: {error}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Downloads a file, unless the cache has it.
    fn file(&self, name: &str) -> Result<(), String> {
        // The name comes from the server and becomes a path here.
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !plain {
            return Err(format!("the hub lists a file outside the {}: {name}", self.place.what()));
        }
        if self.cache.get(name).is_some() {
            return Ok(());
        }
        let bar = Bar { progress: self.progress, begun: false };
        let done = self.api.download_with_progress(name, bar);
        done.map(drop).map_err(|error| format!("{name}: {}", explain(&error, self.place.what())))
    }
}

/// The data files of a dataset of the hub, downloaded where needed.
pub(crate) fn find(name: &str, split: &SplitChoice, progress: &dyn Progress) -> Result<Found, DataError> {
    Hub::from_env()
        .dataset(name, split, progress)
        .map_err(|error| nor_here(error, Path::new(name), "file or folder"))
}

/// The folder of a model: `name` itself, or the snapshot of a model of the hub (`owner/name`,
/// `owner/name@revision`), downloaded where needed.
pub fn model_folder(name: &str, progress: &dyn Progress) -> Result<PathBuf, DataError> {
    let path = Path::new(name);
    if !path.exists() && is_id(name) {
        return Hub::from_env().model(name, progress).map_err(|error| nor_here(error, path, "folder"));
    }
    missing::check_folder(path).map(|()| path.to_owned())
}

/// The snapshot of a model of the hub in this machine's cache, if there is one. Asks nobody.
pub fn cached_model(name: &str) -> Option<PathBuf> {
    is_id(name).then(|| Hub::from_env().place(name, RepoType::Model).cached().ok())?
}

/// Where the cache in `home`, which stands for `HF_HOME`, has a model of the hub: its snapshot, or the folder
/// that would hold one where nothing was downloaded. Asks nobody.
pub fn cached_model_folder(home: &Path, name: &str) -> PathBuf {
    let cache = Cache::new(home.join("hub"));
    let place = Hub { cache, endpoint: None, token: None, offline: true }.place(name, RepoType::Model);
    place.cached().unwrap_or(place.folder)
}

/// The error for a name that is neither here nor on the hub. It speaks of the path first, since most such
/// names are mistyped paths.
fn nor_here(error: DataError, path: &Path, what: &str) -> DataError {
    match error {
        DataError::Hub { id, reason } => {
            let here = missing::reason(path, what);
            DataError::NoData { path: id.into(), reason: format!("{here}; and on the hub: {reason}") }
        }
        other => other,
    }
}

fn is_image(name: &Path) -> bool {
    let extension = name.extension().unwrap_or_default().to_ascii_lowercase();
    IMAGE_EXTENSIONS.iter().any(|known| extension == *known)
}

/// Adds to an error of the hub what can be done about it.
fn explain(error: &ApiError, what: &str) -> String {
    let text = error.to_string();
    let has = |code: &str| text.contains(code);
    if has("401") || has("403") {
        format!("{text}: it is private or gated; set HF_TOKEN to a token that may read it")
    } else if has("404") {
        format!("{text}: there is no such {what} or revision")
    } else {
        text
    }
}

/// Passes the progress of a download on.
struct Bar<'a> {
    progress: &'a dyn Progress,
    begun: bool,
}

impl hf_hub::api::Progress for Bar<'_> {
    fn init(&mut self, size: usize, name: &str) {
        // Called once more for each attempt.
        if !self.begun {
            self.progress.begin(&format!("Downloading {name}"), ProgressUnit::Bytes, size as u64);
            self.begun = true;
        }
    }

    fn update(&mut self, size: usize) {
        self.progress.advance(size as u64);
    }

    fn finish(&mut self) {
        self.progress.end();
    }
}

#[cfg(test)]
mod tests;
