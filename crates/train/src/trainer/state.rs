//! Where a run stands: the file `trainer_state.json`, as Hugging Face's Trainer writes it.
//!
//! Collects the steps, evaluations and logs of a run for tools that plot a curve or look for the best
//! checkpoint. A resumed run continues from the state in its checkpoint, so the history has neither gaps nor
//! duplicates.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::Path};

/// The state's file name.
pub const TRAINER_STATE: &str = "trainer_state.json";

/// Entries that a history holds at most. Every checkpoint carries the history, so it must not grow with the
/// run; a chart shows no more points.
const MOST_ENTRIES: usize = 4096;

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
        garden_files::write(&dir.join(TRAINER_STATE), text.as_bytes())
    }

    /// Reads the state from a folder.
    pub fn load(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(TRAINER_STATE))?)?)
    }

    /// Adds an entry. Beyond [`MOST_ENTRIES`] some are dropped, so that the others are evenly spread over the
    /// run. The first, the newest, the best evaluation and as many evaluations as there is room for stay.
    pub(super) fn add_to_history(&mut self, entry: LogEntry) {
        self.log_history.push(entry);
        if self.log_history.len() <= MOST_ENTRIES {
            return;
        }
        let is_evaluation = |entry: &LogEntry| entry.values.contains_key("eval_loss");
        let evaluations = self.log_history.iter().filter(|entry| is_evaluation(entry)).count();
        let all_stay = evaluations <= MOST_ENTRIES / 4;
        let (first, last) = (self.log_history[0].step, self.log_history[self.log_history.len() - 1].step);
        // A quarter of the entries each for training and evaluation leaves room for as many again.
        let apart = (last - first).div_ceil(MOST_ENTRIES as u64 / 4).max(1);
        let best = self.best_global_step;
        // The first step at which the next entry of either kind stays.
        let mut next = [first; 2];
        self.log_history.retain(|entry| {
            let evaluation = is_evaluation(entry);
            let next = &mut next[usize::from(evaluation)];
            let stays = entry.step >= *next;
            if stays {
                *next = entry.step + apart;
            }
            stays || entry.step == last || evaluation && (all_stay || Some(entry.step) == best)
        });
    }

    /// The newest value logged under a name.
    pub fn latest(&self, name: &str) -> Option<f64> {
        self.at_step(u64::MAX, name)
    }

    /// The newest value logged under a name up to a step.
    pub fn at_step(&self, step: u64, name: &str) -> Option<f64> {
        let until = self.log_history.iter().rev().filter(|entry| entry.step <= step);
        until.filter_map(|entry| entry.values.get(name).copied()).next()
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

    fn logged(step: u64, name: &str) -> LogEntry {
        LogEntry { epoch: 0.0, step, values: BTreeMap::from([(name.to_owned(), step as f64)]) }
    }

    #[test]
    fn a_long_history_is_thinned_and_keeps_its_ends_and_its_evaluations() {
        let mut state = TrainerState { best_global_step: Some(500), ..TrainerState::default() };
        for step in 1..=100_000 {
            state.add_to_history(logged(step, "loss"));
            if step % 500 == 0 {
                state.add_to_history(logged(step, "eval_loss"));
            }
        }
        assert!(state.log_history.len() <= MOST_ENTRIES, "{}", state.log_history.len());
        assert_eq!(state.series("eval_loss").len(), 200, "every evaluation is there");
        let losses = state.series("loss");
        assert_eq!((losses[0].0, losses.last().unwrap().0), (1.0, 100_000.0));
        assert!(losses.is_sorted_by(|a, b| a.0 < b.0));
        let widest = losses.windows(2).map(|pair| pair[1].0 - pair[0].0).fold(0.0, f64::max);
        assert!(widest <= 400.0, "no part of the run is missing: {widest}");
    }

    #[test]
    fn a_history_of_evaluations_alone_is_bounded_too_and_keeps_the_best() {
        let mut state = TrainerState { best_global_step: Some(3), ..TrainerState::default() };
        (1..=50_000).for_each(|step| state.add_to_history(logged(step, "eval_loss")));
        assert!(state.log_history.len() <= MOST_ENTRIES);
        assert_eq!(state.at_step(3, "eval_loss"), Some(3.0));
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
