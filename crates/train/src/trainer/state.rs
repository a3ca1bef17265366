//! Where a run stands: the file `trainer_state.json`, as Hugging Face's Trainer writes it.
//!
//! In come the steps, evaluations and logs of a run; out comes what other tools read to plot a curve or find the best
//! checkpoint. A resumed run continues from the state in its checkpoint, so the history has neither gaps nor doubles.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::Path};

/// The state's file name.
pub const TRAINER_STATE: &str = "trainer_state.json";

/// One line of the history: the numbers logged at a step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LogEntry {
    /// Epochs done, with the part of the current one.
    pub epoch: f64,
    /// Optimizer steps done.
    pub step: u64,
    /// The numbers by name.
    #[serde(flatten)]
    pub values: BTreeMap<String, f64>,
}

/// Everything that `trainer_state.json` holds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainerState {
    /// Step with the best evaluation.
    pub best_global_step: Option<u64>,
    /// Loss of the best evaluation.
    pub best_metric: Option<f64>,
    /// Checkpoint of the best evaluation.
    pub best_model_checkpoint: Option<String>,
    /// Epochs done, with the part of the current one.
    pub epoch: f64,
    /// Steps between evaluations.
    pub eval_steps: u64,
    /// Optimizer steps done.
    pub global_step: u64,
    /// Part of Hugging Face's format; never a search here.
    pub is_hyper_param_search: bool,
    /// Part of Hugging Face's format; there is one process.
    pub is_local_process_zero: bool,
    /// Part of Hugging Face's format; there is one process.
    pub is_world_process_zero: bool,
    /// Everything logged so far.
    pub log_history: Vec<LogEntry>,
    /// Steps between logs.
    pub logging_steps: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Tokens that went through the model.
    pub num_input_tokens_seen: u64,
    /// Epochs of the whole run, rounded up.
    pub num_train_epochs: u64,
    /// Steps between checkpoints.
    pub save_steps: u64,
    /// What the callbacks keep: patience spent, statistics.
    pub stateful_callbacks: BTreeMap<String, serde_json::Value>,
    /// Floating-point operations, where they are counted.
    pub total_flos: f64,
    /// Rows of one forward pass.
    pub train_batch_size: u64,
    /// Part of Hugging Face's format; never a search here.
    pub trial_name: Option<String>,
    /// Part of Hugging Face's format; never a search here.
    pub trial_params: Option<BTreeMap<String, f64>>,
}

impl TrainerState {
    /// Writes the state into a folder.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        garden_model::files::write_whole(&dir.join(TRAINER_STATE), text.as_bytes())
    }

    /// Reads the state from a folder.
    pub fn load(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(TRAINER_STATE))?)?)
    }

    /// The newest value logged under a name.
    pub fn latest(&self, name: &str) -> Option<f64> {
        self.log_history.iter().rev().find_map(|entry| entry.values.get(name).copied())
    }

    /// Steps and values of a name over the run.
    pub fn series(&self, name: &str) -> Vec<(f64, f64)> {
        let point = |entry: &LogEntry| entry.values.get(name).map(|value| (entry.step as f64, *value));
        self.log_history.iter().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by transformers' `TrainerState.save_to_json`; see goldens/make.py.
    #[test]
    fn the_file_has_the_fields_of_transformers() {
        let theirs: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/goldens/trainer_state.json")).unwrap();
        let read: TrainerState = serde_json::from_value(theirs.clone()).unwrap();
        assert_eq!(read.log_history[0].values["loss"], 2.5);
        assert_eq!(read.log_history[1].values["eval_loss"], 2.25);
        assert_eq!(serde_json::to_value(&read).unwrap(), theirs, "nothing missing, nothing added");
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let values = BTreeMap::from([("loss".to_owned(), 0.1 + 0.2)]);
        let entry = LogEntry { epoch: 1.0 / 3.0, step: 7, values };
        let state = TrainerState { global_step: 7, log_history: vec![entry], ..TrainerState::default() };
        state.save(dir.path()).unwrap();
        assert_eq!(TrainerState::load(dir.path()).unwrap(), state);
        assert_eq!(state.series("loss"), [(7.0, 0.1 + 0.2)]);
    }
}
