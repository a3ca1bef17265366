//! The trainer's callbacks as events.
//!
//! Takes what the trainer tells its callbacks and announces it. It comes last among the callbacks, so a log
//! entry is complete when it is announced.

use super::Announcer;
use crate::{
    event::{CheckpointPlace, Evaluation, Event, Log, Note, Started, Step},
    trainer::{BoxError, Callback, Control, LogEntry, StepFacts, TrainerState},
};
use std::path::{Path, PathBuf};

/// What is known about the steps of a run before the first one.
pub(crate) struct StepsOfRun {
    pub steps_per_epoch: u64,
    pub batch_size: u64,
    pub accumulation: u64,
}

/// Announces what the trainer does.
pub(crate) struct Teller<'a, 'o> {
    announcer: &'a Announcer<'o>,
    /// Where the events are written as well.
    folder: Option<PathBuf>,
    steps: StepsOfRun,
}

impl<'a, 'o> Teller<'a, 'o> {
    pub fn new(announcer: &'a Announcer<'o>, folder: Option<&Path>, steps: StepsOfRun) -> Self {
        Self { announcer, folder: folder.map(Path::to_owned), steps }
    }
}

impl Callback for Teller<'_, '_> {
    fn on_start(&mut self, state: &TrainerState, _: &mut Control) -> Result<(), BoxError> {
        if let Some(folder) = &self.folder {
            self.announcer.begin_file(folder);
        }
        let StepsOfRun { steps_per_epoch, batch_size, accumulation } = self.steps;
        let (step, max_steps) = (state.global_step, state.max_steps);
        let started = Started { step, max_steps, steps_per_epoch, batch_size, accumulation };
        self.announcer.tell(Event::Started(started));
        Ok(())
    }

    fn on_step_end(
        &mut self,
        state: &TrainerState,
        step: &StepFacts,
        _: &mut Control,
    ) -> Result<(), BoxError> {
        self.announcer.tell(Event::Step(Step {
            step: state.global_step,
            max_steps: state.max_steps,
            epoch: state.epoch,
            loss: step.sums.mean_loss(),
            grad_norm: step.gradient_norm,
            learning_rate: step.learning_rate,
            rows: step.sums.rows,
            tokens: step.sums.tokens,
            label_tokens: step.sums.label_tokens,
            images: step.sums.images,
            seconds: step.seconds,
            data_seconds: step.data_seconds,
        }));
        Ok(())
    }

    fn on_log(&mut self, state: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        // An evaluation is an event of its own.
        if !entry.values.contains_key("eval_loss") {
            let LogEntry { epoch, step, values } = entry.clone();
            self.announcer.tell(Event::Log(Log { step, max_steps: state.max_steps, epoch, values }));
        }
        Ok(())
    }

    fn on_evaluate(&mut self, state: &TrainerState, improved: bool, _: &mut Control) -> Result<(), BoxError> {
        let value = |name: &str| state.latest(name).unwrap_or_default();
        self.announcer.tell(Event::Evaluation(Evaluation {
            step: state.global_step,
            max_steps: state.max_steps,
            epoch: state.epoch,
            loss: value("eval_loss"),
            token_accuracy: value("eval_token_accuracy"),
            seconds: value("eval_runtime"),
            rows_per_second: value("eval_samples_per_second"),
            improved,
        }));
        Ok(())
    }

    fn on_save(&mut self, state: &TrainerState, checkpoint: &Path) -> Result<(), BoxError> {
        let place = CheckpointPlace { step: state.global_step, path: checkpoint.to_owned() };
        self.announcer.tell(Event::Checkpoint(place));
        Ok(())
    }

    fn on_note(&mut self, note: &Note) -> Result<(), BoxError> {
        self.announcer.tell(Event::Note(note.clone()));
        Ok(())
    }
}
