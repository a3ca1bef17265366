//! Configuration files: TOML, YAML or JSON, by their extension.
//!
//! Reads a file whose keys are the options' names, with dashes or underscores. An unknown key is refused by
//! name, with the nearest option. A key that occurs twice is refused too, and so are `nan` and `inf`.
//! YAML's merge keys work.

use super::{TrainOptions, words};
use serde::{Deserialize, de::DeserializeOwned};
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
    #[error("{}: a configuration ends in .toml, .yaml, .yml or .json", .0.display())]
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

/// Why a setting that a program gives cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is no such setting.
    #[error("unknown setting '{key}'{}", suggestion.map(|name| format!(": did you mean '{name}'?")).unwrap_or_default())]
    Unknown {
        /// As it was given.
        key: String,
        /// The nearest one that exists.
        suggestion: Option<&'static str>,
    },
    /// Its value has the wrong type, or means nothing.
    #[error("{key}: {reason}")]
    Value {
        /// The setting.
        key: String,
        /// What is wrong.
        reason: String,
    },
}

/// Options that a front end keeps in the same file: how it draws, and the like.
pub trait FrontEndOptions: DeserializeOwned + Default {
    /// Their keys, with underscores.
    const KEYS: &'static [&'static str];
}

/// A front end without options in the file.
#[derive(Debug, Default, Deserialize)]
pub struct NoFrontEnd {}

impl FrontEndOptions for NoFrontEnd {
    const KEYS: &'static [&'static str] = &[];
}

impl TrainOptions {
    /// Reads a configuration file, and in it the front end's own options.
    ///
    /// ```
    /// use garden_train::{NoFrontEnd, ScheduleShape, TrainOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.toml");
    /// # std::fs::write(&path, "lr-scheduler-type = \"cosine\"")?;
    /// let (options, NoFrontEnd {}) = TrainOptions::from_file(&path)?;
    /// assert_eq!(options.lr_scheduler_type, Some(ScheduleShape::Cosine));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file<F: FrontEndOptions>(path: &Path) -> Result<(Self, F), FileError> {
        let io = |source| FileError::Io { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(io)?.len() > LARGEST_FILE {
            return Err(io(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "larger than a configuration ever is",
            )));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let text = String::from_utf8(bytes).map_err(|_| FileError::Syntax {
            path: path.to_owned(),
            reason: "not UTF-8 text: save the file as UTF-8".to_owned(),
        })?;
        Self::from_text(&text, path)
    }

    /// Reads settings that a program gives as keys and values, named as in a configuration file.
    ///
    /// ```
    /// use garden_train::TrainOptions;
    /// let keys = serde_json::json!({"learning_rate": 1e-4, "lora-r": "8"});
    /// let options = TrainOptions::from_keys(keys.as_object().unwrap())?;
    /// assert_eq!((options.learning_rate, options.lora_r), (Some(1e-4), Some(8)));
    /// # Ok::<(), garden_train::KeyError>(())
    /// ```
    pub fn from_keys(given: &Map<String, Value>) -> Result<Self, KeyError> {
        let mut keys = Map::new();
        for (key, value) in given {
            let name = key.replace('-', "_");
            if !Self::KEYS.contains(&name.as_str()) {
                let suggestion = nearest(&name, Self::KEYS);
                return Err(KeyError::Unknown { key: key.clone(), suggestion });
            }
            let fault = |reason: String| KeyError::Value { key: key.clone(), reason };
            let name = name.replace('_', "-");
            let value =
                readable::<Self>(&name, value.clone()).map_err(|error| fault(words::plain(&error)))?;
            if keys.insert(name, value).is_some() {
                return Err(fault("given twice, with dashes and with underscores".to_owned()));
            }
        }
        // Each of them was read alone.
        read(keys).map_err(|reason| KeyError::Value { key: String::new(), reason })
    }

    fn from_text<F: FrontEndOptions>(text: &str, path: &Path) -> Result<(Self, F), FileError> {
        let syntax = |reason: String| FileError::Syntax { path: path.to_owned(), reason };
        // Editors on Windows put a mark before the first character.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_lowercase);
        let written = match extension.as_deref() {
            Some("toml") => toml_keys(text).map_err(syntax)?,
            // Every JSON text is YAML.
            Some("yaml" | "yml" | "json") => yaml_keys(text).map_err(syntax)?,
            _ => return Err(FileError::Extension(path.to_owned())),
        };
        let (mut keys, mut front_end_keys) = (Map::new(), Map::new());
        for (key, value) in written {
            let name = key.replace('-', "_");
            let of_front_end = F::KEYS.contains(&name.as_str());
            if !of_front_end && !Self::KEYS.contains(&name.as_str()) {
                let suggestion = nearest(&name, &[Self::KEYS, F::KEYS].concat());
                return Err(FileError::UnknownKey { path: path.to_owned(), suggestion, key });
            }
            let name = name.replace('_', "-");
            let (keys, readable) = match of_front_end {
                true => (&mut front_end_keys, readable::<F>(&name, value)),
                false => (&mut keys, readable::<Self>(&name, value)),
            };
            // A wrong value is reported with its key.
            let value = readable.map_err(|error| syntax(format!("key '{key}': {}", words::plain(&error))))?;
            if keys.insert(name, value).is_some() {
                return Err(syntax(format!("key '{key}' is given twice, with dashes and with underscores")));
            }
        }
        let read = (read(keys), read(front_end_keys));
        Ok((read.0.map_err(syntax)?, read.1.map_err(syntax)?))
    }
}

fn read<T: DeserializeOwned>(keys: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(keys)).map_err(|error| error.to_string())
}

/// Keys and values of a file, in its order.
type Keys = Vec<(String, Value)>;

fn toml_keys(text: &str) -> Result<Keys, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let pair = |(key, value): (String, toml::Value)| {
        json_value(&key, value.as_float(), &value).map(|value| (key, value))
    };
    table.into_iter().map(pair).collect()
}

fn yaml_keys(text: &str) -> Result<Keys, String> {
    use serde_yaml_ng::Value as Yaml;
    let told = |error: serde_yaml_ng::Error| {
        let text = error.to_string();
        // Larger than any number that it keeps.
        if text.contains("as u128") || text.contains("as i128") {
            "a number is too large".into()
        } else {
            text
        }
    };
    let mut document: Yaml = serde_yaml_ng::from_str(text).map_err(told)?;
    let merges = document.get("<<").is_some();
    document.apply_merge().map_err(told)?;
    let mapping = match document {
        Yaml::Null => return Ok(Keys::new()),
        Yaml::Mapping(mapping) => mapping,
        _ => return Err("a configuration has keys and values".into()),
    };
    let mut keys = Keys::new();
    for (key, value) in mapping {
        let Yaml::String(key) = key else { return Err("a key is not a word".into()) };
        // Blocks that others are merged from are in the same file, under names that are not options.
        if !(merges && value.is_mapping()) {
            let value = json_value(&key, value.as_f64(), &value)?;
            keys.push((key, value));
        }
    }
    Ok(keys)
}

/// A value as JSON has it. JSON has neither `nan` nor `inf`: without this check they would be lost silently.
fn json_value(key: &str, float: Option<f64>, value: impl serde::Serialize) -> Result<Value, String> {
    match float {
        Some(number) if !number.is_finite() => {
            Err(format!("key '{key}': {number} cannot be the value of a setting"))
        }
        _ => serde_json::to_value(value).map_err(|error| format!("key '{key}': {error}")),
    }
}

/// A value in the form that its option has. People write `eval_split: 0.05` and `epochs: "3"`, and lists
/// where a flag takes one text: each is read as it is meant.
fn readable<T: DeserializeOwned>(key: &str, value: Value) -> Result<Value, String> {
    let read = |value: &Value| {
        let one = Map::from_iter([(key.to_owned(), value.clone())]);
        self::read::<T>(one)
    };
    let Err(error) = read(&value) else { return Ok(value) };
    let other = match &value {
        Value::Number(number) => match number.as_f64().filter(|value| whole(*value)) {
            Some(value) if number.is_f64() => Some(Value::from(value as u64)),
            _ => Some(Value::String(number.to_string())),
        },
        Value::Array(list) => {
            let words: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
            words.map(|words| Value::String(words.join(",")))
        }
        Value::String(text) => match (switch(text), text.trim().parse::<f64>()) {
            (Some(on), _) if read(&Value::Bool(on)).is_ok() => Some(Value::Bool(on)),
            (_, Ok(_)) => serde_json::from_str(text.trim()).ok(),
            _ => {
                let words = || text.split(',').map(str::trim);
                let numbers = words().map(|word| serde_json::from_str(word).ok().map(Value::Number));
                let numbers: Option<Value> = numbers.collect();
                let numbers = numbers.filter(|numbers| read(numbers).is_ok());
                Some(numbers.unwrap_or_else(|| words().map(Value::from).collect()))
            }
        },
        _ => None,
    };
    let Some(other) = other else { return Err(error) };
    match read(&other) {
        Ok(_) => Ok(other),
        // The list that the text stands for is the right form: a word of it is wrong.
        Err(of_list) if other.is_array() && error.ends_with("expected a sequence") => Err(of_list),
        Err(_) => Err(error),
    }
}

/// A switch as YAML 1.1 and people write it.
fn switch(text: &str) -> Option<bool> {
    match text.trim().to_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Whether a number is a count: `batch_size: 2.0`.
fn whole(value: f64) -> bool {
    value.fract() == 0.0 && (0.0..9e15).contains(&value)
}

/// The option with the fewest differing letters, if at most a third of them differ.
fn nearest(name: &str, keys: &[&'static str]) -> Option<&'static str> {
    let scored = keys.iter().map(|key| (garden_data::edit_distance(name, key), *key));
    scored.min().filter(|(distance, key)| *distance * 3 <= key.len()).map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::OptimizerKind;
    use crate::schedule::Shape;

    fn read(text: &str, name: &str) -> Result<TrainOptions, String> {
        let read = TrainOptions::from_text::<NoFrontEnd>(text, Path::new(name));
        read.map(|(options, _)| options).map_err(|error| error.to_string())
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
    fn one_name_and_several_are_both_understood() {
        let list =
            "image-root: [photos, scans]\ntarget-modules: [q_proj, v_proj]\nreport-to: [tensorboard]\n";
        let options = read(list, "run.yaml").unwrap();
        assert_eq!(options.image_root, Some(vec!["photos".into(), "scans".into()]));
        assert_eq!(options.target_modules.as_deref(), Some("q_proj,v_proj"));
        let one = "image-root: photos\ntarget-modules: all-linear\nreport-to: tensorboard\n";
        let one = read(one, "run.yaml").unwrap();
        assert_eq!(one.image_root, Some(vec!["photos".into()]));
        assert_eq!(one.report_to, options.report_to);
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
        let error = read("lora-r = \"many\"", "run.toml").unwrap_err();
        let expected = "run.toml: key 'lora-r': a whole number that is not negative is needed, not \"many\"";
        assert_eq!(error, expected);
        let error = read("optim = \"magic\"", "run.toml").unwrap_err();
        let known = OptimizerKind::ALL.iter().map(|kind| serde_json::to_value(kind).unwrap());
        let known: Vec<_> = known.map(|name| name.as_str().unwrap().to_owned()).collect();
        let expected = format!("key 'optim': 'magic' is not known; it can be {}", known.join(", "));
        assert!(error.contains(&expected), "{error}");
        assert!(read("use_rslora: maybe", "run.yaml").unwrap_err().contains("true or false is needed, not"));
        // A text may stand for a list: what is wrong is then a word in it.
        let error = read("report_to: wandb", "run.yaml").unwrap_err();
        assert!(error.contains("key 'report_to': 'wandb' is not known; it can be "), "{error}");
        assert!(read("batch_size: 2.5", "run.yaml").unwrap_err().contains("not negative is needed, not 2.5"));
        assert!(read("seed: 99999999999999999999", "run.yaml").unwrap_err().contains("too large"));
        assert!(read("memory-limit = \"much\"", "a.toml").unwrap_err().contains("'much' is not a size"));
        assert!(read("a = [", "run.toml").is_err());
        assert!(read("", "run.ini").unwrap_err().contains(".toml, .yaml, .yml or .json"));
    }

    #[test]
    fn what_is_no_number_is_refused_by_its_key() {
        for (text, name) in [
            ("learning-rate = nan", "run.toml"),
            ("learning-rate = -inf", "run.toml"),
            ("learning-rate: .nan", "run.yaml"),
            ("learning-rate: .inf", "run.yaml"),
            ("learning-rate: nan", "run.yaml"),
        ] {
            let error = read(text, name).unwrap_err();
            assert!(error.starts_with(&format!("{name}: key 'learning-rate': ")), "{text}: {error}");
        }
    }

    #[test]
    fn values_may_be_written_as_people_write_them() {
        let split = |text, name| read(text, name).unwrap().eval_split;
        assert_eq!(split("eval_split: 0.05", "run.yaml"), Some("0.05".into()));
        assert_eq!(split("eval-split = 40", "run.toml"), Some("40".into()));
        assert_eq!(split("eval_split: 5%", "run.yaml"), Some("5%".into()));
        let options = "max_bad_rows: 0.02\nlearning_rate: '2e-4'\nepochs: \"3\"\nreport_to: tensorboard\n";
        let options = read(options, "run.yaml").unwrap();
        assert_eq!((options.max_bad_rows, options.learning_rate), (Some("0.02".into()), Some(2e-4)));
        assert_eq!((options.epochs, options.report_to.map(|to| to.len())), (Some(3.0), Some(1)));
        let options = read("dataset_weights: 1, 2\n", "run.yaml").unwrap();
        assert_eq!(options.dataset_weights, Some(vec![1, 2]));
        let options = "allow_remote_images: yes\nload_in_4bit: 'True'\nuse_rslora: off\nbatch_size: 2.0\n";
        let options = read(options, "run.yaml").unwrap();
        assert_eq!((options.allow_remote_images, options.load_in_4bit), (Some(true), Some(true)));
        assert_eq!((options.use_rslora, options.batch_size), (Some(false), Some(2)));
        assert_eq!(read("{\"seed\": 5}", "run.json").unwrap().seed, Some(5));
        assert_eq!(read("seed: 5", "RUN.YML").unwrap().seed, Some(5));
        let keys = read("selective-loss-keys = [\"a\", \"b\"]", "run.toml").unwrap().selective_loss_keys;
        assert_eq!(keys, Some("a,b".into()));
    }

    #[test]
    fn merge_keys_of_yaml_work_and_the_files_own_keys_win() {
        let yaml = "defaults: &defaults\n  seed: 1\n  lora_r: 8\n<<: *defaults\nseed: 2\n";
        let options = read(yaml, "run.yaml").unwrap();
        assert_eq!((options.seed, options.lora_r), (Some(2), Some(8)));
        let error = read("defaults:\n  seed: 1\n", "run.yaml").unwrap_err();
        assert_eq!(error, "run.yaml: unknown key 'defaults'", "nothing is merged from it");
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_by_name() {
        for (text, name) in [
            ("seed: 1\nseed: 2\n", "run.yaml"),
            ("lora-r: 1\nlora_r: 2\n", "run.yaml"),
            ("seed = 1\nseed = 2\n", "run.toml"),
            ("lora_r = 1\nlora-r = 2\n", "run.toml"),
        ] {
            let error = read(text, name).unwrap_err();
            let key = text.split([':', ' ']).next().unwrap();
            assert!(error.contains(key) || error.contains(&key.replace('-', "_")), "{error}");
            assert!(error.contains("duplicate") || error.contains("twice"), "{error}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_key() {
        assert_eq!(read("\u{feff}seed: 2\n", "run.yaml").unwrap().seed, Some(2));
        assert_eq!(read("\u{feff}seed = 2\n", "run.toml").unwrap().seed, Some(2));
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = TrainOptions { seed: Some(1), lora_r: Some(4), ..TrainOptions::default() };
        let flags = TrainOptions { seed: Some(2), ..TrainOptions::default() };
        let options = flags.over(file);
        assert_eq!((options.seed, options.lora_r), (Some(2), Some(4)));
    }
}
