//! Who is next: priority, then first come; started when plan and disk allow it.
//!
//! The order is strict. A job that waits for memory makes those behind it wait too, so that a large job is not put off
//! for ever by small ones. Nothing is started without a reservation of the bytes that it may take.

use super::Manager;
use crate::job::{
    journal::Level,
    keeper::seconds_now,
    planner::JobPlan,
    record::{Phase, Wanted},
};
use garden_memory::ByteSize;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Checkpoints that a job must have room for before it starts: the one that is written and one that is kept.
const CHECKPOINTS: u64 = 3;
/// Besides checkpoints: logs, traces, reports.
const BESIDES: u64 = 64 << 20;
/// When a start is tried again that was refused, as by a scheduler that is away.
const START_AGAIN: Duration = Duration::from_secs(10);
/// How often the disk is looked at while jobs run.
const DISK_EVERY: Duration = Duration::from_secs(5);

/// When the disk was looked at.
#[derive(Default)]
pub(super) struct DiskWatch {
    looked: Option<Instant>,
}

impl Manager {
    /// The ids of the jobs that wait, in the order of their turn.
    pub(super) fn turn(&self) -> Vec<String> {
        let mut waiting: Vec<_> = self
            .live
            .values()
            .filter(|job| job.state.phase == Phase::Queued && !job.state.paused)
            .map(|job| (-job.state.priority, job.record.number, job.id()))
            .collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(.., id)| id.to_owned()).collect()
    }

    pub(super) fn start_what_may_start(&mut self) {
        // What is claimed stays so until it is clear whether the same job still waits.
        let _before = self.claim.take();
        if self.stopping {
            return;
        }
        let mut running = self.live.values().filter(|job| job.state.phase == Phase::Running).count();
        for id in self.turn() {
            if running >= self.surroundings.max_jobs {
                return;
            }
            // One that vanished waits a moment; it does not hold up the others.
            if self.live[&id].not_before.is_some_and(|moment| Instant::now() < moment) {
                continue;
            }
            match self.start(&id) {
                Started::Yes => running += 1,
                Started::NotThisOne => {}
                Started::NotNow => return,
            }
        }
    }

    fn start(&mut self, id: &str) -> Started {
        let budget = self.surroundings.budget.clone();
        let free_disk = free_bytes(self.surroundings.data.root());
        let Some(job) = self.live.get_mut(id) else { return Started::NotThisOne };
        let Some(plan) = job.plan.clone() else {
            // Its plan was lost with the disk, or belongs to an older version: it is made again.
            let _ = job.change(|state| state.phase = Phase::Validating);
            return Started::NotThisOne;
        };
        // Planned for a server with more memory, or for one with less than it can do with.
        if plan.total_bytes > budget.total() || !plan.fits {
            job.plan_again_or_wait(&plan, budget.total());
            return Started::NotThisOne;
        }
        let needed_disk = CHECKPOINTS * plan.checkpoint_bytes + BESIDES;
        if let Some(free) = free_disk.filter(|free| *free < needed_disk) {
            let (needed, free) = (ByteSize(needed_disk), ByteSize(free));
            job.wait_for(format!("disk: its checkpoints need {needed}, and {free} are free"));
            // Unlike memory, disk is not promised to come free: a smaller job behind it goes first.
            return Started::NotThisOne;
        }
        let limit = plan.limit(budget.total());
        let Some(reservation) = budget.reserve(limit) else {
            let free = budget.free();
            let (needed, shown) = (ByteSize(limit), ByteSize(free));
            job.wait_for(format!("memory: it needs {needed}, and {shown} of the budget are free"));
            // While other jobs have the memory, models go on answering.
            let claim = budget.claim(limit);
            self.claim = (self.surroundings.make_room)(limit.saturating_sub(free)).then_some(claim);
            return Started::NotNow;
        };
        // The state names the attempt before there is a process: a keeper of any other attempt ends by itself.
        let prepared = job.change(|state| {
            (state.phase, state.handle, state.wanted, state.told) = (Phase::Running, None, None, false);
            (state.attempt, state.waiting_for) = (state.attempt + 1, None);
            state.started_at.get_or_insert_with(seconds_now);
        });
        if prepared.is_err() {
            return Started::NotNow;
        }
        job.reservation = Some(reservation);
        job.progress.begin();
        let attempt = job.state.attempt;
        match self.surroundings.runner.start(&job.folder, attempt, limit) {
            Ok(handle) => {
                // Without the handle on disk a restarted server still finds the keeper by its lock.
                let _ = job.change(|state| state.handle = Some(handle));
                job.tell(Level::Info, "started", format!("The job started (attempt {attempt})"));
            }
            Err(error) => {
                self.start_later(id, &error.to_string());
                return Started::NotThisOne;
            }
        }
        self.settle(id);
        Started::Yes
    }

    /// Nothing runs: the job keeps its turn and is tried again.
    pub(super) fn start_later(&mut self, id: &str, why: &str) {
        let Some(job) = self.live.get_mut(id) else { return };
        if job.state.wanted.is_some() {
            return self.ended(id);
        }
        job.wait_for(format!("a start: {why}"));
        // Where the disk is full, the job is found without a process at the next look.
        if job.change(|state| (state.phase, state.handle) = (Phase::Queued, None)).is_ok() {
            job.reservation = None;
            job.not_before = Some(Instant::now() + START_AGAIN);
        }
        self.settle(id);
    }

    /// Sends jobs back to the queue, after a checkpoint, when the disk is about to be full.
    pub(super) fn watch_disk(&mut self) {
        if self.disk.looked.is_some_and(|moment| moment.elapsed() < DISK_EVERY) {
            return;
        }
        self.disk.looked = Some(Instant::now());
        let Some(free) = free_bytes(self.surroundings.data.root()) else { return };
        let mut asked = Vec::new();
        for job in self.live.values_mut() {
            let checkpoint = job.plan.as_ref().map_or(0, |plan| plan.checkpoint_bytes);
            let runs = job.state.phase == Phase::Running && job.state.wanted.is_none();
            if runs && free < checkpoint + BESIDES / 4 {
                let _ = job.change(|state| state.wanted = Some(Wanted::Requeue));
                let free = ByteSize(free);
                job.tell(
                    Level::Warn,
                    "disk",
                    format!("Only {free} of disk are left: it waits until there is more"),
                );
                asked.push(job.id().to_owned());
            }
        }
        asked.iter().for_each(|id| self.signal(id));
    }
}

impl super::Live {
    /// The server was started again with another budget than the job was planned for: it is planned for what there is, and
    /// waits for a server with more where that does not fit. It does not keep others from running.
    fn plan_again_or_wait(&mut self, plan: &JobPlan, budget: u64) {
        if self.planned_again {
            let (needed, budget) = (ByteSize(plan.total_bytes), ByteSize(budget));
            return self
                .wait_for(format!("memory: it needs {needed}, and the server's whole budget is {budget}"));
        }
        // The run plans for itself: it must know of the budget too.
        let rewritten = fs::read(self.folder.settings()).and_then(|bytes| {
            let mut settings: serde_json::Value = serde_json::from_slice(&bytes)?;
            let asked = self.record.settings.get("memory_budget");
            let asked = asked.and_then(|asked| serde_json::from_value::<ByteSize>(asked.clone()).ok());
            // An engine in Python has no plan, but a limit.
            let native = settings.get("engine").is_none_or(|engine| engine == "native");
            let key = if native { "memory-budget" } else { "memory-limit" };
            settings[key] = asked.map_or(budget, |ByteSize(asked)| asked.min(budget)).into();
            garden_files::write(&self.folder.settings(), &serde_json::to_vec_pretty(&settings)?)
        });
        if rewritten.is_ok() && self.change(|state| state.phase = Phase::Validating).is_ok() {
            self.planned_again = true;
        }
    }

    /// Says why it waits, where that is new; the figures in it change all the time.
    fn wait_for(&mut self, why: String) {
        let kind = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        if self.state.waiting_for.as_deref().map(kind) != Some(kind(&why)) {
            self.tell(Level::Info, "waiting", format!("Waiting for {why}"));
            let _ = self.change(|state| state.waiting_for = Some(why));
        }
    }
}

enum Started {
    Yes,
    /// This one cannot be started; the next may.
    NotThisOne,
    /// Nothing behind it is started before it.
    NotNow,
}

/// Bytes that are free on the disk of a folder.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
