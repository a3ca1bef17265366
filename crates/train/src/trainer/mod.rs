//! The training loop, with evaluations, logs and checkpoints on the way.
//!
//! Takes a model, its data, settings and callbacks, and gives how the run ended. What a step does depends
//! only on the seed, the settings and the step's number, so a run that is killed and resumed ends with the
//! same bits as one that was not.

mod callback;
mod end;
mod evaluation;
mod learner;
mod model;
mod native;
mod progress;
mod resume;
mod save;
mod state;
mod step;

pub use callback::{Callback, Control, EarlyStopping, GroupFacts, StepFacts, StopReason};
pub use end::{End, end_of};
pub use learner::{Learner, Move, Moved, NotMoved};
pub use model::{BatchSource, BatchSums, BoxError, NextBatch, TrainableModel};
pub use native::NativeLearner;
pub use state::{LogEntry, TRAINER_STATE, TrainerState};

use crate::{
    checkpoint::{Checkpoint, CheckpointError, CheckpointStore},
    group::{Elsewhere, Group, GroupError},
    optimizer::{AdamSettings, OptimizerKind},
    schedule::Schedule,
};
use garden_data::Position;
use progress::Progress;
use serde::Serialize;
use std::collections::BTreeMap;

/// When something happens that is not done at every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Never.
    #[default]
    Never,
    /// Every so many steps.
    Steps(u64),
    /// At the end of each epoch.
    Epoch,
}

impl When {
    fn is_due(self, step: u64, epoch_ended: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Steps(every) => every > 0 && step.is_multiple_of(every),
            Self::Epoch => epoch_ended,
        }
    }

    fn steps(self) -> u64 {
        if let Self::Steps(every) = self { every } else { 0 }
    }
}

/// How a run is to go.
#[derive(Debug, Clone)]
pub struct TrainerSettings {
    /// Passes over the data; a part is allowed.
    pub epochs: f64,
    /// Ends the run after this many optimizer steps, whatever the epochs say.
    pub max_steps: Option<u64>,
    /// Batches of one optimizer step.
    pub accumulation: u64,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// The optimizer's constants.
    pub adam: AdamSettings,
    /// The largest norm of a step's gradient; zero does not clip.
    pub max_gradient_norm: f64,
    /// Steps between logs.
    pub logging_steps: u64,
    /// When to evaluate.
    pub evaluate: When,
    /// When to write checkpoints besides the last one.
    pub save: When,
    /// Checkpoints kept.
    pub save_limit: Option<usize>,
    /// Seeds dropout.
    pub seed: u64,
    /// Changes when the rows do: a place in one dataset means nothing in another.
    pub data_fingerprint: u64,
}

/// How many optimizer steps a run takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepPlan {
    /// In one epoch.
    pub per_epoch: u64,
    /// In the whole run.
    pub total: u64,
}

/// The rows of a run.
pub struct TrainingData<'a, S> {
    /// To train on.
    pub training: &'a mut S,
    /// To evaluate on.
    pub evaluation: Option<&'a mut S>,
}

impl TrainerSettings {
    /// The steps of a run, as Hugging Face's Trainer counts them for the rows that can be used.
    pub fn steps(&self, usable_rows: u64, batch_size: u64) -> StepPlan {
        let batches = usable_rows.div_ceil(batch_size.max(1));
        let per_epoch = batches.div_ceil(self.accumulation.max(1)).max(1);
        let by_epochs = (self.epochs * per_epoch as f64).ceil() as u64;
        StepPlan { per_epoch, total: self.max_steps.unwrap_or(by_epochs) }
    }

    /// Whether a run of `max_steps` steps that stands here has nothing left to train.
    fn is_done(&self, step: u64, max_steps: u64, position: Position) -> bool {
        let epochs_done = position.epoch as f64 >= self.epochs.ceil();
        // Rows that turn out bad on the way can make an epoch shorter than planned.
        step >= max_steps || self.max_steps.is_none() && epochs_done
    }
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The model, the data or a callback failed.
    #[error("{}{source}", at(*step))]
    Step {
        /// The optimizer step, from 1; 0 before the first.
        step: u64,
        /// What failed.
        source: BoxError,
    },
    /// An evaluation failed: its data, or the model on them.
    #[error("step {step}, in the evaluation: {source}. What was trained is in the last checkpoint")]
    Evaluation {
        /// The optimizer steps taken before it.
        step: u64,
        /// What failed.
        source: BoxError,
    },
    /// A loss or gradient is infinite or not a number.
    #[error(
        "step {step}: the {what} is {value}: training diverged, by its learning rate or by the rows of this step. Every \
         checkpoint written before it is finite"
    )]
    Diverged {
        /// The optimizer step, from 1.
        step: u64,
        /// `loss`, `gradient norm` or `evaluation loss`.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A trained value or a moment of the optimizer is infinite or not a number.
    #[error(
        "step {step}: {tensor} holds values that are not finite: training diverged. No checkpoint was written of it"
    )]
    NotFinite {
        /// The optimizer step, from 1.
        step: u64,
        /// The tensor, or the part of the optimizer's state.
        tensor: String,
    },
    /// An evaluation found nothing to measure.
    #[error(
        "step {step}: the evaluation has no token to judge by: {rows} of its rows could be used. Are its images still \
         there? What was trained is in the last checkpoint"
    )]
    EmptyEvaluation {
        /// The optimizer step, from 1.
        step: u64,
        /// Rows that were evaluated.
        rows: u64,
    },
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The processes that train together have different weights.
    #[error(
        "step {step}: rank {rank} has other weights than rank 0: one of their machines computes otherwise, or wrongly. No \
         checkpoint was written of it"
    )]
    Apart {
        /// The optimizer step.
        step: u64,
        /// The first process that differs.
        rank: usize,
    },
    /// Another process of the run failed.
    #[error(transparent)]
    Elsewhere(#[from] Elsewhere),
    /// The processes of the run lost each other.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// An epoch gave no batch at all.
    #[error("the dataset gave no batch: every row was dropped")]
    NoData,
}

impl TrainError {
    /// The step at which training diverged and what was not finite, if that is what happened.
    pub fn divergence(&self) -> Option<(u64, String)> {
        match self {
            Self::Diverged { step, what, .. } => Some((*step, format!("the {what}"))),
            Self::NotFinite { step, tensor } => Some((*step, tensor.clone())),
            _ => None,
        }
    }
}

/// Where something failed; empty before the first step.
fn at(step: u64) -> String {
    if step == 0 { String::new() } else { format!("step {step}: ") }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The final state.
    pub state: TrainerState,
    /// Why it ended early, if it did.
    pub stopped: Option<StopReason>,
    /// The last checkpoint.
    pub checkpoint: Checkpoint,
}

/// A run in progress.
pub struct Trainer<'a, 'c, L: Learner, S> {
    learner: &'a mut L,
    data: &'a mut S,
    evaluation: Option<&'a mut S>,
    settings: TrainerSettings,
    schedule: Schedule,
    callbacks: Vec<&'c mut (dyn Callback + 'c)>,
    checkpoints: CheckpointStore,
    state: TrainerState,
    progress: Progress,
    evaluated_at: Option<u64>,
    /// The checkpoint that holds exactly this state.
    saved: Option<Checkpoint>,
    /// Small files that every checkpoint holds besides the trainer's own.
    carried: Vec<(&'static str, Vec<u8>)>,
    group: Group,
}

impl<'a, 'c, L: Learner, S: BatchSource<Batch = L::Batch>> Trainer<'a, 'c, L, S> {
    /// Prepares a run. The schedule must cover the steps that [`TrainerSettings::steps`] gives.
    pub fn new(
        learner: &'a mut L,
        data: TrainingData<'a, S>,
        settings: TrainerSettings,
        schedule: Schedule,
        checkpoints: CheckpointStore,
        callbacks: Vec<&'c mut (dyn Callback + 'c)>,
    ) -> Self {
        let TrainingData { training: data, evaluation } = data;
        let steps = settings.steps(data.usable_rows(), data.batch_size());
        let state = TrainerState {
            max_steps: steps.total,
            num_train_epochs: steps.total.div_ceil(steps.per_epoch),
            logging_steps: settings.logging_steps,
            eval_steps: settings.evaluate.steps(),
            save_steps: settings.save.steps(),
            train_batch_size: data.batch_size(),
            is_local_process_zero: true,
            is_world_process_zero: true,
            ..TrainerState::default()
        };
        Self {
            learner,
            data,
            evaluation,
            settings,
            schedule,
            callbacks,
            checkpoints,
            state,
            progress: Progress::default(),
            evaluated_at: None,
            saved: None,
            carried: Vec::new(),
            group: Group::alone(),
        }
    }

    /// Trains together with other processes, which do the same. The first one writes the checkpoints.
    pub fn together(self, group: &Group) -> Self {
        Self { group: group.clone(), ..self }
    }

    /// Puts a small file into every checkpoint that this run writes.
    pub fn carry(&mut self, name: &'static str, contents: Vec<u8>) {
        self.carried.push((name, contents));
    }

    /// Trains to the end, or until a callback stops the run.
    pub fn run(mut self) -> Result<Outcome, TrainError> {
        let mut control = Control::default();
        let prepared = self.tell(|callback, state| callback.prepare(state));
        self.group.all_well(prepared)?;
        self.tell(|callback, state| callback.on_start(state, &mut control))?;
        self.agree(&mut control)?;
        if self.lacks_evaluation() {
            self.evaluate(&mut control)?;
            if std::mem::take(&mut control.save) {
                self.save()?;
            }
        }
        let mut seek = true;
        while control.stop.is_none() && !self.is_done() {
            if std::mem::take(&mut seek) {
                self.seek()?;
            }
            self.tell(|callback, state| callback.on_step_begin(state))?;
            let step = self.step()?;
            seek = step.is_none_or(|(_, epoch_ended)| epoch_ended);
            if let Some((facts, _)) = &step {
                self.after_step(facts, &mut control)?;
            }
            if seek {
                self.after_epoch(&mut control)?;
            }
            // Dropped rows can end an epoch after its last step: then only the end of the epoch is new.
            let due = match step {
                Some(_) => self.settings.save.is_due(self.state.global_step, seek),
                None => self.settings.save == When::Epoch,
            };
            // The last checkpoint is written when it can hold the last evaluation and log.
            let ends = control.stop.is_some() || self.is_done();
            let asked = std::mem::take(&mut control.save);
            if (due || asked) && !ends {
                self.save()?;
            }
        }
        self.finish(control)
    }

    fn is_done(&self) -> bool {
        self.settings.is_done(self.state.global_step, self.state.max_steps, self.progress.position)
    }

    /// The last evaluation, log and checkpoint. An interrupted run leaves them to the run that resumes it.
    fn finish(mut self, mut control: Control) -> Result<Outcome, TrainError> {
        if matches!(control.stop, None | Some(StopReason::EarlyStopping)) {
            self.log_training()?;
            let ended = control.stop.take();
            if self.settings.evaluate != When::Never && self.evaluated_at != Some(self.state.global_step) {
                self.evaluate(&mut control)?;
            }
            if !control.must_end() {
                control.stop = ended;
            }
        }
        let checkpoint = match self.saved.take() {
            Some(checkpoint) => checkpoint,
            None => self.save()?,
        };
        let stopped = control.stop;
        self.tell(|callback, state| callback.on_end(state, stopped.as_ref()))?;
        Ok(Outcome { state: self.state, stopped, checkpoint })
    }

    fn after_step(&mut self, facts: &StepFacts, control: &mut Control) -> Result<(), TrainError> {
        self.saved = None;
        self.state.global_step += 1;
        self.state.num_input_tokens_seen += facts.sums.tokens;
        let Position { epoch, row } = self.progress.position;
        self.state.epoch = epoch as f64 + row as f64 / self.data.rows().max(1) as f64;
        self.progress.add(facts);
        self.tell(|callback, state| callback.on_step_end(state, facts, control))?;
        self.agree(control)?;
        let step = self.state.global_step;
        if self.settings.logging_steps > 0 && step.is_multiple_of(self.settings.logging_steps) {
            self.log_training()?;
        }
        if self.settings.evaluate.is_due(step, false) { self.evaluate(control) } else { Ok(()) }
    }

    fn after_epoch(&mut self, control: &mut Control) -> Result<(), TrainError> {
        self.state.epoch = self.progress.position.epoch as f64;
        self.saved = None;
        if self.settings.evaluate == When::Epoch { self.evaluate(control) } else { Ok(()) }
    }

    fn seek(&mut self) -> Result<(), TrainError> {
        let step = self.state.global_step + 1;
        self.data.seek(self.progress.position).map_err(|source| TrainError::Step { step, source })
    }

    fn log_training(&mut self) -> Result<(), TrainError> {
        let Some(values) = self.progress.take_log() else { return Ok(()) };
        self.log(values)
    }

    fn log(&mut self, values: BTreeMap<String, f64>) -> Result<(), TrainError> {
        let mut entry = LogEntry { epoch: self.state.epoch, step: self.state.global_step, values };
        self.tell(|callback, state| callback.on_log(state, &mut entry))?;
        self.state.add_to_history(entry);
        self.saved = None;
        Ok(())
    }

    fn tell(
        &mut self,
        mut event: impl FnMut(&mut dyn Callback, &TrainerState) -> Result<(), BoxError>,
    ) -> Result<(), TrainError> {
        let step = self.state.global_step;
        for callback in &mut self.callbacks {
            event(*callback, &self.state).map_err(|source| TrainError::Step { step, source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
