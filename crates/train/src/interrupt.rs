//! Ctrl-C, SIGTERM and a closed terminal as a request: finish the step, write a checkpoint, end.
//!
//! Turns the first signal into a reason to stop at the end of the step, or of a batch that is evaluated. A second Ctrl-C or
//! SIGTERM ends the process at once, by that signal, as it would have without us; before that it says which checkpoint is
//! the last. A hangup never counts as the second: a terminal that is closed sends several, by its shell and by the kernel.
//! Where hangups were ignored when the program started (`nohup`), they stay ignored.

use crate::{
    screen::Screen,
    trainer::{BoxError, Callback, Control, StepFacts, StopReason, TrainerState},
};
use garden_memory::heeded;
use signal_hook::{
    SigId,
    consts::{SIGHUP, TERM_SIGNALS},
    flag,
    iterator::{Handle, Signals},
    low_level::{emulate_default_handler, unregister},
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Signals that nobody listens to any more end the process, as they do by default. A library cannot give them back to the
/// system, so it does what the system would.
static BACK_TO_DEFAULT: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// Turns signals into the end of a run, for as long as it lives.
pub struct Interrupts {
    asked: Arc<AtomicBool>,
    last_checkpoint: Arc<Mutex<Option<PathBuf>>>,
    heard: Vec<i32>,
    registered: Vec<SigId>,
    watcher: Handle,
}

impl Interrupts {
    /// Listens from now on; the run goes on from `checkpoint`, if from any.
    pub fn listen(screen: &Screen, checkpoint: Option<&Path>) -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let last_checkpoint = Arc::new(Mutex::new(checkpoint.map(Path::to_owned)));
        let heard: Vec<i32> = TERM_SIGNALS.iter().copied().chain(heeded([SIGHUP])).collect();
        let registered = heard.iter().map(|signal| flag::register(*signal, asked.clone()));
        let registered = registered.collect::<io::Result<_>>()?;
        let mut signals = Signals::new(TERM_SIGNALS)?;
        let watcher = signals.handle();
        let (screen, last) = (screen.clone(), last_checkpoint.clone());
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever().skip(1) {
                screen.note(&at_once(whole(&last).as_deref()));
                let _ = emulate_default_handler(signal);
            }
        })?;
        stop_heeding(&mut whole(&BACK_TO_DEFAULT));
        Ok(Self { asked, last_checkpoint, heard, registered, watcher })
    }

    fn look(&self, control: &mut Control) {
        if self.asked.load(Ordering::Relaxed) && !control.must_end() {
            control.stop = Some(StopReason::Interrupted);
        }
    }
}

/// What is said when a second signal ends the process.
fn at_once(last: Option<&Path>) -> String {
    let begin = "interrupted a second time: ended at once, without a checkpoint of this moment;";
    match last {
        Some(path) => format!("{begin} the last is {}, the same command goes on from there", path.display()),
        None => format!("{begin} there is none, the same command begins anew"),
    }
}

fn stop_heeding(registered: &mut Vec<SigId>) {
    for id in registered.drain(..) {
        unregister(id);
    }
}

fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        let always = Arc::new(AtomicBool::new(true));
        let default = |signal: &i32| flag::register_conditional_default(*signal, always.clone()).ok();
        whole(&BACK_TO_DEFAULT).extend(self.heard.iter().filter_map(default));
        stop_heeding(&mut self.registered);
        self.watcher.close();
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

    fn on_save(&mut self, _: &TrainerState, checkpoint: &Path) -> Result<(), BoxError> {
        *whole(&self.last_checkpoint) = Some(checkpoint.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;

    /// Set in a process that is to be interrupted twice.
    const CHILD: &str = "GARDEN_TEST_INTERRUPTED_TWICE";
    const LAST: &str = "out/checkpoint-7";

    /// What the child does: it is interrupted, goes on as if in a long step, is interrupted again, and never comes to its end.
    fn be_interrupted_twice() {
        let mut interrupts = Interrupts::listen(&Screen::new(LogFormat::Text, false), None).unwrap();
        interrupts.on_save(&TrainerState::default(), Path::new(LAST)).unwrap();
        let interrupt = || signal_hook::low_level::raise(signal_hook::consts::SIGINT).unwrap();
        interrupt();
        // The two must not arrive as one: the first is seen when the next one is.
        loop {
            interrupt();
            thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[test]
    fn a_second_signal_ends_the_process_and_says_which_checkpoint_is_the_last() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os(CHILD).is_some() {
            be_interrupted_twice();
        }
        let name = "interrupt::tests::a_second_signal_ends_the_process_and_says_which_checkpoint_is_the_last";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(signal_hook::consts::SIGINT), "by the signal: 130 in a shell");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("without a checkpoint of this moment; the last is out/checkpoint-7"), "{said}");
        assert_eq!(at_once(None).rsplit_once("; ").unwrap().1, "there is none, the same command begins anew");
    }

    /// Set in a process whose terminal is closed.
    const HUNG_UP: &str = "GARDEN_TEST_HUNG_UP";
    const STOPS_AFTER_THE_STEP: i32 = 7;

    #[test]
    fn hangups_end_the_run_after_the_step_however_many_come() {
        if std::env::var_os(HUNG_UP).is_some() {
            let mut interrupts = Interrupts::listen(&Screen::new(LogFormat::Text, true), None).unwrap();
            for _ in 0..5 {
                signal_hook::low_level::raise(SIGHUP).unwrap();
                // They must not arrive as one.
                thread::sleep(std::time::Duration::from_millis(20));
            }
            let mut control = Control::default();
            interrupts.on_step_end(&TrainerState::default(), &StepFacts::default(), &mut control).unwrap();
            let stops = control.stop == Some(StopReason::Interrupted);
            std::process::exit(if stops { STOPS_AFTER_THE_STEP } else { 1 });
        }
        let name = "interrupt::tests::hangups_end_the_run_after_the_step_however_many_come";
        // Whoever runs the tests may ignore hangups.
        let mut child = std::process::Command::new("env");
        child.arg("--default-signal=HUP").arg(std::env::current_exe().unwrap()).args([name, "--exact"]);
        let ended = child.env(HUNG_UP, "1").output().unwrap();
        assert_eq!(ended.status.code(), Some(STOPS_AFTER_THE_STEP), "{:?}", ended.status);
    }

    #[test]
    fn a_signal_ends_the_run_after_the_step() {
        let mut interrupts = Interrupts::listen(&Screen::new(LogFormat::Text, true), None).unwrap();
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
