//! Ctrl-C, SIGTERM, a closed terminal, SIGUSR1 and SIGUSR2 as a request: finish the step, write a checkpoint, end.
//!
//! The first signal asks the run to stop at the end of its step, or of the batch it evaluates. A second
//! Ctrl-C or SIGTERM ends the process at once, by that signal, as it would have without us; before that, a
//! message says which checkpoint is the last. A hangup never counts as the second signal: when a terminal is
//! closed, both its shell and the kernel send one. Nor do SIGUSR1 and SIGUSR2, by which schedulers tell of the end of a job's
//! time before they kill it. Where hangups were ignored when the program started
//! (`nohup`), they stay ignored.

use super::screen::Lines;
use garden_memory::heeded;
use garden_train::Cancel;
use signal_hook::{
    SigId,
    consts::{SIGHUP, SIGUSR1, SIGUSR2, TERM_SIGNALS},
    flag,
    iterator::{Handle, Signals},
    low_level::{emulate_default_handler, unregister},
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    thread,
};

/// Handlers that end the process, as signals do by default, when no run listens to them any more. A handler
/// cannot be given back to the system, so these do what the system would.
static BACK_TO_DEFAULT: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// Turns signals into a request to end a run, until it is dropped.
pub struct Interrupts {
    last_checkpoint: Arc<Mutex<Option<PathBuf>>>,
    heard: Vec<i32>,
    registered: Vec<SigId>,
    watcher: Handle,
}

impl Interrupts {
    /// Listens from now on; the run continues from `checkpoint`, if there is one.
    pub fn listen(lines: &Lines, cancel: &Cancel, checkpoint: Option<&Path>) -> io::Result<Self> {
        let last_checkpoint = Arc::new(Mutex::new(checkpoint.map(Path::to_owned)));
        let heard: Vec<i32> =
            TERM_SIGNALS.iter().copied().chain(heeded([SIGHUP, SIGUSR1, SIGUSR2])).collect();
        let registered = heard.iter().map(|signal| flag::register(*signal, cancel.flag()));
        let registered = registered.collect::<io::Result<_>>()?;
        let mut signals = Signals::new(TERM_SIGNALS)?;
        let watcher = signals.handle();
        let (lines, last) = (lines.clone(), last_checkpoint.clone());
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever().skip(1) {
                lines.last_words(&at_once(whole(&last).as_deref()));
                let _ = emulate_default_handler(signal);
            }
        })?;
        stop_heeding(&mut whole(&BACK_TO_DEFAULT));
        Ok(Self { last_checkpoint, heard, registered, watcher })
    }

    /// Notes that this checkpoint is now the last.
    pub fn saved(&self, checkpoint: &Path) {
        *whole(&self.last_checkpoint) = Some(checkpoint.to_owned());
    }
}

/// The message when a second signal ends the process.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::LogFormat;

    /// Set in a process that is to be interrupted twice.
    const CHILD: &str = "GARDEN_TEST_INTERRUPTED_TWICE";
    const LAST: &str = "out/checkpoint-7";

    fn lines() -> Lines {
        Lines::new(LogFormat::Text, false)
    }

    /// The child's part: it is interrupted, goes on as if in a long step, is interrupted again, and never
    /// reaches its end.
    fn be_interrupted_twice() {
        let interrupts = Interrupts::listen(&lines(), &Cancel::default(), None).unwrap();
        interrupts.saved(Path::new(LAST));
        let interrupt = || signal_hook::low_level::raise(signal_hook::consts::SIGINT).unwrap();
        interrupt();
        // The two must not arrive as one, so the second is sent until it is seen.
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
        let name = "train_vision::interrupts::tests::a_second_signal_ends_the_process_and_says_which_checkpoint_is_the_last";
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
            let cancel = Cancel::default();
            let _interrupts = Interrupts::listen(&lines(), &cancel, None).unwrap();
            for _ in 0..5 {
                signal_hook::low_level::raise(SIGHUP).unwrap();
                // They must not arrive as one.
                thread::sleep(std::time::Duration::from_millis(20));
            }
            std::process::exit(if cancel.is_cancelled() { STOPS_AFTER_THE_STEP } else { 1 });
        }
        let name = "train_vision::interrupts::tests::hangups_end_the_run_after_the_step_however_many_come";
        // Whoever runs the tests may ignore hangups.
        let mut child = std::process::Command::new("env");
        child.arg("--default-signal=HUP").arg(std::env::current_exe().unwrap()).args([name, "--exact"]);
        let ended = child.env(HUNG_UP, "1").output().unwrap();
        assert_eq!(ended.status.code(), Some(STOPS_AFTER_THE_STEP), "{:?}", ended.status);
    }

    /// Set in a process with two runs, each of which is interrupted.
    const TWO_RUNS: &str = "GARDEN_TEST_TWO_RUNS";
    const HEARD_BOTH: i32 = 8;

    #[test]
    fn the_run_after_an_interrupted_one_hears_signals_too() {
        if std::env::var_os(TWO_RUNS).is_some() {
            for _ in 0..2 {
                let cancel = Cancel::default();
                let _interrupts = Interrupts::listen(&lines(), &cancel, None).unwrap();
                assert!(!cancel.is_cancelled(), "the run before is not this one's business");
                signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
                assert!(cancel.is_cancelled());
            }
            std::process::exit(HEARD_BOTH);
        }
        let name = "train_vision::interrupts::tests::the_run_after_an_interrupted_one_hears_signals_too";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args([name, "--exact", "--nocapture"]).env(TWO_RUNS, "1").output().unwrap();
        assert_eq!(ended.status.code(), Some(HEARD_BOTH), "{ended:?}");
    }

    /// Set in a process that is interrupted when its run is over.
    const AFTERWARDS: &str = "GARDEN_TEST_AFTERWARDS";

    #[test]
    fn after_a_run_a_signal_ends_the_process_again() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os(AFTERWARDS).is_some() {
            drop(Interrupts::listen(&lines(), &Cancel::default(), None).unwrap());
            signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
            std::process::exit(0);
        }
        let name = "train_vision::interrupts::tests::after_a_run_a_signal_ends_the_process_again";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args([name, "--exact", "--nocapture"]).env(AFTERWARDS, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(signal_hook::consts::SIGTERM), "{ended:?}");
    }
}
