//! From what a client asks for to the settings of a run.
//!
//! Takes the body of a request, with OpenAI's hyperparameters and the trainer's own settings flat beside them, and
//! gives [`TrainOptions`] that name the server's folders. A setting that is unknown, or that the server must choose
//! itself, is refused by its name; nothing is dropped.

use super::record::{Hyperparameters, OrAuto};
use crate::{api::error::ApiError, models::ModelPlace};
use garden_memory::ByteSize;
use garden_train::{ConfigError, KeyError, RunConfig, TrainOptions};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use utoipa::ToSchema;

/// What a learning rate multiplier multiplies: the trainer's default.
const LEARNING_RATE: f64 = 2e-4;
/// Metadata of a job: so many pairs ...
const MOST_METADATA: usize = 16;
/// ... of so long keys and values, as OpenAI has it.
const LONGEST_KEY: usize = 64;
const LONGEST_VALUE: usize = 512;

/// Settings that the server chooses, and what a client uses instead.
pub(crate) const NOT_ASKED: [(&str, &str); 11] = [
    ("base_model", "use `model`"),
    ("dataset", "use `training_file`"),
    ("eval_dataset", "use `validation_file`"),
    ("output_dir", "the server chooses it"),
    ("resume", "use the job's `rerun` with `from_checkpoint`"),
    ("adapter", "use a tuned model's name as `model`"),
    ("image_root", "rows carry their images inside"),
    ("memory_limit", "the server sets it from the plan; `memory_budget` bounds the plan"),
    ("add_dataset", "upload one file with all rows"),
    ("allow_remote_images", "put the images into the rows"),
    ("report_to", "the server keeps the numbers; read `curves` or `events`"),
];

/// A request for a fine-tuning job.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct CreateJob {
    /// The model by its name in `/v1/models`, or a hub id.
    #[schema(min_length = 1, max_length = 256)]
    pub model: String,
    /// The id of an uploaded file with the rows to train on.
    #[schema(min_length = 1, max_length = 256)]
    pub training_file: String,
    /// The id of an uploaded file with the rows to evaluate on.
    pub validation_file: Option<String>,
    /// A word in the tuned model's name.
    #[schema(max_length = 64)]
    pub suffix: Option<String>,
    pub seed: Option<u64>,
    /// Up to 16 pairs.
    pub metadata: Option<BTreeMap<String, String>>,
    pub method: Option<MethodRequest>,
    /// Deprecated by OpenAI: use `method.supervised.hyperparameters`.
    pub hyperparameters: Option<HyperparametersRequest>,
    /// None are known: null or empty.
    #[schema(value_type = Option<Vec<Object>>)]
    pub integrations: Option<Vec<Value>>,
    /// Jobs with a higher priority go first.
    #[schema(minimum = -1000, maximum = 1000)]
    pub priority: Option<i64>,
    /// How often the job is started again from its checkpoint after it was killed or stopped at its memory limit.
    #[schema(maximum = 100)]
    pub max_restarts: Option<u32>,
    /// The trainer's settings, in snake case: `learning_rate`, `lora_r`, `eval_split` ...
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub settings: Map<String, Value>,
}

/// How a model is tuned.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MethodRequest {
    /// `supervised` is the only one: any other is refused while it is read.
    #[serde(rename = "type")]
    _kind: MethodKind,
    pub supervised: Option<Supervised>,
}

impl MethodRequest {
    /// Supervised tuning with these hyperparameters.
    pub(crate) fn supervised(asked: &Hyperparameters) -> Self {
        let hyperparameters = HyperparametersRequest {
            batch_size: Some(asked.batch_size),
            learning_rate_multiplier: Some(asked.learning_rate_multiplier),
            n_epochs: Some(asked.n_epochs),
        };
        let supervised = Supervised { hyperparameters: Some(hyperparameters) };
        Self { _kind: MethodKind::Supervised, supervised: Some(supervised) }
    }
}

/// The methods that are known.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MethodKind {
    Supervised,
}

/// Supervised tuning.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Supervised {
    pub hyperparameters: Option<HyperparametersRequest>,
}

/// OpenAI's hyperparameters: numbers or `"auto"`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HyperparametersRequest {
    pub batch_size: Option<OrAuto<u64>>,
    pub learning_rate_multiplier: Option<OrAuto<f64>>,
    pub n_epochs: Option<OrAuto<u64>>,
}

/// The files that a job reads.
pub(crate) struct JobFiles {
    pub training: String,
    pub validation: Option<PathBuf>,
}

impl CreateJob {
    /// The hyperparameters that were asked for, from either place.
    pub(crate) fn hyperparameters(&self) -> Hyperparameters {
        let of_method = self.method.as_ref().and_then(|method| method.supervised.as_ref());
        let asked = of_method.and_then(|supervised| supervised.hyperparameters.as_ref());
        let asked = asked.or(self.hyperparameters.as_ref()).cloned().unwrap_or_default();
        Hyperparameters {
            batch_size: asked.batch_size.unwrap_or(OrAuto::AUTO),
            learning_rate_multiplier: asked.learning_rate_multiplier.unwrap_or(OrAuto::AUTO),
            n_epochs: asked.n_epochs.unwrap_or(OrAuto::AUTO),
        }
    }

    /// Refuses what is out of its bounds.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let bad = |param: &str, message: String| Err(ApiError::bad_request(message).param(param));
        if let Some(suffix) = &self.suffix {
            let fits = (1..=64).contains(&suffix.chars().count());
            let plain = suffix.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
            if !(fits && plain) {
                return bad("suffix", "suffix: 1 to 64 letters, digits, '-', '_' and '.'".into());
            }
        }
        let metadata = self.metadata.iter().flatten();
        let long = |(key, value): (&String, &String)| {
            key.chars().count() > LONGEST_KEY || value.chars().count() > LONGEST_VALUE
        };
        if metadata.clone().count() > MOST_METADATA || metadata.clone().any(long) {
            let message = "metadata: up to 16 pairs, keys of up to 64 and values of up to 512 characters";
            return bad("metadata", message.into());
        }
        if self.integrations.as_ref().is_some_and(|list| !list.is_empty()) {
            return bad("integrations", "integrations are not supported: leave them out".into());
        }
        if self.priority.is_some_and(|priority| !(-1000..=1000).contains(&priority)) {
            return bad("priority", "priority: from -1000 to 1000".into());
        }
        if self.max_restarts.is_some_and(|restarts| restarts > 100) {
            return bad("max_restarts", "max_restarts: up to 100".into());
        }
        // The trainer takes names with dashes too.
        let plain = |key: &String| key.replace('-', "_");
        match self.settings.keys().map(plain).find_map(|key| NOT_ASKED.iter().find(|(name, _)| key == *name))
        {
            Some((name, instead)) => bad(name, format!("{name} cannot be set on this server: {instead}")),
            None => Ok(()),
        }
    }

    /// The settings of the run, for a model and files of this server.
    pub(crate) fn options(
        &self,
        model: &ModelPlace,
        files: &JobFiles,
        output: &Path,
        budget: u64,
    ) -> Result<TrainOptions, ApiError> {
        let mut options = TrainOptions::from_keys(&self.settings).map_err(|error| of_key(&error))?;
        self.join_hyperparameters(&mut options)?;
        if let Some(seed) = self.seed {
            once(&mut options.seed, seed, "seed")?;
        }
        options.base_model = Some(model.base.to_string_lossy().into_owned());
        options.adapter.clone_from(&model.adapter);
        options.dataset = Some(files.training.clone());
        options.eval_dataset = files.validation.as_ref().map(|path| path.to_string_lossy().into_owned());
        options.output_dir = Some(output.to_owned());
        let asked = options.memory_budget.map_or(budget, |asked| asked.0.min(budget));
        options.memory_budget = Some(ByteSize(asked));
        Ok(options)
    }

    fn join_hyperparameters(&self, options: &mut TrainOptions) -> Result<(), ApiError> {
        let asked = self.hyperparameters();
        if let OrAuto::Number(rows) = asked.batch_size {
            once(&mut options.batch_size, rows, "batch_size")?;
        }
        if let OrAuto::Number(epochs) = asked.n_epochs {
            once(&mut options.epochs, epochs as f64, "n_epochs")?;
        }
        if let OrAuto::Number(factor) = asked.learning_rate_multiplier {
            if !(factor.is_finite() && factor > 0.0) {
                let message = "learning_rate_multiplier: a number above 0, or \"auto\"";
                return Err(ApiError::bad_request(message).param("learning_rate_multiplier"));
            }
            once(&mut options.learning_rate, factor * LEARNING_RATE, "learning_rate_multiplier")?;
        }
        Ok(())
    }
}

/// Sets what nobody has set.
fn once<T>(setting: &mut Option<T>, value: T, name: &str) -> Result<(), ApiError> {
    if setting.is_some() {
        let message = format!("{name} is given twice, as a hyperparameter and as a setting");
        return Err(ApiError::bad_request(message).param(name));
    }
    *setting = Some(value);
    Ok(())
}

/// Checks that a run can be made of these options.
pub(crate) fn resolve(options: TrainOptions) -> Result<RunConfig, ApiError> {
    RunConfig::resolve(options).map_err(|error| {
        let setting = match &error {
            ConfigError::Missing(setting)
            | ConfigError::Value { setting, .. }
            | ConfigError::Count { setting, .. }
            | ConfigError::Conflict(setting, _)
            | ConfigError::AdapterHas { setting, .. }
            | ConfigError::Needs { setting, .. } => setting,
            ConfigError::Adapter(_) => "model",
        };
        ApiError::bad_request(&error).param(setting.replace('-', "_"))
    })
}

fn of_key(error: &KeyError) -> ApiError {
    let (KeyError::Unknown { key, .. } | KeyError::Value { key, .. }) = error;
    ApiError::bad_request(error).param(key.clone())
}

/// The settings that a run of these options has, defaults included, without the server's folders.
pub(crate) fn effective(config: &RunConfig) -> Value {
    let mut value = serde_json::to_value(config).unwrap_or_default();
    if let Some(keys) = value.as_object_mut() {
        for folder in ["base_model", "dataset", "portions", "output_dir", "eval_rows", "resume", "report_to"]
        {
            keys.remove(folder);
        }
        if let Some(lora) = keys.get_mut("lora").and_then(Value::as_object_mut) {
            lora.remove("adapter");
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(body: Value) -> CreateJob {
        let mut whole = json!({"model": "tiny", "training_file": "file-a"});
        whole.as_object_mut().unwrap().append(&mut body.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn options(body: Value) -> Result<TrainOptions, ApiError> {
        let place = ModelPlace {
            name: "tiny".into(),
            base_name: "tiny".into(),
            base: "/m/tiny".into(),
            adapter: None,
        };
        let files = JobFiles { training: "/d/rows.jsonl".into(), validation: None };
        let request = asked(body);
        request.check()?;
        let options = request.options(&place, &files, Path::new("/out"), 1 << 30)?;
        resolve(options.clone()).map(|_| options)
    }

    #[test]
    fn own_settings_and_openais_stand_side_by_side() {
        let found = options(json!({
            "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}},
            "lora_r": 8, "seed": 7, "memory_budget": "100MB"
        }))
        .unwrap();
        assert_eq!((found.epochs, found.lora_r, found.seed), (Some(2.0), Some(8), Some(7)));
        assert_eq!(found.memory_budget, Some(ByteSize(100_000_000)));
        let doubled = options(json!({"hyperparameters": {"learning_rate_multiplier": 2.0}})).unwrap();
        assert_eq!(doubled.learning_rate, Some(4e-4));
        assert_eq!(doubled.memory_budget, Some(ByteSize(1 << 30)), "the server's budget bounds every run");
    }

    /// A new option that names a place must be looked at before clients may set it.
    #[test]
    fn every_option_that_names_a_file_or_a_folder_is_the_servers() {
        let names_a_place = |key: &&&str| {
            ["dir", "dataset", "root", "adapter", "model", "resume", "path", "file"]
                .iter()
                .any(|word| key.split('_').any(|part| part == *word))
        };
        // How often rows count is a number.
        let places = TrainOptions::KEYS.iter().filter(names_a_place).filter(|key| **key != "dataset_weights");
        for key in places {
            assert!(NOT_ASKED.iter().any(|(name, _)| name == key), "{key} may be set by anybody");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (body, param) in [
            (json!({"learning_rat": 1}), "learning_rat"),
            (json!({"lora_r": "many"}), "lora_r"),
            (json!({"lora_r": 0}), "lora_r"),
            (json!({"output_dir": "/etc"}), "output_dir"),
            (json!({"image-root": ["/"]}), "image_root"),
            (json!({"report-to": "mlflow"}), "report_to"),
            (json!({"base_model": "/etc"}), "base_model"),
            (json!({"allow_remote_images": true}), "allow_remote_images"),
            (json!({"epochs": 3, "hyperparameters": {"n_epochs": 1}}), "n_epochs"),
            (json!({"suffix": "a/b"}), "suffix"),
            (json!({"metadata": {"k": "v".repeat(513)}}), "metadata"),
            (json!({"integrations": [{"type": "wandb"}]}), "integrations"),
        ] {
            let error = options(body.clone()).unwrap_err();
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{body}: {error:?}"
            );
        }
    }
}
