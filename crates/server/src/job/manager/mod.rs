//! The thread that owns every job that is not over.
//!
//! Requests reach it as messages and are answered one after another, so that no two of them can change a job at once.
//! Between messages it looks at what runs, starts what may start, and brings the index up to date. [`Jobs`] is the
//! handle that requests use.

mod handle;
mod live;
mod orders;
mod queue;
mod recovery;

pub(crate) use handle::{Action, Jobs};
pub(crate) use live::Indexed;
pub(crate) use orders::NewJob;
pub(crate) use recovery::held_by_running;

use super::{
    ending::{self, Next},
    journal::Level,
    keeper::seconds_now,
    names::Names,
    planner::Planner,
    record::{JobRecord, JobState, Phase},
    results,
    runner::{RunState, Runner},
};
use crate::{
    budget::{Budget, Claim},
    data_dir::DataDir,
    store::Store,
};
use handle::{Done, Message, Outlook};
use live::{Live, Planning};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};
use tokio::sync::{oneshot, watch};

/// How often the jobs are looked at.
const TICK: Duration = Duration::from_millis(200);
/// How often the index learns of a job's progress; changes of state go there at once.
const INDEX_EVERY: Duration = Duration::from_secs(1);
/// How long a keeper that was just started may take to take its lock.
const STARTING: Duration = Duration::from_secs(5);
/// Plans that fail for reasons that pass, such as a planner that the kernel killed, are made again so often.
const PLAN_TRIES: u32 = 3;
/// After this, longer each time.
const PLAN_AGAIN: Duration = Duration::from_secs(10);
/// A plan that is made in the background may take this long: a dataset of a hundred gigabytes is read.
const PLAN_PATIENCE: Duration = Duration::from_secs(6 * 3600);

/// Is told that a job is over; whether it was heard. What was not is told again by the next server.
pub(crate) type OnEnd = Box<dyn Fn(&JobRecord, Phase) -> bool + Send>;

/// Keeps the numbers of a job as a file, and gives the file's id. The same job has the same file however
/// often.
pub(crate) type KeepResults = Box<dyn Fn(&JobRecord, String) -> io::Result<String> + Send>;

/// What the manager needs of the rest of the server.
pub(crate) struct Surroundings {
    pub data: DataDir,
    pub store: Store,
    pub budget: Budget,
    pub runner: Box<dyn Runner>,
    pub planner: Planner,
    pub max_jobs: usize,
    /// Called when a job is over.
    pub on_end: OnEnd,
    pub keep_results: KeepResults,
    /// Asks models to give back so many bytes; whether they will.
    pub make_room: Box<dyn Fn(u64) -> bool + Send>,
    pub runtime: tokio::runtime::Handle,
}

struct Manager {
    surroundings: Surroundings,
    /// Jobs that are not over, by id.
    live: BTreeMap<String, Live>,
    messages: Sender<Message>,
    /// Goes after `surroundings`: who waits for the manager's end finds the index let go of.
    change: watch::Sender<u64>,
    outlook: Arc<RwLock<Outlook>>,
    /// When the index last learned of progress.
    indexed: Instant,
    disk: queue::DiskWatch,
    /// The memory that the next job waits for, where models are about to give it back.
    claim: Option<Claim>,
    /// The number of the newest job.
    newest: u64,
    /// The server ends: nothing is started any more.
    stopping: bool,
    looked: Arc<Mutex<Instant>>,
}

impl Manager {
    fn run(mut self, inbox: &Receiver<Message>) {
        let mut shutdown: Option<(Instant, oneshot::Sender<()>)> = None;
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(Message::Shutdown(patience, reply)) => {
                    self.begin_shutdown();
                    shutdown = Some((Instant::now() + patience, reply));
                }
                Ok(message) => self.answer(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.tick();
            *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            let over = |(until, _): &mut (Instant, _)| self.nothing_runs_here() || Instant::now() >= *until;
            if let Some((_, reply)) = shutdown.take_if(over) {
                self.bring_index_up_to_date(true);
                let _ = reply.send(());
                return;
            }
        }
    }

    fn answer(&mut self, message: Message) {
        // A client that went away wants no answer.
        match message {
            Message::Create(job, reply) => drop(reply.send(self.create(*job))),
            Message::Act(id, action, reply) => drop(reply.send(self.act(&id, &action))),
            Message::Delete(id, reply) => drop(reply.send(self.delete(&id))),
            Message::Planned(id, plan) => self.planned(&id, *plan),
            Message::Shutdown(..) => {}
        }
    }

    fn tick(&mut self) {
        let ids: Vec<String> = self.live.keys().cloned().collect();
        for id in ids {
            match self.live[&id].state.phase {
                Phase::Running => self.look_at(&id),
                Phase::Validating => self.start_planning(&id),
                _ => {}
            }
        }
        self.watch_disk();
        self.start_what_may_start();
        self.bring_index_up_to_date(false);
    }

    /// Looks at a job that runs: what it says, and whether it still does.
    fn look_at(&mut self, id: &str) {
        let Some(job) = self.live.get_mut(id) else { return };
        job.read_journal();
        if job.state.handle.is_none()
            && let Some(handle) = self.surroundings.runner.handle_of(&job.folder, job.state.attempt)
            && job.change(|state| state.handle = Some(handle)).is_ok()
        {
            return self.signal(id);
        }
        let state = match &job.state.handle {
            Some(handle) => self.surroundings.runner.state(&job.folder, handle),
            // The server died between writing the state and starting the keeper, which may be about to take its lock.
            None if job.folder.is_kept().unwrap_or(true) => RunState::Running,
            None => RunState::Gone,
        };
        match state {
            RunState::Gone => {}
            RunState::Refused(words) => return self.start_later(id, &words),
            RunState::Waiting | RunState::Running | RunState::Unknown => {
                job.missing_since = None;
                return;
            }
        }
        let end = job.folder.read_attempt(job.state.attempt).ok().flatten();
        let since = *job.missing_since.get_or_insert_with(Instant::now);
        if end.is_none() && since.elapsed() < STARTING {
            return;
        }
        // What it said last, before its end is judged.
        job.read_journal();
        self.ended(id);
    }

    /// Decides what becomes of a job whose attempt is over, and does it.
    fn ended(&mut self, id: &str) {
        let Some(job) = self.live.get_mut(id) else { return };
        // A keeper that a scheduler starts this late finds the lock taken, or a state that does not want it any more.
        let Ok(Some(_lock)) = job.folder.lock() else { return };
        let attempt = job.folder.read_attempt(job.state.attempt).ok().flatten();
        let limit = attempt.as_ref().map_or(0, |attempt| attempt.limit_bytes);
        let end = attempt.and_then(|attempt| attempt.end);
        let next = ending::next(&job.record, &job.state, &job.progress, end.as_ref(), limit);
        let step = job.progress.step;
        let checkpoint = job.folder.checkpoints().last().copied();
        let results = match next {
            Next::Succeeded | Next::Cancelled { kept: true } => {
                let table = results::table(&job.folder);
                // A full disk costs the table, not the job.
                table.and_then(|table| (self.surroundings.keep_results)(&job.record, table)).ok()
            }
            _ => None,
        };
        let changed = job.change(|state| {
            state.result_files = results.into_iter().collect();
            state.energy_joules = add(state.energy_joules, end.as_ref().and_then(|end| end.energy_joules));
            state.last_end = end;
            (state.handle, state.wanted, state.told) = (None, None, false);
            state.vanished = match next {
                Next::Vanished if step <= state.step => state.vanished + 1,
                _ => 0,
            };
            state.step = state.step.max(step);
            apply(state, &next, checkpoint);
        });
        if changed.is_err() {
            // The disk is full: the same is decided again at the next look.
            return;
        }
        job.reservation = None;
        job.missing_since = None;
        job.not_before = (next == Next::Vanished)
            .then(|| Instant::now() + Duration::from_secs(1 << job.state.vanished.min(6)));
        tell_next(job, &next, checkpoint);
        self.settle(id);
    }

    /// Puts a changed job into the index, and lets go of one that is over.
    fn settle(&mut self, id: &str) -> Option<Done> {
        let job = self.live.get_mut(id)?;
        // Where the index cannot be written, the folder still tells the truth: the next start corrects it.
        let written = self.surroundings.store.put_job_later(job.row());
        job.stale = written.is_err();
        let done = Done { job: Box::new(job.indexed()), written };
        if job.state.phase.is_final() {
            announce(&self.surroundings.on_end, job);
            self.live.remove(id);
        }
        self.publish();
        Some(done)
    }

    fn bring_index_up_to_date(&mut self, at_once: bool) {
        if !at_once && self.indexed.elapsed() < INDEX_EVERY {
            return;
        }
        self.indexed = Instant::now();
        let mut any = false;
        for job in self.live.values_mut().filter(|job| job.stale) {
            any = true;
            job.stale = self.surroundings.store.put_job_later(job.row()).is_err();
        }
        if any {
            self.publish();
        }
    }

    /// Tells everybody that something changed.
    fn publish(&mut self) {
        let records = self.live.values().map(|job| &job.record);
        let files =
            records.flat_map(|record| std::iter::once(&record.training_file).chain(&record.validation_file));
        let models = self.live.values().flat_map(|job| [&job.record.model, &job.record.base]);
        let outlook = Outlook {
            queue: self.turn(),
            files: files.cloned().collect(),
            models: models.cloned().collect(),
        };
        *self.outlook.write().unwrap_or_else(PoisonError::into_inner) = outlook;
        self.change.send_modify(|version| *version += 1);
    }

    fn start_planning(&mut self, id: &str) {
        let waits = |job: &&mut Live| {
            job.planning.is_none() && job.not_before.is_none_or(|moment| moment <= Instant::now())
        };
        let Some(job) = self.live.get_mut(id).filter(waits) else { return };
        let (planner, folder) = (self.surroundings.planner.clone(), job.folder.clone());
        let (room, messages, id) = (self.surroundings.budget.total(), self.messages.clone(), id.to_owned());
        let planning = self.surroundings.runtime.spawn(async move {
            let names = Names::of_job(&folder);
            let plan = planner.plan(&folder.settings(), room, PLAN_PATIENCE, &names).await;
            let _ = messages.send(Message::Planned(id, Box::new(plan)));
        });
        job.planning = Some(Planning(planning.abort_handle()));
    }
}

/// Tells the end of a job to those who wait for it. A server that dies before this is written down tells it again.
fn announce(on_end: &OnEnd, job: &mut Live) {
    if on_end(&job.record, job.state.phase) {
        let _ = job.change(|state| state.announced = true);
    }
}

/// The state after an attempt.
fn apply(state: &mut JobState, next: &Next, checkpoint: Option<u64>) {
    let over = |state: &mut JobState, phase| {
        state.phase = phase;
        state.finished_at = Some(seconds_now());
    };
    match next {
        Next::Succeeded => over(state, Phase::Succeeded),
        Next::Failed(fault) => {
            over(state, Phase::Failed);
            state.fault = Some(fault.clone());
        }
        Next::Cancelled { kept } => {
            over(state, Phase::Cancelled);
            state.result_step = checkpoint.filter(|_| *kept);
        }
        Next::Paused => (state.phase, state.paused) = (Phase::Queued, true),
        Next::Requeued | Next::Vanished => state.phase = Phase::Queued,
        Next::Restarted(_) => {
            state.phase = Phase::Queued;
            state.restarts += 1;
        }
    }
}

fn tell_next(job: &Live, next: &Next, checkpoint: Option<u64>) {
    let from = checkpoint.map_or("from the start".to_owned(), |step| format!("from step {step}"));
    let (level, kind, text) = match next {
        Next::Succeeded => (Level::Info, "succeeded", "The job has successfully completed".to_owned()),
        Next::Failed(fault) => (Level::Error, "failed", format!("The job failed: {}", fault.message)),
        Next::Cancelled { kept: true } if checkpoint.is_some() => {
            (Level::Info, "cancelled", format!("Stopped; the result is the checkpoint of {}", &from[5..]))
        }
        Next::Cancelled { .. } => (Level::Info, "cancelled", "The job was cancelled".to_owned()),
        Next::Paused => (Level::Info, "paused", format!("Paused; it will go on {from}")),
        Next::Requeued => (Level::Info, "queued", format!("Back in the queue; it will go on {from}")),
        Next::Restarted(fault) => {
            (Level::Warn, "restarted", format!("{}\nStarting again {from}", fault.message))
        }
        Next::Vanished => (
            Level::Warn,
            "vanished",
            format!(
                "The job's process ended without a word, as at a power cut or a kill; it will go on {from}"
            ),
        ),
    };
    job.tell(level, kind, text);
}

fn add(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
    }
}
