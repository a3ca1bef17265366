//! Which field of a request an error of the trainer is about.
//!
//! Takes the errors that planning a run ends with and gives the name of a field as clients know it.

use garden_data::{BadRow, DataError, RowId};
use garden_model::{LoraError, PlanError};
use garden_train::{ConfigError, EvalRows, RunConfig, RunError, TrainOptions};
use std::path::Path;

/// The setting that is wrong.
pub(crate) fn of_config(error: &ConfigError) -> String {
    let setting = match error {
        ConfigError::Missing(setting)
        | ConfigError::Value { setting, .. }
        | ConfigError::Count { setting, .. }
        | ConfigError::Conflict(setting, _)
        | ConfigError::AdapterHas { setting, .. }
        | ConfigError::NotFollowed { setting, .. }
        | ConfigError::Needs { setting, .. } => setting,
        ConfigError::Adapter(_) => "model",
    };
    // Some name the value too: `eval-strategy steps`.
    setting.split(' ').next().unwrap_or_default().replace('-', "_")
}

/// The words of an error with settings as clients write them: `lora_r`, not `lora-r`.
pub(crate) fn with_keys(words: &str) -> String {
    let keys = TrainOptions::KEYS.iter().filter(|key| key.contains('_'));
    keys.fold(words.to_owned(), |words, key| words.replace(&key.replace('_', "-"), key))
}

/// The field behind an error of the rows or the model.
pub(super) fn of_run(error: &RunError, config: &RunConfig) -> &'static str {
    match error {
        RunError::Folder(_)
        | RunError::Weights(_)
        | RunError::Adapter(_)
        | RunError::AdapterLayers { .. }
        | RunError::Processor(_) => "model",
        RunError::Lora(error) => of_lora(error),
        RunError::Plan(error) => of_plan(error),
        RunError::Data(error) => of_data(error, config),
        RunError::NothingLeft { .. }
        | RunError::NothingUsableLeft { .. }
        | RunError::NoUsableEvaluation { .. } => "eval_split",
        RunError::BadRows { first: Some(row), .. } | RunError::TooManyBadRows { first: Some(row), .. } => {
            of_row(&row.row, &row.reason, config)
        }
        RunError::NoUsableRow { dataset, .. } => file(Path::new(dataset), config),
        _ => "training_file",
    }
}

/// The field behind a plan that cannot be made.
pub(super) fn of_plan(error: &PlanError) -> &'static str {
    match error {
        PlanError::Lora(error) => of_lora(error),
        PlanError::Budget { .. } => "memory_budget",
        PlanError::Session(_) => "model",
    }
}

fn of_lora(error: &LoraError) -> &'static str {
    match error {
        LoraError::Rank(_) => "lora_r",
        LoraError::Number { name: "dropout", .. } => "lora_dropout",
        LoraError::Number { .. } => "lora_alpha",
        LoraError::Pattern { .. } | LoraError::Nothing { .. } | LoraError::Unfit { .. } => "target_modules",
        LoraError::NoGroup => "finetune_language_layers",
    }
}

fn of_data(error: &DataError, config: &RunConfig) -> &'static str {
    if let Some((row, reason)) = error.bad_row() {
        return of_row(row, reason, config);
    }
    match error {
        DataError::Split { .. } if config.data.split.is_some() => "split",
        DataError::Split { .. } if matches!(config.eval_rows, EvalRows::Split(_)) => "eval_split",
        DataError::Io { path, .. } | DataError::NoData { path, .. } | DataError::File { path, .. } => {
            file(path, config)
        }
        _ => "training_file",
    }
}

fn of_row(row: &RowId, reason: &BadRow, config: &RunConfig) -> &'static str {
    match reason {
        BadRow::NoColumn { .. } => "columns",
        _ => file(&row.file, config),
    }
}

/// Which of a job's files this is.
fn file(path: &Path, config: &RunConfig) -> &'static str {
    match &config.eval_rows {
        EvalRows::Dataset { name, .. } if path.starts_with(name) && *name != config.dataset => {
            "validation_file"
        }
        _ => "training_file",
    }
}
