//! Runs one command to its end and measures how its memory moves.
//!
//! Takes a command and gives its verdict and how much memory it kept. Steps are read from its output or from
//! the socket. Everything that the command started is gone when this returns.

use garden_memory::{
    Assessment, Event, Observer, Reading, RunFacts, StepPatterns, StopSignal, Wake,
    supervise::{self, GuardProgram, OnLimit, Orders, Passage, SuperviseError, Surroundings},
};
use serde::Serialize;
use std::{
    ffi::OsString,
    sync::mpsc::{Receiver, Sender},
    time::Duration,
};

/// The share of a run that counts as its start where a program reports no steps: what it needs to start is
/// not growth.
const START_UP_SHARE: f64 = 0.2;
/// Levels are medians of this share of the samples, so that one spike does not count.
const LEVEL_SHARE: f64 = 0.1;

/// A command to measure.
#[derive(Debug, Clone)]
pub struct Trial {
    /// What to call it.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What is known of its data.
    pub facts: RunFacts,
}

/// How the memory of one run moved.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What it is called.
    pub name: String,
    /// The verdict with its reasons.
    pub assessment: Assessment,
    /// Steps that it reported.
    pub steps: u64,
    /// The highest level of memory of its own.
    pub peak_bytes: u64,
    /// The level at the end minus the level after the start. Where there are steps, the start ends with the
    /// first one.
    pub kept_bytes: i64,
    /// Seconds it took.
    pub seconds: f64,
    /// The exit code as a shell would see it.
    pub exit_code: i32,
}

/// What a measurement needs from the process that takes it, set up once.
pub struct Host<'a> {
    /// Where signals arrive.
    pub wakes: &'a Receiver<Wake>,
    /// The other end of that channel.
    pub sender: &'a Sender<Wake>,
    /// The program that guards each command.
    pub guard: &'a GuardProgram,
}

/// Runs a command and takes a reading every `interval`. `passage` says where its output goes; `watcher` is
/// shown each reading.
pub fn measure(
    trial: &Trial,
    interval: Duration,
    passage: Passage,
    host: &Host<'_>,
    watcher: &mut dyn FnMut(&Reading),
) -> Result<Measured, SuperviseError> {
    let orders = Orders {
        guard: host.guard.clone(),
        command: trial.command.clone(),
        interval,
        duration: None,
        facts: trial.facts.clone(),
        on_limit: OnLimit::Warn,
        stop_signal: StopSignal::default(),
        grace: Duration::from_secs(5),
        max_restarts: 0,
        restart_args: Vec::new(),
        patterns: StepPatterns::default(),
        who: false,
    };
    let mut notes = Notes { watcher, last: None, levels: Vec::new(), before_first_step: None };
    let surroundings =
        Surroundings { wakes: host.wakes, sender: host.sender, passage, trace: None, observer: &mut notes };
    let outcome = supervise::run(&orders, surroundings)?;
    Ok(notes.sum_up(&trial.name, outcome.exit_code()))
}

/// What was seen of a run.
struct Notes<'a> {
    watcher: &'a mut dyn FnMut(&Reading),
    last: Option<Reading>,
    levels: Vec<u64>,
    before_first_step: Option<usize>,
}

impl Observer for Notes<'_> {
    fn reading(&mut self, reading: &Reading) {
        (self.watcher)(reading);
        let sample = &reading.snapshot.sample;
        if sample.step.is_some_and(|step| step > 0) {
            self.before_first_step.get_or_insert(self.levels.len());
        }
        self.levels.push(sample.owned());
        self.last = Some(reading.clone());
    }

    fn event(&mut self, _: &Event) {}
}

impl Notes<'_> {
    fn sum_up(self, name: &str, exit_code: i32) -> Measured {
        let assessment = match &self.last {
            Some(reading) => reading.assessment.clone(),
            None => garden_memory::Analyst::new(RunFacts::default()).assessment(),
        };
        let sample = self.last.as_ref().map(|reading| &reading.snapshot.sample);
        Measured {
            name: name.to_owned(),
            assessment,
            steps: sample.and_then(|sample| sample.step).unwrap_or(0),
            peak_bytes: self.levels.iter().copied().max().unwrap_or(0),
            kept_bytes: kept(&self.levels, self.before_first_step),
            seconds: sample.map_or(0.0, |sample| sample.t),
            exit_code,
        }
    }
}

/// The level at the end minus the level after the start.
fn kept(levels: &[u64], before_first_step: Option<usize>) -> i64 {
    let after_start = before_first_step.unwrap_or((levels.len() as f64 * START_UP_SHARE) as usize);
    let width = (((levels.len() - after_start) as f64 * LEVEL_SHARE) as usize).max(1);
    let late = levels.len().saturating_sub(width);
    if late <= after_start {
        return 0;
    }
    median(&levels[late..]) as i64 - median(&levels[after_start..(after_start + width).min(late)]) as i64
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_measured_after_the_start_and_without_spikes() {
        let growing: Vec<u64> = (0..100).map(|i| if i < 20 { 10 * i } else { 1000 + i }).collect();
        assert_eq!(kept(&growing, None), 72, "from about 1024 to about 1096");
        let mut spiky = vec![1000; 100];
        spiky[95] = 90_000;
        assert_eq!(kept(&spiky, None), 0);
        assert_eq!(kept(&[], None), 0);
        assert_eq!(kept(&[5], None), 0);
        assert_eq!(kept(&[9; 3], None), 0);
        assert_eq!(kept(&growing, Some(60)), 36, "from the first step on");
    }
}
