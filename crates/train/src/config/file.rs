//! Configuration files: TOML or YAML, by their extension.
//!
//! In comes a file whose keys are the flags' names, with dashes or underscores; out come options. A key that is not an
//! option is refused by name, with the nearest one.

use super::TrainOptions;
use serde_json::{Map, Value};
use std::{io, path::Path, path::PathBuf};

/// A configuration of a few dozen keys is smaller than this.
const LARGEST_FILE: u64 = 1 << 20;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It has another extension.
    #[error("{}: a configuration ends in .toml, .yaml or .yml", .0.display())]
    Extension(PathBuf),
    /// It is broken, or a value has the wrong type.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It has a key that means nothing.
    #[error("{}: unknown key '{key}'{}", path.display(), suggestion.map(|name| format!(": did you mean '{name}'?")).unwrap_or_default())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key as it is written.
        key: String,
        /// The nearest key that exists.
        suggestion: Option<&'static str>,
    },
}

impl TrainOptions {
    /// Reads a configuration file.
    pub fn from_file(path: &Path) -> Result<Self, FileError> {
        let io = |source| FileError::Io { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(io)?.len() > LARGEST_FILE {
            return Err(io(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "larger than a configuration ever is",
            )));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        Self::from_text(&text, path)
    }

    fn from_text(text: &str, path: &Path) -> Result<Self, FileError> {
        let syntax = |reason: String| FileError::Syntax { path: path.to_owned(), reason };
        let written: Map<String, Value> = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => toml::from_str(text).map_err(|error| syntax(error.to_string()))?,
            Some("yaml" | "yml") => {
                let keys: Option<_> =
                    serde_yaml_ng::from_str(text).map_err(|error| syntax(error.to_string()))?;
                keys.unwrap_or_default()
            }
            _ => return Err(FileError::Extension(path.to_owned())),
        };
        let mut keys = Map::new();
        for (key, value) in written {
            let name = key.replace('-', "_");
            if !Self::KEYS.contains(&name.as_str()) {
                return Err(FileError::UnknownKey { path: path.to_owned(), suggestion: nearest(&name), key });
            }
            keys.insert(name.replace('_', "-"), value);
        }
        // One key at a time, so that a wrong value is reported with its key.
        for (key, value) in &keys {
            let one = Map::from_iter([(key.clone(), value.clone())]);
            let read: Result<Self, _> = serde_json::from_value(Value::Object(one));
            read.map_err(|error| syntax(format!("key '{key}': {error}")))?;
        }
        serde_json::from_value(Value::Object(keys)).map_err(|error| syntax(error.to_string()))
    }
}

/// The option with the fewest differing letters, if there are at most a third of them.
fn nearest(name: &str) -> Option<&'static str> {
    let scored = TrainOptions::KEYS.iter().map(|key| (distance(name, key), *key));
    scored.min().filter(|(distance, key)| *distance * 3 <= key.len()).map(|(_, key)| key)
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Shape;

    fn read(text: &str, name: &str) -> Result<TrainOptions, String> {
        TrainOptions::from_text(text, Path::new(name)).map_err(|error| error.to_string())
    }

    #[test]
    fn toml_and_yaml_with_dashes_or_underscores() {
        let toml =
            "learning-rate = 1e-3\nlr_scheduler_type = \"cosine\"\nmemory-limit = \"2GB\"\nlora-r = 8\n";
        let yaml = "learning_rate: 0.001\nlr-scheduler-type: cosine\nmemory-limit: 2GB\nlora_r: 8\n";
        let options = read(toml, "run.toml").unwrap();
        assert_eq!(options.lr_scheduler_type, Some(Shape::Cosine));
        assert_eq!(options.memory_limit.unwrap().0, 2_000_000_000);
        assert_eq!(read(yaml, "run.yaml").unwrap(), options);
        assert_eq!(read("", "empty.yml").unwrap(), TrainOptions::default());
    }

    #[test]
    fn unknown_keys_are_refused_by_name_with_the_nearest() {
        let error = read("learning_rat = 1", "run.toml").unwrap_err();
        assert_eq!(error, "run.toml: unknown key 'learning_rat': did you mean 'learning_rate'?");
        let error = read("colour: red", "run.yaml").unwrap_err();
        assert_eq!(error, "run.yaml: unknown key 'colour'");
    }

    #[test]
    fn wrong_values_are_refused_with_their_key() {
        assert!(read("lora-r = \"many\"", "run.toml").unwrap_err().contains("key 'lora-r': invalid type"));
        assert!(
            read("optim = \"sgd\"", "run.toml").unwrap_err().contains("key 'optim': unknown variant `sgd`")
        );
        assert!(read("memory-limit = \"much\"", "a.toml").unwrap_err().contains("'much' is not a size"));
        assert!(read("a = [", "run.toml").is_err());
        assert!(read("", "run.ini").unwrap_err().contains(".toml, .yaml or .yml"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = TrainOptions { seed: Some(1), lora_r: Some(4), ..TrainOptions::default() };
        let flags = TrainOptions { seed: Some(2), ..TrainOptions::default() };
        let options = flags.over(file);
        assert_eq!((options.seed, options.lora_r), (Some(2), Some(4)));
    }
}
