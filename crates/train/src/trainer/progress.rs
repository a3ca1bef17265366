//! Where a run stands between two steps, besides the model, the optimizer and the history.
//!
//! A checkpoint carries it as `progress.json`, so that a resumed run goes on at the next row and logs the
//! same numbers.

use super::{GroupFacts, StepFacts};
use garden_data::Position;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Its file in a checkpoint.
pub(super) const PROGRESS: &str = "progress.json";

/// What a run must remember besides the model, the optimizer and the history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The next row to use.
    pub position: Position,
    /// Seeds dropout; a resumed run must have the same.
    pub seed: u64,
    /// The rows that `position` is a place in.
    pub data_fingerprint: u64,
    /// The optimizer's own count.
    pub optimizer_step: u64,
    /// Step losses since the last log.
    loss_since_log: f64,
    steps_since_log: u64,
    #[serde(skip)]
    seconds_since_log: f64,
    #[serde(skip)]
    tokens_since_log: u64,
    #[serde(skip)]
    images_since_log: u64,
    #[serde(skip)]
    waits: Waits,
    gradient_norm: f64,
    learning_rate: f64,
    /// The most label tokens of an evaluation: one on fewer of them cannot be the best.
    #[serde(default)]
    pub evaluated_tokens: Option<u64>,
}

/// How several processes waited for each other since the last log.
#[derive(Debug, Clone, Default, PartialEq)]
struct Waits {
    seconds: f64,
    /// In how many steps each process was the slowest.
    slowest: BTreeMap<usize, u64>,
}

impl Waits {
    fn add(&mut self, facts: &GroupFacts) {
        self.seconds += facts.waited_seconds;
        *self.slowest.entry(facts.slowest).or_default() += 1;
    }

    /// The seconds of a step, and the process that was the slowest most often; nothing where there is one process.
    fn values(&self) -> Option<[(String, f64); 2]> {
        let steps: u64 = self.slowest.values().sum();
        let (slowest, _) = self.slowest.iter().max_by_key(|(_, steps)| **steps)?;
        let wait = self.seconds / steps as f64;
        Some([("group_wait_seconds".to_owned(), wait), ("group_slowest_rank".to_owned(), *slowest as f64)])
    }
}

impl Progress {
    pub(super) fn add(&mut self, facts: &StepFacts) {
        self.loss_since_log += facts.sums.mean_loss();
        self.steps_since_log += 1;
        self.seconds_since_log += facts.seconds;
        self.tokens_since_log += facts.sums.tokens;
        self.images_since_log += facts.sums.images;
        facts.group.iter().for_each(|group| self.waits.add(group));
        self.gradient_norm = facts.gradient_norm;
        self.learning_rate = facts.learning_rate;
    }

    /// The numbers of a log entry over the steps since the last one.
    pub(super) fn take_log(&mut self) -> Option<BTreeMap<String, f64>> {
        if self.steps_since_log == 0 {
            return None;
        }
        let seconds = self.seconds_since_log.max(1e-9);
        let mut values = BTreeMap::from([
            ("loss".to_owned(), self.loss_since_log / self.steps_since_log as f64),
            ("grad_norm".to_owned(), self.gradient_norm),
            ("learning_rate".to_owned(), self.learning_rate),
            ("tokens_per_second".to_owned(), self.tokens_since_log as f64 / seconds),
            ("images_per_second".to_owned(), self.images_since_log as f64 / seconds),
        ]);
        values.extend(self.waits.values().into_iter().flatten());
        let kept =
            Self { position: self.position, evaluated_tokens: self.evaluated_tokens, ..Self::default() };
        *self = kept;
        Some(values)
    }
}
