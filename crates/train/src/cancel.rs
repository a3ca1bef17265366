//! A request to end a run.
//!
//! Whoever holds a [`Cancel`] can ask a run to end from any thread. The run finishes its step, or the batch
//! it evaluates, writes a checkpoint and returns.

use crate::trainer::{BoxError, Callback, Control, StepFacts, StopReason, TrainerState};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Asks a run to end after a checkpoint; clones ask the same run.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    asked: Arc<AtomicBool>,
}

impl Cancel {
    /// Asks the run to end.
    pub fn cancel(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether the run was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The flag itself, for a signal handler: a handler may do little more than set one.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }

    fn look(&self, control: &mut Control) {
        if self.is_cancelled() && !control.must_end() {
            control.stop = Some(StopReason::Cancelled);
        }
    }
}

impl Callback for Cancel {
    fn on_step_end(
        &mut self,
        _: &TrainerState,
        _: &StepFacts,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        self.look(control);
        Ok(())
    }

    fn on_evaluate(&mut self, _: &TrainerState, _: bool, control: &mut Control) -> Result<(), BoxError> {
        self.look(control);
        Ok(())
    }

    fn on_evaluation_batch(&mut self, control: &mut Control) -> Result<(), BoxError> {
        self.look(control);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_ends_the_run_after_the_step_unless_a_limit_already_does() {
        let mut cancel = Cancel::default();
        let asked = cancel.clone();
        let mut after_a_step = |mut control: Control| {
            cancel.on_step_end(&TrainerState::default(), &StepFacts::default(), &mut control).unwrap();
            control.stop
        };
        assert_eq!(after_a_step(Control::default()), None);
        asked.cancel();
        assert_eq!(after_a_step(Control::default()), Some(StopReason::Cancelled));
        let limit = Some(StopReason::MemoryLimit("near".into()));
        assert_eq!(after_a_step(Control { stop: limit.clone(), save: false }), limit);
    }
}
