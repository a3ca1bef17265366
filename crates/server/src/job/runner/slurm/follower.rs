//! Follows the jobs that Slurm has, from a thread of its own.
//!
//! Takes submissions, questions and orders and never makes their sender wait: a controller that is away holds up every
//! command for seconds. Jobs are known by their names, which are ours and say which attempt they are, so that one whose
//! submission got no answer is found again. One `squeue` serves all questions of a second. A submission or an order is
//! repeated until Slurm has answered it.

use super::{RunState, commands, commands::Failure};
use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// How old a list may be before the next question brings a new one.
const FRESH: Duration = Duration::from_secs(1);
/// Between two tries to reach Slurm.
const RETRY: Duration = Duration::from_secs(5);

/// What can be done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// It ends after a checkpoint.
    Stop,
    /// It ends at once.
    Kill,
}

/// A job for Slurm: the script in a folder, under a name of its own.
#[derive(Debug, Clone)]
pub(super) struct Submission {
    pub name: String,
    pub folder: PathBuf,
    pub bytes: u64,
    pub options: Vec<String>,
}

enum Order {
    Refresh,
    Submit(Submission),
    Act(String, Action),
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Submitted {
    /// Slurm has not answered.
    Not,
    /// Slurm has it since this moment: a list from before does not name it.
    At(Instant),
    /// Slurm does not want it, in its words.
    Refused(String),
}

/// What `squeue` said last, and what was submitted.
#[derive(Debug, Default)]
struct View {
    /// When it was asked, and the jobs that it named; nothing if it gave no answer.
    last: Option<(Instant, Option<HashMap<String, commands::Listed>>)>,
    submissions: HashMap<String, Submitted>,
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
        let follows = Follows { view: Arc::clone(&view), submissions: Vec::new(), actions: Vec::new() };
        thread::Builder::new().name("slurm".into()).spawn(move || follows.run(&received))?;
        Ok(Self { view, orders })
    }

    /// Submits a job, now or as soon as Slurm answers.
    pub(super) fn submit(&self, submission: Submission) {
        lock(&self.view).submissions.insert(submission.name.clone(), Submitted::Not);
        // The thread lives as long as this sender.
        let _ = self.orders.send(Order::Submit(submission));
    }

    /// Where a job is, as far as is known.
    pub(super) fn state(&self, name: &str) -> RunState {
        let mut view = lock(&self.view);
        let is_fresh = view.last.as_ref().is_some_and(|(asked, _)| asked.elapsed() < FRESH);
        if !is_fresh && !view.refreshing {
            view.refreshing = true;
            let _ = self.orders.send(Order::Refresh);
        }
        view.state(name)
    }

    /// Gives an order, now or as soon as Slurm takes it.
    pub(super) fn order(&self, name: &str, action: Action) {
        let _ = self.orders.send(Order::Act(name.to_owned(), action));
    }
}

impl View {
    fn state(&mut self, name: &str) -> RunState {
        let submitted = self.submissions.get(name).cloned();
        match submitted {
            Some(Submitted::Not) => return RunState::Waiting,
            Some(Submitted::Refused(words)) => {
                self.submissions.remove(name);
                return RunState::Refused(words);
            }
            _ => {}
        }
        let Some((asked, Some(jobs))) = &self.last else { return RunState::Unknown };
        match (jobs.get(name), submitted) {
            (Some(job), _) => job.state.clone(),
            (None, Some(Submitted::At(moment))) if *asked < moment => RunState::Unknown,
            (None, _) => {
                self.submissions.remove(name);
                RunState::Gone
            }
        }
    }
}

fn lock(view: &Mutex<View>) -> MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own: what Slurm has not answered yet.
struct Follows {
    view: Arc<Mutex<View>>,
    submissions: Vec<(Instant, Submission)>,
    actions: Vec<(Instant, String, Action)>,
}

impl Follows {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let first = match self.due() {
                Some(due) => orders.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if matches!(first, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            let mut refresh = false;
            for order in first.into_iter().chain(orders.try_iter()) {
                self.take(order, &mut refresh);
            }
            // What was asked for meanwhile waits behind one command of each kind, not behind all of them.
            self.submit_one();
            self.act_one();
            if refresh {
                self.refresh();
            }
        }
    }

    /// When something has to be tried again.
    fn due(&self) -> Option<Instant> {
        let submissions = self.submissions.iter().map(|(due, _)| *due);
        submissions.chain(self.actions.iter().map(|(due, ..)| *due)).min()
    }

    fn take(&mut self, order: Order, refresh: &mut bool) {
        match order {
            Order::Refresh => *refresh = true,
            Order::Submit(submission) => self.submissions.push((Instant::now(), submission)),
            Order::Act(name, action) => {
                // One that Slurm has not taken is not offered again. If it came through without an answer, the list names
                // it and the order reaches it; if it comes through later, its keeper finds that it should not run.
                self.submissions.retain(|(_, waiting)| waiting.name != name);
                if lock(&self.view).submissions.get(&name) == Some(&Submitted::Not) {
                    lock(&self.view).submissions.remove(&name);
                }
                if !self.actions.iter().any(|(_, known, what)| *known == name && *what == action) {
                    self.actions.push((Instant::now(), name, action));
                }
            }
        }
    }

    fn submit_one(&mut self) {
        let now = Instant::now();
        let Some(index) = self.submissions.iter().position(|(due, _)| *due <= now) else { return };
        let (_, submission) = self.submissions.swap_remove(index);
        let submitted = match submit(&submission) {
            Ok(()) => Submitted::At(Instant::now()),
            Err(Failure::Failed { command, words }) => {
                Submitted::Refused(Failure::Failed { command, words }.to_string())
            }
            Err(Failure::NotRun { .. } | Failure::Silent { .. }) => {
                self.submissions.push((Instant::now() + RETRY, submission));
                return;
            }
        };
        lock(&self.view).submissions.insert(submission.name, submitted);
    }

    /// Gives an order. It has been given when Slurm took it, or when a list names no such job.
    fn act_one(&mut self) {
        let now = Instant::now();
        let Some(index) = self.actions.iter().position(|(due, ..)| *due <= now) else { return };
        let (_, name, action) = self.actions.swap_remove(index);
        let given = commands::list().and_then(|jobs| match jobs.get(&name) {
            Some(job) if job.state != RunState::Gone => commands::act(job.number, action),
            _ => Ok(()),
        });
        if given.is_err() {
            self.actions.push((Instant::now() + RETRY, name, action));
        }
    }

    fn refresh(&self) {
        let asked = Instant::now();
        let jobs = commands::list().ok();
        let mut view = lock(&self.view);
        view.last = Some((asked, jobs));
        view.refreshing = false;
    }
}

/// Submits a script, unless a job of its name waits or runs already: an earlier try may have come through without an
/// answer.
fn submit(submission: &Submission) -> Result<(), Failure> {
    let jobs = commands::list()?;
    if jobs.get(&submission.name).is_some_and(|job| job.state != RunState::Gone) {
        return Ok(());
    }
    commands::submit(submission)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(asked: Instant, names: Option<&[&str]>, submitted: Submitted) -> View {
        let listed =
            |name: &&str| ((*name).to_owned(), commands::Listed { number: 7, state: RunState::Running });
        let jobs = names.map(|names| names.iter().map(listed).collect());
        let submissions = HashMap::from([("b".to_owned(), submitted)]);
        View { last: Some((asked, jobs)), submissions, refreshing: false }
    }

    #[test]
    fn a_job_is_gone_only_if_a_list_that_could_name_it_does_not() {
        let before = Instant::now();
        let after = before + Duration::from_secs(1);
        assert_eq!(View::default().state("a"), RunState::Unknown);
        let at = Submitted::At;
        assert_eq!(view(before, None, at(before)).state("b"), RunState::Unknown, "squeue failed");
        assert_eq!(view(before, Some(&["b"]), at(after)).state("b"), RunState::Running);
        assert_eq!(
            view(before, Some(&["a"]), at(after)).state("b"),
            RunState::Unknown,
            "it came after the list"
        );
        assert_eq!(view(after, Some(&["a"]), at(before)).state("b"), RunState::Gone);
    }

    #[test]
    fn a_submission_waits_for_its_answer_and_a_refusal_is_told_once() {
        let now = Instant::now();
        assert_eq!(view(now, Some(&[]), Submitted::Not).state("b"), RunState::Waiting);
        let mut refused = view(now, Some(&[]), Submitted::Refused("no".to_owned()));
        assert_eq!(refused.state("b"), RunState::Refused("no".to_owned()));
        assert_eq!(refused.state("b"), RunState::Gone);
    }
}
