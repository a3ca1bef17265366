//! From what a client asks for to the settings of a run.
//!
//! Takes a request, with OpenAI's hyperparameters and the trainer's own settings beside them, and gives
//! [`TrainOptions`] that name the server's folders. A setting that is unknown or given twice is refused by
//! its name; nothing is dropped.

use super::{
    blame,
    record::OrAuto,
    request::{CreateJob, NOT_ASKED},
};
use crate::{api::error::ApiError, models::ModelPlace};
use garden_memory::ByteSize;
use garden_train::{Engine, KeyError, OptionInfo, RunConfig, TrainOptions};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a learning rate multiplier multiplies: the trainer's default.
const LEARNING_RATE: f64 = 2e-4;
/// Settings that mean nothing here, though they do no harm: rows come as one file, with their images inside.
const NOT_OFFERED: [&str; 3] = ["add_dataset", "dataset_weights", "allow_remote_images"];

/// The engines of a server: its owner's choice, never a client's, of the interpreter that is started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Engines {
    /// What computes the steps where a request does not say.
    pub default: Engine,
    /// The interpreter for engines in Python; without it there are none.
    pub python: Option<PathBuf>,
}

/// The settings that a job may have, for forms.
pub(crate) fn offered(engines: &Engines) -> Vec<OptionInfo> {
    let asked = |option: &OptionInfo| {
        !NOT_ASKED.iter().any(|(name, _)| *name == option.key)
            && !NOT_OFFERED.contains(&option.key)
            && (option.key != "engine" || engines.python.is_some())
    };
    let by_default = |option: OptionInfo| match option.key {
        "engine" => OptionInfo { default: Some(engines.default.to_string()), ..option },
        _ => option,
    };
    TrainOptions::describe().into_iter().filter(asked).map(by_default).collect()
}

impl Engines {
    /// Sets the engine of a run and its interpreter. An engine in Python has no exact plan: the job may take
    /// what it asks for, and is stopped there.
    fn choose(&self, options: &mut TrainOptions, budget: u64) -> Result<(), ApiError> {
        let engine = options.engine.unwrap_or(self.default);
        options.engine = Some(engine);
        let asked = options.memory_budget.map(|asked| asked.0.min(budget));
        if !engine.is_python() {
            options.memory_budget = Some(ByteSize(asked.unwrap_or(budget)));
            return Ok(());
        }
        let Some(python) = &self.python else {
            let message = format!("this server does not offer engine {engine}");
            return Err(ApiError::bad_request(message).param("engine"));
        };
        let Some(asked) = asked else {
            let message = format!(
                "memory_budget is needed with engine {engine}, which makes no plan: the job may take so much memory, and is \
                 stopped before it takes more"
            );
            return Err(ApiError::bad_request(message).param("memory_budget"));
        };
        options.python = Some(python.clone());
        options.memory_budget = None;
        options.memory_limit = Some(ByteSize(asked));
        Ok(())
    }
}

/// The files that a job reads.
pub(crate) struct JobFiles {
    pub training: String,
    pub validation: Option<PathBuf>,
}

impl CreateJob {
    /// The settings of the run, for a model and files of this server.
    pub(crate) fn options(
        &self,
        model: &ModelPlace,
        files: &JobFiles,
        output: &Path,
        budget: u64,
        engines: &Engines,
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
        engines.choose(&mut options, budget)?;
        Ok(options)
    }

    fn join_hyperparameters(&self, options: &mut TrainOptions) -> Result<(), ApiError> {
        let asked = self.hyperparameters.complete();
        if let OrAuto::Number(rows) = asked.batch_size {
            once(&mut options.batch_size, rows, "batch_size")?;
        }
        if let OrAuto::Number(epochs) = asked.n_epochs {
            once(&mut options.epochs, epochs as f64, "n_epochs")?;
        }
        if let OrAuto::Number(factor) = asked.learning_rate_multiplier {
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
        let words = blame::with_keys(&error.to_string());
        ApiError::bad_request(words).param(blame::of_config(&error))
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
        for folder in
            ["base_model", "dataset", "portions", "output_dir", "eval_rows", "resume", "report_to", "python"]
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
    use garden_train::ValueKind;
    use serde_json::json;

    fn engines() -> Engines {
        Engines { default: Engine::Native, python: Some("/env/bin/python".into()) }
    }

    fn options(body: Value) -> Result<TrainOptions, ApiError> {
        let place = ModelPlace {
            name: "tiny".into(),
            base_name: "tiny".into(),
            base: "/m/tiny".into(),
            adapter: None,
        };
        let files = JobFiles { training: "/d/rows.jsonl".into(), validation: None };
        let mut whole = json!({"model": "tiny", "training_file": "file-a"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let request = CreateJob::read(&whole)?;
        let options = request.options(&place, &files, Path::new("/out"), 1 << 30, &engines())?;
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

    #[test]
    fn every_choice_that_is_offered_is_taken() {
        let offered = offered(&engines());
        let choices = offered.iter().filter_map(|option| match &option.kind {
            ValueKind::Choice { choices } => Some((option.key, choices)),
            _ => None,
        });
        let mut keys = Vec::new();
        for (key, choices) in choices {
            keys.push(key);
            for choice in choices.iter() {
                let mut body = json!({key: choice, "eval_split": "20%"});
                if key == "engine" {
                    body["memory_budget"] = "100MB".into();
                }
                if *choice == "steps" {
                    body["eval_steps"] = 2.into();
                }
                let found = options(body).map(|options| serde_json::to_value(options).unwrap());
                let found = found.unwrap_or_else(|error| panic!("{key} {choice}: {error:?}"));
                assert_eq!(found[key.replace('_', "-")], *choice);
            }
        }
        assert!(keys.contains(&"method"), "{keys:?}");
    }

    /// A new option that names a place must be looked at before clients may set it.
    #[test]
    fn every_option_that_names_a_file_or_a_folder_is_the_servers() {
        let names_a_place = |key: &&&str| {
            ["dir", "dataset", "root", "adapter", "model", "resume", "path", "file", "python"]
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
    fn an_engine_in_python_takes_the_servers_interpreter_and_the_memory_it_asks_for() {
        let found = options(json!({"engine": "transformers", "memory_budget": "100MB"})).unwrap();
        assert_eq!(found.python, Some("/env/bin/python".into()));
        assert_eq!((found.memory_budget, found.memory_limit), (None, Some(ByteSize(100_000_000))));
        assert_eq!(options(json!({})).unwrap().python, None);
        for body in [json!({"engine": "transformers"}), json!({"engine": "native", "python": "/bin/sh"})] {
            let param = if body.get("python").is_some() { "python" } else { "memory_budget" };
            let error = options(body).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{error:?}");
        }
        let without = Engines::default();
        assert!(offered(&without).iter().all(|option| option.key != "engine"));
        let mut asked = TrainOptions { engine: Some(Engine::Unsloth), ..TrainOptions::default() };
        assert_eq!(without.choose(&mut asked, 1).unwrap_err().param.as_deref(), Some("engine"));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (body, param) in [
            (json!({"learning_rat": 1}), "learning_rat"),
            (json!({"lora_r": "many"}), "lora_r"),
            (json!({"lora_r": 0}), "lora_r"),
            (json!({"eval_strategy": "steps", "eval_split": "20%"}), "eval_strategy"),
            (json!({"epochs": 3, "hyperparameters": {"n_epochs": 1}}), "n_epochs"),
            (json!({"method": "quick"}), "method"),
        ] {
            let error = options(body.clone()).unwrap_err();
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{body}: {error:?}"
            );
            assert!(error.message.contains(param), "{error:?}");
        }
    }
}
