//! What a client asks of a new job, read field by field.
//!
//! Takes the JSON object of a request and gives a [`CreateJob`]. A field whose value is of the wrong kind or
//! out of its bounds is refused by its name, with what it must be. What is no field of OpenAI's is a setting
//! of the trainer, and read in [`settings`](super::settings). A field that is null counts as absent, as in
//! the SDK.

mod form;
mod hyperparameters;

pub(crate) use form::CreateJobForm;

use super::record::JobRecord;
use crate::api::error::ApiError;
use hyperparameters::{Asked, SAME_MEANING};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Metadata of a job: so many pairs ...
const MOST_METADATA: usize = 16;
/// ... of so long keys and values, as OpenAI has it.
const LONGEST_KEY: usize = 64;
const LONGEST_VALUE: usize = 512;

/// Settings that the server chooses, and what a client uses instead.
pub(crate) const NOT_ASKED: [(&str, &str); 12] = [
    ("base_model", "use `model`"),
    ("dataset", "use `training_file`"),
    ("eval_dataset", "use `validation_file`"),
    ("output_dir", "the server chooses it"),
    ("python", "the server's owner chooses it"),
    ("resume", "use the job's `rerun` with `from_checkpoint`"),
    ("adapter", "use a tuned model's name as `model`"),
    ("image_root", "rows carry their images inside"),
    ("memory_limit", "the server sets it from the plan; `memory_budget` bounds the plan"),
    ("add_dataset", "upload one file with all rows"),
    ("allow_remote_images", "put the images into the rows"),
    ("report_to", "the server keeps the numbers; read `curves` or `events`"),
];

/// A request for a fine-tuning job.
#[derive(Debug, Clone, Default)]
pub(crate) struct CreateJob {
    pub model: String,
    pub training_file: String,
    pub validation_file: Option<String>,
    pub suffix: Option<String>,
    pub seed: Option<u64>,
    pub metadata: Option<BTreeMap<String, String>>,
    /// From either place that OpenAI has for them.
    pub hyperparameters: Asked,
    pub priority: Option<i64>,
    pub max_restarts: Option<u32>,
    /// The trainer's settings, in snake case.
    pub settings: Map<String, Value>,
}

impl CreateJob {
    /// Reads the body of a request.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let Value::Object(body) = body else {
            return Err(ApiError::bad_request("the body must be an object"));
        };
        let mut request = Self::default();
        request.apply(body)?;
        for (name, value) in [("model", &request.model), ("training_file", &request.training_file)] {
            if value.is_empty() {
                return Err(wrong(name, format!("{name} is missing")).code("missing_required_parameter"));
            }
        }
        Ok(request)
    }

    /// The request that made a job, with changes. A hyperparameter replaces the setting of the same meaning,
    /// and a setting the hyperparameter.
    pub(crate) fn again(old: &JobRecord, changes: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut request = Self {
            model: old.model.clone(),
            training_file: old.training_file.clone(),
            validation_file: old.validation_file.clone(),
            suffix: old.suffix.clone(),
            seed: (!old.settings.contains_key("seed")).then_some(old.seed),
            metadata: (!old.metadata.is_empty()).then(|| old.metadata.clone()),
            hyperparameters: Asked::of(&old.hyperparameters),
            priority: None,
            max_restarts: Some(old.max_restarts),
            settings: old.settings.clone(),
        };
        let given = Asked::read(changes)?;
        for (name, setting) in SAME_MEANING {
            if given.has(name) {
                request.settings.remove(setting);
            }
            if changes.contains_key(setting) {
                request.hyperparameters.forget(name);
            }
        }
        request.apply(changes)?;
        Ok(request)
    }

    /// Takes fields over; what is null goes back to its default.
    fn apply(&mut self, fields: &Map<String, Value>) -> Result<(), ApiError> {
        self.hyperparameters.take_over(Asked::read(fields)?);
        let mut names = BTreeSet::new();
        for (name, value) in fields {
            if !names.insert(name.replace('-', "_")) {
                return Err(wrong(name, format!("{name} is given twice, with dashes and with underscores")));
            }
            self.set(name, value)?;
        }
        self.check()
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), ApiError> {
        let text = "a text";
        match name {
            "model" => self.model = field(name, value, text)?.unwrap_or_default(),
            "training_file" => self.training_file = field(name, value, text)?.unwrap_or_default(),
            "validation_file" => self.validation_file = field(name, value, text)?,
            "suffix" => self.suffix = field(name, value, text)?,
            "seed" => self.seed = field(name, value, "a whole number from 0 on")?,
            "metadata" => self.metadata = field(name, value, "an object whose values are texts")?,
            "priority" => self.priority = field(name, value, "a whole number from -1000 to 1000")?,
            "max_restarts" => self.max_restarts = field(name, value, "a whole number from 0 to 100")?,
            "integrations" => {
                let given: Option<Vec<Value>> = field(name, value, "a list")?;
                if given.is_some_and(|given| !given.is_empty()) {
                    return Err(wrong(name, "integrations are not supported: leave them out"));
                }
            }
            // Their hyperparameters were read together.
            "hyperparameters" => {}
            "method" if value.is_object() => {}
            _ => self.set_setting(name, value)?,
        }
        Ok(())
    }

    fn set_setting(&mut self, name: &str, value: &Value) -> Result<(), ApiError> {
        // The trainer takes names with dashes too.
        let key = name.replace('-', "_");
        if let Some((_, instead)) = NOT_ASKED.iter().find(|(name, _)| key == *name) {
            return Err(wrong(&key, format!("{key} cannot be set on this server: {instead}")));
        }
        match value {
            Value::Null => drop(self.settings.remove(&key)),
            value => drop(self.settings.insert(key, value.clone())),
        }
        Ok(())
    }

    /// Refuses what is out of its bounds.
    fn check(&self) -> Result<(), ApiError> {
        if let Some(suffix) = &self.suffix {
            let fits = (1..=64).contains(&suffix.chars().count());
            let plain = suffix.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
            if !(fits && plain) {
                return Err(wrong("suffix", "suffix: 1 to 64 letters, digits, '-', '_' and '.'"));
            }
        }
        let metadata = self.metadata.iter().flatten();
        let long = |(key, value): (&String, &String)| {
            key.chars().count() > LONGEST_KEY || value.chars().count() > LONGEST_VALUE
        };
        if metadata.clone().count() > MOST_METADATA || metadata.clone().any(long) {
            let message = "metadata: up to 16 pairs, keys of up to 64 and values of up to 512 characters";
            return Err(wrong("metadata", message));
        }
        if self.priority.is_some_and(|priority| !(-1000..=1000).contains(&priority)) {
            return Err(wrong("priority", "priority: from -1000 to 1000"));
        }
        if self.max_restarts.is_some_and(|restarts| restarts > 100) {
            return Err(wrong("max_restarts", "max_restarts: up to 100"));
        }
        Ok(())
    }
}

fn wrong(param: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(message).param(param)
}

/// A value of a field, unless it is null.
fn field<T: DeserializeOwned>(name: &str, value: &Value, what: &str) -> Result<Option<T>, ApiError> {
    serde_json::from_value(value.clone()).map_err(|_| wrong(name, format!("{name} must be {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::record::OrAuto;
    use serde_json::json;

    fn read(body: Value) -> Result<CreateJob, ApiError> {
        let mut whole = json!({"model": "tiny", "training_file": "file-a"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        CreateJob::read(&whole)
    }

    fn method(hyperparameters: Value) -> Value {
        json!({"type": "supervised", "supervised": {"hyperparameters": hyperparameters}})
    }

    #[test]
    fn hyperparameters_of_both_places_are_joined() {
        let newer = method(json!({"batch_size": 2.0}));
        let body = json!({"hyperparameters": {"n_epochs": 5, "batch_size": 2}, "method": newer});
        let asked = read(body).unwrap().hyperparameters.complete();
        assert_eq!((asked.n_epochs, asked.batch_size), (OrAuto::Number(5), OrAuto::Number(2)));
        assert_eq!(asked.learning_rate_multiplier, OrAuto::AUTO);
        let body = json!({"hyperparameters": {"n_epochs": 5}, "method": method(json!({"n_epochs": "auto"}))});
        let error = read(body).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("n_epochs"));
        assert!(error.message.contains("twice"), "{error:?}");
    }

    #[test]
    fn what_is_wrong_is_refused_by_name_and_in_plain_words() {
        let hyper = |value: Value| json!({"hyperparameters": value});
        for (body, param) in [
            (json!({"seed": -1}), "seed"),
            (json!({"seed": "x"}), "seed"),
            (json!({"model": 3}), "model"),
            (json!({"model": null}), "model"),
            (json!({"training_file": null}), "training_file"),
            (json!({"metadata": {"a": 1}}), "metadata"),
            (json!({"metadata": []}), "metadata"),
            (json!({"metadata": {"k": "v".repeat(513)}}), "metadata"),
            (json!({"priority": "high"}), "priority"),
            (json!({"priority": 1001}), "priority"),
            (json!({"max_restarts": -1}), "max_restarts"),
            (json!({"suffix": "a/b"}), "suffix"),
            (json!({"suffix": 1}), "suffix"),
            (json!({"integrations": [{"type": "wandb"}]}), "integrations"),
            (json!({"method": {"type": "dpo", "dpo": {}}}), "method"),
            (json!({"method": {"type": "full"}}), "method"),
            (json!({"method": 3}), "method"),
            (json!({"method": {"type": "supervised", "dpo": {}}}), "method"),
            (json!({"method": method(json!({"beta": 1}))}), "beta"),
            (hyper(json!([])), "hyperparameters"),
            (hyper(json!({"n_epochs": 1.5})), "n_epochs"),
            (hyper(json!({"n_epochs": "many"})), "n_epochs"),
            (hyper(json!({"n_epochs": 0})), "n_epochs"),
            (hyper(json!({"batch_size": 0})), "batch_size"),
            (hyper(json!({"learning_rate_multiplier": 0})), "learning_rate_multiplier"),
            (json!({"lora_r": 1, "lora-r": 2}), "lora-r"),
            (json!({"output_dir": "/etc"}), "output_dir"),
            (json!({"image-root": ["/"]}), "image_root"),
            (json!({"report-to": "mlflow"}), "report_to"),
            (json!({"base_model": "/etc"}), "base_model"),
            (json!({"allow_remote_images": true}), "allow_remote_images"),
        ] {
            let error = read(body.clone()).unwrap_err();
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{body}: {error:?}"
            );
            assert!(error.message.contains(param) || param == "beta", "{body}: {error:?}");
            assert!(
                !error.message.contains("untagged") && !error.message.contains("invalid type"),
                "{error:?}"
            );
        }
        assert_eq!(CreateJob::read(&json!([])).unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn a_rerun_replaces_what_it_names_and_keeps_the_rest() {
        let made = json!({
            "id": "ftjob-a", "number": 1, "created_at": 1,
            "model": "tiny", "base": "tiny", "training_file": "file-a",
            "hyperparameters": {"batch_size": 4, "learning_rate_multiplier": "auto", "n_epochs": "auto"},
            "seed": 7, "metadata": {"a": "b"}, "max_restarts": 1,
            "settings": {"method": "full", "epochs": 2.0},
        });
        let old: JobRecord = serde_json::from_value(made).unwrap();
        let again = |changes: Value| CreateJob::again(&old, changes.as_object().unwrap());
        let same = again(json!({})).unwrap();
        assert_eq!((same.seed, same.hyperparameters.complete().batch_size), (Some(7), OrAuto::Number(4)));
        let other =
            again(json!({"method": method(json!({"n_epochs": 3})), "batch_size": 8, "metadata": null}))
                .unwrap();
        assert_eq!(other.hyperparameters.complete().n_epochs, OrAuto::Number(3));
        assert_eq!(other.hyperparameters.complete().batch_size, OrAuto::AUTO, "the setting replaces it");
        assert_eq!(Value::Object(other.settings), json!({"method": "full", "batch_size": 8}));
        assert_eq!(other.metadata, None);
        assert_eq!(again(json!({"method": "lora"})).unwrap().settings["method"], "lora");
        assert!(!again(json!({"method": null})).unwrap().settings.contains_key("method"));
        assert_eq!(again(json!({"seed": -1})).unwrap_err().param.as_deref(), Some("seed"));
    }
}
