//! What clients call the files and folders of the server.
//!
//! Takes words that a child said about the paths that it was given, and gives them with the names that a
//! client knows: of its file, of the model. Where the server keeps its data is nobody's business.

use super::folder::JobFolder;
use serde_json::Value;
use std::path::Path;

/// Paths, each with the name that stands for it; a path comes before those that contain it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Vec<(String, String)>);

impl Names {
    /// Names of models' folders and of files, which are alone in theirs. What is no whole path, such as a hub
    /// id, is its own name.
    pub(crate) fn new<'a>(
        models: impl IntoIterator<Item = (&'a Path, &'a str)>,
        files: impl IntoIterator<Item = (&'a Path, &'a str)>,
    ) -> Self {
        let folder = |(path, name): (&'a Path, &'a str)| Some((path.parent()?, name));
        let files: Vec<_> = files.into_iter().collect();
        let folders = files.clone().into_iter().filter_map(folder);
        let pairs = models.into_iter().chain(files).chain(folders).filter(|(path, _)| path.is_absolute());
        let mut pairs: Vec<_> =
            pairs.map(|(path, name)| (path.to_string_lossy().into_owned(), name.to_owned())).collect();
        pairs.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self(pairs)
    }

    /// The names in a job: of its model, its files, and everything else in the data folder.
    pub(crate) fn of_job(folder: &JobFolder) -> Self {
        let settings = std::fs::read(folder.settings()).ok();
        let settings: Value =
            settings.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let Ok(record) = folder.read_record() else { return Self::default() };
        let path = |key: &str| Path::new(settings[key].as_str().unwrap_or_default());
        let models = [(path("base-model"), record.base.as_str()), (path("adapter"), record.model.as_str())];
        let files = [
            (path("dataset"), record.training_file.as_str()),
            (path("eval-dataset"), record.validation_file.as_deref().unwrap_or_default()),
        ];
        let names = Self::new(models, files);
        names.below(folder.path().ancestors().nth(2).unwrap_or(folder.path()))
    }

    /// Takes this folder off the paths that have no name.
    pub(crate) fn below(mut self, root: &Path) -> Self {
        self.0.push((format!("{}/", root.display()), String::new()));
        self
    }

    /// The words with names for paths.
    pub(crate) fn clean(&self, words: &str) -> String {
        let replace = |words: String, (path, name): &(String, String)| match words.contains(path) {
            true => words.replace(path, name),
            false => words,
        };
        self.0.iter().fold(words.to_owned(), replace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_names_and_folders_go() {
        let names = Names::new(
            [(Path::new("/models/tiny"), "tiny"), (Path::new("a/b"), "c")],
            [(Path::new("/data/blobs/aa/rows.jsonl"), "mine.jsonl")],
        );
        let names = names.below(Path::new("/data"));
        assert_eq!(names.clean("/data/blobs/aa/rows.jsonl, row 3: bad"), "mine.jsonl, row 3: bad");
        assert_eq!(names.clean("/data/blobs/aa: no split; /models/tiny/x"), "mine.jsonl: no split; tiny/x");
        assert_eq!(names.clean("/data/cache/x and a/b"), "cache/x and a/b");
    }
}
