//! Ctrl-C and SIGTERM as a request: finish the step, write a checkpoint, end.
//!
//! In come signals; out comes a reason to stop at the end of the step, or of a batch that is evaluated. A second signal ends the process at once, as it would have
//! without us.

use crate::trainer::{BoxError, Callback, Control, StepFacts, StopReason, TrainerState};
use signal_hook::{consts::TERM_SIGNALS, flag};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Turns signals into the end of a run.
pub struct Interrupts {
    asked: Arc<AtomicBool>,
}

impl Interrupts {
    /// Listens from now on.
    pub fn listen() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in TERM_SIGNALS {
            // The order matters: at the first signal the flag is still down, so only the second one ends the process.
            flag::register_conditional_default(*signal, asked.clone())?;
            flag::register(*signal, asked.clone())?;
        }
        Ok(Self { asked })
    }

    fn look(&self, control: &mut Control) {
        if self.asked.load(Ordering::Relaxed) && !control.must_end() {
            control.stop = Some(StopReason::Interrupted);
        }
    }
}

impl Callback for Interrupts {
    fn on_step_end(
        &mut self,
        _: &TrainerState,
        _: &StepFacts,
        control: &mut Control,
    ) -> Result<(), BoxError> {
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
    fn a_signal_ends_the_run_after_the_step() {
        let mut interrupts = Interrupts::listen().unwrap();
        let mut after_a_step = || {
            let mut control = Control::default();
            interrupts.on_step_end(&TrainerState::default(), &StepFacts::default(), &mut control).unwrap();
            control.stop
        };
        assert_eq!(after_a_step(), None);
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        assert_eq!(after_a_step(), Some(StopReason::Interrupted));
    }
}
