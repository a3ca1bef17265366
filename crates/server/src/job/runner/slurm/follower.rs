//! Follows the jobs that Slurm has, from a thread of its own.
//!
//! Takes questions and orders and never makes their sender wait: a controller that is away holds up `squeue` for seconds.
//! A question is answered from the last list of jobs; one `squeue` serves all questions of a second. An order is
//! given again until Slurm has taken it.

use super::{RunState, commands};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// How old a list may be before the next question brings a new one.
const FRESH: Duration = Duration::from_secs(1);
/// Between two tries to give an order.
const RETRY: Duration = Duration::from_secs(5);
/// After that many the order is dropped; whoever gave it sees that the job still runs.
const TRIES: u32 = 60;

/// What can be done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// It ends after a checkpoint.
    Stop,
    /// It ends at once.
    Kill,
}

enum Order {
    Refresh,
    Act(u64, Action),
}

/// What `squeue` said last.
#[derive(Debug, Default)]
struct View {
    /// When it was asked, and the jobs that it named; nothing if it gave no answer.
    last: Option<(Instant, Option<HashMap<u64, RunState>>)>,
    /// When a job was last submitted: a list from before does not name it.
    submitted: Option<Instant>,
    refreshing: bool,
}

/// The thread and what it knows.
#[derive(Debug)]
pub(super) struct Follower {
    view: Arc<Mutex<View>>,
    orders: Sender<Order>,
}

impl Follower {
    /// Starts the thread; it ends with this value.
    pub(super) fn start() -> io::Result<Self> {
        let view = Arc::new(Mutex::default());
        let (orders, received) = mpsc::channel();
        let shared = Arc::clone(&view);
        thread::Builder::new().name("slurm".into()).spawn(move || follow(&received, &shared))?;
        Ok(Self { view, orders })
    }

    /// Where a job is, as far as is known.
    pub(super) fn state(&self, number: u64) -> RunState {
        let mut view = lock(&self.view);
        let is_fresh = view.last.as_ref().is_some_and(|(asked, _)| asked.elapsed() < FRESH);
        if !is_fresh && !view.refreshing {
            view.refreshing = true;
            // The thread lives as long as this sender.
            let _ = self.orders.send(Order::Refresh);
        }
        view.state(number)
    }

    /// Remembers that a job was submitted.
    pub(super) fn submitted(&self) {
        lock(&self.view).submitted = Some(Instant::now());
    }

    /// Gives an order, now or as soon as Slurm takes it.
    pub(super) fn order(&self, number: u64, action: Action) {
        let _ = self.orders.send(Order::Act(number, action));
    }
}

impl View {
    fn state(&self, number: u64) -> RunState {
        let Some((asked, Some(jobs))) = &self.last else { return RunState::Unknown };
        match jobs.get(&number) {
            Some(state) => *state,
            None if self.submitted.is_some_and(|submitted| *asked < submitted) => RunState::Unknown,
            None => RunState::Gone,
        }
    }
}

fn lock(view: &Mutex<View>) -> MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow(orders: &Receiver<Order>, view: &Mutex<View>) {
    let mut actions: Vec<(u64, Action, u32)> = Vec::new();
    loop {
        let first = match actions.is_empty() {
            true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => orders.recv_timeout(RETRY),
        };
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        let mut refresh = false;
        for order in first.into_iter().chain(orders.try_iter()) {
            match order {
                Order::Refresh => refresh = true,
                Order::Act(number, action)
                    if actions.iter().any(|known| (known.0, known.1) == (number, action)) => {}
                Order::Act(number, action) => actions.push((number, action, 0)),
            }
        }
        actions.retain_mut(|(number, action, tries)| {
            *tries += 1;
            commands::act(*number, *action).is_err() && *tries < TRIES
        });
        if refresh {
            let asked = Instant::now();
            let jobs = commands::list().ok();
            let mut view = lock(view);
            view.last = Some((asked, jobs));
            view.refreshing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_gone_only_if_a_list_that_could_name_it_does_not() {
        let before = Instant::now();
        let after = before + Duration::from_secs(1);
        let jobs = || Some(HashMap::from([(1, RunState::Running)]));
        let view = |asked, jobs, submitted| View { last: Some((asked, jobs)), submitted, refreshing: false };
        assert_eq!(View::default().state(1), RunState::Unknown);
        assert_eq!(view(before, None, None).state(1), RunState::Unknown, "squeue failed");
        assert_eq!(view(before, jobs(), Some(after)).state(1), RunState::Running);
        assert_eq!(view(before, jobs(), Some(after)).state(2), RunState::Unknown, "submitted after the list");
        assert_eq!(view(after, jobs(), Some(before)).state(2), RunState::Gone);
    }
}
