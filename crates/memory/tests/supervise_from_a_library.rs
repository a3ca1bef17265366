//! A program other than the command line supervises a command: this test, which is also its own guard.

use garden_memory::{
    Event, Observer, Reading, RunFacts, StepPatterns, StopSignal,
    supervise::{self, GuardProgram, OnLimit, Orders, Outcome, Passage, Surroundings},
};
use std::{ffi::OsString, sync::mpsc::channel, time::Duration};

/// Comes before the words of the guard.
const MARK: &str = "--";

/// This test binary, started again so that it runs `be_the_guard` alone.
fn this_program() -> GuardProgram {
    GuardProgram {
        program: std::env::current_exe().expect("a test has a file"),
        name: None,
        arguments: ["be_the_guard", "--exact", "--nocapture", MARK].map(Into::into).to_vec(),
    }
}

#[derive(Default)]
struct Heard {
    events: Vec<Event>,
}

impl Observer for Heard {
    fn reading(&mut self, _: &Reading) {}

    fn event(&mut self, event: &Event) {
        self.events.push(event.clone());
    }
}

fn run(script: &str) -> (Outcome, Vec<Event>) {
    let orders = Orders {
        guard: this_program(),
        command: ["sh", "-c", script].map(Into::into).to_vec(),
        interval: Duration::from_millis(50),
        duration: None,
        facts: RunFacts::default(),
        on_limit: OnLimit::Restart,
        stop_signal: StopSignal::default(),
        grace: Duration::from_secs(5),
        max_restarts: 1,
        restart_args: Vec::new(),
        patterns: StepPatterns::default(),
        who: false,
    };
    let (sender, wakes) = channel();
    let mut heard = Heard::default();
    let surroundings = Surroundings {
        wakes: &wakes,
        sender: &sender,
        passage: Passage::Swallowed,
        trace: None,
        observer: &mut heard,
    };
    let outcome = supervise::run(&orders, surroundings).expect("a supervised command");
    (outcome, heard.events)
}

/// Not a test of its own: the guard, where the words of one are given.
#[test]
fn be_the_guard() {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != MARK).skip(1).collect();
    if !words.is_empty() {
        supervise::run_guard(&this_program(), &words).expect("a guarded command");
        std::process::exit(0);
    }
}

#[test]
fn a_program_of_its_own_supervises_and_starts_again() {
    let (outcome, _) = run("exit 7");
    assert_eq!(outcome, Outcome::Exited(7));

    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("started");
    let (outcome, events) = run(&format!("test -e {0} && exit 3; touch {0}; exit 75", mark.display()));
    assert_eq!(outcome, Outcome::Exited(3), "{events:?}");
    let restarts = events.iter().filter(|event| matches!(event, Event::Restarting { .. })).count();
    assert_eq!(restarts, 1, "{events:?}");
}
