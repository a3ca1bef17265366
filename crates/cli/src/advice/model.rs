//! Advice about the errors of `garden-model`, and about merging.

use super::Advice;
use garden_model::{CheckpointError, ConfigError, LoraError, PlanError, init::InitError};
use garden_train::{MergeError, RunError, SourceError};
use std::error::Error;

/// What the command line adds to an error of `garden-model` or of a merge. An error that only passes on
/// another one hides it from a walk through the causes, so it is looked into here.
pub fn advice(error: &(dyn Error + 'static)) -> Option<Advice> {
    if let Some(error) = error.downcast_ref::<MergeError>() {
        return merge(error);
    }
    if let Some(RunError::Plan(error)) = error.downcast_ref::<RunError>() {
        return advice(error);
    }
    if let Some(PlanError::Lora(error)) = error.downcast_ref::<PlanError>() {
        return lora(error);
    }
    if let Some(error) = error.downcast_ref::<LoraError>() {
        return lora(error);
    }
    if let Some(InitError::Exists(_)) = error.downcast_ref::<InitError>() {
        return Some(Advice::Also("choose another --output".into()));
    }
    if let Some(SourceError::Weights(error)) = error.downcast_ref::<SourceError>() {
        return advice(error);
    }
    if let Some(CheckpointError::Tensors { .. }) = error.downcast_ref::<CheckpointError>() {
        return Some(Advice::Also("`model-garden inspect` lists them all".into()));
    }
    match error.downcast_ref::<ConfigError>() {
        Some(ConfigError::Value { key: "quantization_config.load_in_8bit", .. }) => {
            Some(Advice::Also("--load-in-8bit holds its weights in 8 bits".into()))
        }
        _ => None,
    }
}

/// Settings of an adapter have the names of PEFT in the library.
fn lora(error: &LoraError) -> Option<Advice> {
    match error {
        LoraError::Pattern { .. } | LoraError::Nothing { .. } | LoraError::Unfit { .. } => {
            Some(Advice::Instead(error.to_string().replacen("target_modules", "--target-modules", 1)))
        }
        LoraError::Rank(_) | LoraError::Number { .. } | LoraError::NoGroup => None,
    }
}

fn merge(error: &MergeError) -> Option<Advice> {
    match error {
        // These begin with the folder.
        MergeError::Exists(_) | MergeError::Fixed { .. } | MergeError::Overlap { .. } => {
            Some(Advice::Instead(format!("--output {error}")))
        }
        MergeError::Config(error) => advice(error),
        MergeError::Checkpoint(error) => advice(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_model::{LoraSettings, init::Preset};

    #[test]
    fn a_pattern_is_told_by_its_flag() {
        let lora = LoraSettings {
            rank: 4,
            alpha: 4.0,
            dropout: 0.0,
            rslora: false,
            target_modules: garden_model::target_pattern("nothing"),
        };
        let error = lora.targets(&Preset::Tiny.model_config().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("target_modules `nothing` matches no layer"), "{error}");
        let Some(Advice::Instead(text)) = advice(&RunError::Plan(PlanError::Lora(error))) else { panic!() };
        assert!(text.starts_with("--target-modules `nothing` matches no layer: give names"), "{text}");
    }

    #[test]
    fn a_folder_that_is_taken_is_told_by_its_flag() {
        let taken = MergeError::Exists("out".into());
        let text = "--output out exists already and is not an empty folder: choose another one";
        assert_eq!(advice(&taken), Some(Advice::Instead(text.into())));
        assert_eq!(
            advice(&InitError::Exists("out".into())),
            Some(Advice::Also("choose another --output".into()))
        );
    }
}
