//! Where a run stands: its step and epoch, as far as anybody tells.
//!
//! Sources of different worth (a socket message, a user's pattern, a log line, a progress bar) report to a
//! [`StepBoard`], which gives the step and epoch of this moment and what was learned of the run. A better
//! source silences the lesser ones as long as it speaks. The worst that a wrong report can do is a wrong
//! number.

mod bars;
mod lines;
mod log;
mod output;
mod pattern;
#[cfg(test)]
mod tools;

pub(crate) use lines::{LineReader, plain};
pub use log::{LogError, LogFollower};
pub(crate) use output::OutputParser;
pub use pattern::{BadPattern, LinePattern, StepPatterns};

use crate::RunFacts;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Who said it, least trusted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepSource {
    /// A progress bar, which may be that of something else.
    Bar,
    /// A log line such as `Step 10: ...` or a trainer's dictionary.
    Log,
    /// The pattern that the user gave.
    Pattern,
    /// A message on the socket.
    Socket,
}

/// One report of progress; what it does not say is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Optimizer step.
    pub step: Option<u64>,
    /// Epoch, fractional where the source says so.
    pub epoch: Option<f64>,
    /// Number of the epoch in words, from 0 or from 1: it tells where epochs end, but is no position.
    pub epoch_number: Option<f64>,
    /// Rows in the dataset.
    pub dataset_size: Option<u64>,
    /// Rows used by one optimizer step.
    pub samples_per_step: Option<u64>,
    /// Steps in an epoch.
    pub steps_per_epoch: Option<f64>,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Position {
    /// Optimizer step.
    pub step: Option<u64>,
    /// Epochs done, with their fraction.
    pub epoch: Option<f64>,
}

/// A value and the best source that gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Told<T> {
    value: T,
    by: StepSource,
}

fn tell<T>(slot: &mut Option<Told<T>>, value: Option<T>, by: StepSource) {
    if let Some(value) = value
        && slot.as_ref().is_none_or(|told| told.by <= by)
    {
        *slot = Some(Told { value, by });
    }
}

/// A lesser source is believed once it advanced this often while the better one was silent.
const SILENCE: u32 = 5;

/// The step, and who has been telling it.
///
/// A log line is only a guess: `Step 1: Loading model` is a step of something else, and must not silence a
/// progress bar for good. What was asked for (a pattern, the socket) always stands.
#[derive(Debug, Default)]
struct Steps {
    told: Option<Told<u64>>,
    /// The last step that a progress bar showed.
    shown: u64,
    /// How often it advanced since the last better report ...
    advances: u32,
    /// ... and at most between two of them, which is how rarely a log may speak.
    most_advances: u32,
}

impl Steps {
    fn tell(&mut self, step: u64, by: StepSource) {
        if by == StepSource::Bar {
            self.advances = self.advances.saturating_add(u32::from(step > self.shown));
            self.shown = step;
            let guessed = self.told.is_some_and(|told| told.by == StepSource::Log);
            if guessed && self.advances > SILENCE.max(self.most_advances.saturating_mul(2)) {
                self.told = None;
            }
        } else {
            self.most_advances = self.most_advances.max(std::mem::take(&mut self.advances));
        }
        tell(&mut self.told, Some(step), by);
    }
}

/// Steps of the recent past are remembered this finely ...
const GRAIN: Duration = Duration::from_millis(5);
/// ... and so many of them.
const REMEMBERED: usize = 4096;

/// When the step changed, as far as it is remembered.
#[derive(Debug, Default)]
struct History(VecDeque<(Instant, u64)>);

impl History {
    fn add(&mut self, at: Instant, step: u64) {
        if let Some((since, last)) = self.0.back_mut()
            && (*last == step || at.saturating_duration_since(*since) < GRAIN)
        {
            *last = step;
            return;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((at, step));
    }

    /// The step at a moment; the earliest that is remembered for a moment before that.
    fn at(&self, moment: Instant) -> Option<u64> {
        let before = self.0.partition_point(|(since, _)| *since <= moment);
        self.0.get(before.saturating_sub(1)).map(|(_, step)| *step)
    }
}

#[derive(Debug, Default)]
struct State {
    step: Steps,
    history: History,
    epoch: Option<Told<f64>>,
    dataset_size: Option<Told<u64>>,
    samples_per_step: Option<Told<u64>>,
    steps_per_epoch: Option<Told<f64>>,
}

/// The step counter that the sources write to and the recorder reads; clones share it.
#[derive(Debug, Clone, Default)]
pub struct StepBoard(Arc<Mutex<State>>);

impl StepBoard {
    /// Takes in what a source says.
    pub fn report(&self, by: StepSource, progress: Progress) {
        let mut state = self.state();
        if let Some(step) = progress.step {
            state.step.tell(step, by);
            if let Some(told) = state.step.told {
                state.history.add(Instant::now(), told.value);
            }
        }
        tell(&mut state.epoch, progress.epoch.filter(|epoch| epoch.is_finite() && *epoch >= 0.0), by);
        tell(&mut state.dataset_size, progress.dataset_size.filter(|rows| *rows > 0), by);
        tell(&mut state.samples_per_step, progress.samples_per_step.filter(|rows| *rows > 0), by);
        tell(
            &mut state.steps_per_epoch,
            progress.steps_per_epoch.filter(|steps| steps.is_finite() && *steps > 0.0),
            by,
        );
    }

    /// Where the run stands; the epoch is computed from `facts` where nobody tells it.
    pub(crate) fn now(&self, facts: &RunFacts) -> Position {
        let state = self.state();
        let step = state.step.told.map(|told| told.value);
        let derived = || Some(step? as f64 / facts.epoch_steps()?);
        Position { step, epoch: state.epoch.map(|told| told.value).or_else(derived) }
    }

    /// The step that the run had reached at a moment of the recent past.
    pub(crate) fn step_at(&self, moment: Instant) -> Option<u64> {
        self.state().history.at(moment)
    }

    /// `given` completed with what the sources said of the run; what the user gave stands.
    pub(crate) fn facts(&self, given: &RunFacts) -> RunFacts {
        let state = self.state();
        RunFacts {
            dataset_size: given.dataset_size.or(state.dataset_size.map(|told| told.value)),
            samples_per_step: given.samples_per_step.or(state.samples_per_step.map(|told| told.value)),
            steps_per_epoch: given.steps_per_epoch.or(state.steps_per_epoch.map(|told| told.value)),
            limit: given.limit,
            leave_free: given.leave_free,
        }
    }

    /// Forgets the position, for a command that starts again.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        state.step = Steps::default();
        state.history = History::default();
        state.epoch = None;
    }

    /// Numbers are whole whenever the lock is free, so a panic elsewhere spoils nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> Progress {
        Progress { step: Some(step), ..Progress::default() }
    }

    #[test]
    fn a_better_source_silences_the_lesser() {
        let board = StepBoard::default();
        let facts = RunFacts::default();
        board.report(StepSource::Bar, step(500));
        assert_eq!(board.now(&facts).step, Some(500));
        board.report(StepSource::Socket, step(7));
        board.report(StepSource::Bar, step(501));
        assert_eq!(board.now(&facts).step, Some(7));
        board.restart();
        assert_eq!(board.now(&facts), Position::default());
    }

    /// The steps that the board shows while reports come in.
    fn shown(reports: impl IntoIterator<Item = (StepSource, u64)>) -> Vec<u64> {
        let board = StepBoard::default();
        let show = |(by, number)| {
            board.report(by, step(number));
            board.now(&RunFacts::default()).step.unwrap()
        };
        reports.into_iter().map(show).collect()
    }

    #[test]
    fn a_log_line_that_was_no_step_does_not_silence_the_bar_for_good() {
        let start_up = [(StepSource::Log, 1), (StepSource::Log, 2)];
        let bar = (1..=8).map(|step| (StepSource::Bar, step));
        assert_eq!(shown(start_up.into_iter().chain(bar)), [1, 2, 2, 2, 2, 2, 2, 6, 7, 8]);
    }

    #[test]
    fn a_log_that_speaks_rarely_is_still_the_better_source() {
        // The bar counts micro-batches, four to a step, and the log has a line every ten steps.
        let reports = (1..=400).flat_map(|batch| {
            let line = (batch % 40 == 0).then_some((StepSource::Log, batch / 4));
            [(StepSource::Bar, batch)].into_iter().chain(line)
        });
        let steps = shown(reports);
        assert!(steps[40..].iter().all(|step| step % 10 == 0 && *step <= 100), "{steps:?}");
    }

    #[test]
    fn what_was_asked_for_stands() {
        let bar = (1..=100).map(|step| (StepSource::Bar, step));
        for by in [StepSource::Pattern, StepSource::Socket] {
            assert_eq!(shown([(by, 7)].into_iter().chain(bar.clone())).last(), Some(&7));
        }
    }

    #[test]
    fn the_step_of_a_past_moment_is_remembered() {
        let begun = Instant::now();
        let after = |milliseconds| begun + Duration::from_millis(milliseconds);
        let mut history = History::default();
        assert_eq!(history.at(begun), None);
        for step in 1..=10_000 {
            history.add(after(10 * step), step);
        }
        assert_eq!(history.at(after(99_999)), Some(9_999));
        assert_eq!(history.at(after(100_000)), Some(10_000));
        assert_eq!(history.at(after(10)), Some(10_001 - REMEMBERED as u64), "what came before is forgotten");
        assert_eq!(history.0.len(), REMEMBERED);
    }

    #[test]
    fn the_epoch_follows_from_the_step_where_nobody_says_it() {
        let board = StepBoard::default();
        board.report(StepSource::Log, step(20));
        let facts = RunFacts { dataset_size: Some(80), samples_per_step: Some(2), ..RunFacts::default() };
        assert_eq!(board.now(&facts), Position { step: Some(20), epoch: Some(0.5) });
        board.report(StepSource::Log, Progress { epoch: Some(0.75), ..Progress::default() });
        assert_eq!(board.now(&facts), Position { step: Some(20), epoch: Some(0.75) });
    }

    #[test]
    fn nonsense_is_not_taken_in() {
        let board = StepBoard::default();
        let nonsense = Progress {
            epoch: Some(f64::NAN),
            dataset_size: Some(0),
            samples_per_step: Some(0),
            steps_per_epoch: Some(-1.0),
            ..Progress::default()
        };
        board.report(StepSource::Socket, nonsense);
        assert_eq!(board.facts(&RunFacts::default()), RunFacts::default());
        assert_eq!(board.now(&RunFacts::default()), Position::default());
    }

    #[test]
    fn what_the_user_gave_stands() {
        let board = StepBoard::default();
        board.report(
            StepSource::Socket,
            Progress { dataset_size: Some(9), samples_per_step: Some(3), ..Progress::default() },
        );
        let given = RunFacts { dataset_size: Some(663), ..RunFacts::default() };
        let facts = board.facts(&given);
        assert_eq!((facts.dataset_size, facts.samples_per_step), (Some(663), Some(3)));
    }
}
