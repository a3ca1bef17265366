//! What people ask of jobs: create, cancel, stop, pause, resume, priority, delete.
//!
//! An order that makes no sense in the job's state is refused as a wrong request, never as a conflict: clients retry
//! conflicts.

use super::{Action, Done, Live, Manager, PLAN_AGAIN, PLAN_TRIES};
use crate::{
    api::error::ApiError,
    id::Kind,
    job::{
        folder::JobFolder,
        journal::Level,
        keeper::seconds_now,
        planner::{JobPlan, PlanFault, Refusal, code_of},
        record::{Fault, JobRecord, JobState, Phase, Wanted},
    },
    store::Written,
};
use garden_train::TrainOptions;
use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

/// A job to be made.
pub(crate) struct NewJob {
    pub record: JobRecord,
    pub priority: i64,
    pub options: TrainOptions,
    /// Its plan, if there was time to make it.
    pub plan: Option<JobPlan>,
    /// A checkpoint of another job to go on from.
    pub from: Option<PathBuf>,
}

impl Manager {
    pub(super) fn create(&mut self, mut job: NewJob) -> Result<Done, ApiError> {
        self.newest += 1;
        job.record.number = self.newest;
        let phase = if job.plan.is_some() { Phase::Queued } else { Phase::Validating };
        let state = JobState::new(phase, job.priority);
        let jobs = self.surroundings.data.jobs();
        let fill = |folder: &JobFolder, _named: &Path| {
            garden_files::write(&folder.settings(), &serde_json::to_vec_pretty(&job.options)?)?;
            if let Some(plan) = &job.plan {
                garden_files::write(&folder.plan(), &serde_json::to_vec_pretty(plan)?)?;
            }
            job.from.as_ref().map_or(Ok(()), |from| link_folder(from, &folder.output()))
        };
        let folder = JobFolder::create(&jobs, &job.record, &state, fill).map_err(|error| {
            let _ = fs::remove_dir_all(jobs.join(format!(".new-{}", job.record.id)));
            ApiError::disk(&error)
        })?;
        let live = Live::new(folder, job.record, state);
        live.tell(Level::Info, "created", format!("Created fine-tuning job: {}", live.id()));
        if live.state.phase == Phase::Queued {
            live.tell(Level::Info, "queued", "The files are valid and the plan fits; the job is queued");
        }
        let id = live.id().to_owned();
        self.live.insert(id.clone(), live);
        self.settle(&id).ok_or_else(|| ApiError::not_found(Kind::Job, &id))
    }

    pub(super) fn act(&mut self, id: &str, action: &Action) -> Result<Done, ApiError> {
        if !self.live.contains_key(id) {
            return Err(self.not_live(id));
        }
        match action {
            Action::Cancel => self.end(id, Wanted::Cancel),
            Action::Stop => self.end(id, Wanted::Stop),
            Action::Pause => self.pause(id),
            Action::Resume => self.resume(id),
            Action::Priority(priority) => {
                let changed = self.live_mut(id)?.change(|state| state.priority = *priority);
                changed.map_err(|error| ApiError::disk(&error))
            }
        }?;
        self.settle(id).ok_or_else(|| ApiError::not_found(Kind::Job, id))
    }

    fn end(&mut self, id: &str, wanted: Wanted) -> Result<(), ApiError> {
        let job = self.live.get_mut(id).ok_or_else(|| ApiError::not_found(Kind::Job, id))?;
        if job.state.phase == Phase::Running {
            if job.state.wanted == Some(Wanted::Cancel) {
                let message = format!("{id} is being cancelled already");
                return Err(ApiError::bad_request(message).code("invalid_state"));
            }
            job.change(|state| state.wanted = Some(wanted)).map_err(|error| ApiError::disk(&error))?;
            job.tell(
                Level::Info,
                "stopping",
                if wanted == Wanted::Cancel { "Cancelling" } else { "Stopping after a checkpoint" },
            );
            self.signal(id);
            return Ok(());
        }
        let checkpoint = job.folder.checkpoints().last().copied().filter(|_| wanted == Wanted::Stop);
        let changed = job.change(|state| {
            (state.phase, state.paused) = (Phase::Cancelled, false);
            (state.finished_at, state.result_step) = (Some(seconds_now()), checkpoint);
        });
        changed.map_err(|error| ApiError::disk(&error))?;
        job.tell(Level::Info, "cancelled", "The job was cancelled before it ran to its end");
        Ok(())
    }

    fn pause(&mut self, id: &str) -> Result<(), ApiError> {
        let job = self.live_mut(id)?;
        if job.state.paused || job.state.wanted == Some(Wanted::Pause) {
            return Err(ApiError::bad_request(format!("{id} is paused already")).code("invalid_state"));
        }
        let running = job.state.phase == Phase::Running;
        if running && job.state.wanted.is_some_and(|wanted| wanted != Wanted::Requeue) {
            return Err(ApiError::bad_request(format!("{id} is being stopped")).code("invalid_state"));
        }
        let changed = job.change(|state| match running {
            true => state.wanted = Some(Wanted::Pause),
            false => state.paused = true,
        });
        changed.map_err(|error| ApiError::disk(&error))?;
        job.tell(Level::Info, "paused", if running { "Pausing after a checkpoint" } else { "Paused" });
        if running {
            self.signal(id);
        }
        Ok(())
    }

    fn resume(&mut self, id: &str) -> Result<(), ApiError> {
        let job = self.live_mut(id)?;
        let changed = match (job.state.paused, job.state.wanted) {
            (true, _) => job.change(|state| state.paused = false),
            // It is still writing its checkpoint: it goes on right after.
            (_, Some(Wanted::Pause)) => job.change(|state| state.wanted = Some(Wanted::Requeue)),
            _ => return Err(ApiError::bad_request(format!("{id} is not paused")).code("invalid_state")),
        };
        changed.map_err(|error| ApiError::disk(&error))?;
        job.tell(Level::Info, "queued", "Resumed: back in the queue");
        Ok(())
    }

    pub(super) fn delete(&mut self, id: &str) -> Result<Written, ApiError> {
        if self.live.contains_key(id) {
            let message = format!("{id} is not over: cancel it first");
            return Err(ApiError::bad_request(message).code("invalid_state"));
        }
        let missing = || ApiError::not_found(Kind::Job, id);
        let folder = self.surroundings.data.job(id).ok_or_else(missing)?;
        let hidden = self.surroundings.data.jobs().join(format!(".deleted-{id}"));
        match garden_files::rename(&folder, &hidden) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            other => other.map_err(|error| ApiError::disk(&error))?,
        }
        // Large folders take a while.
        let _ = thread::Builder::new().spawn(move || fs::remove_dir_all(hidden));
        let written = self.surroundings.store.delete_job_later(id);
        self.publish();
        Ok(written)
    }

    /// A plan that was made in the background has arrived.
    pub(super) fn planned(&mut self, id: &str, plan: Result<JobPlan, PlanFault>) {
        let Some(job) = self.live.get_mut(id).filter(|job| job.state.phase == Phase::Validating) else {
            return;
        };
        job.planning = None;
        let fault = match plan {
            Ok(plan) if plan.fits || job.planned_again => {
                let written = serde_json::to_vec_pretty(&plan).map_err(io::Error::from);
                let written = written.and_then(|bytes| garden_files::write(&job.folder.plan(), &bytes));
                if written.is_err() || job.change(|state| state.phase = Phase::Queued).is_err() {
                    // A full disk: planned again at the next look.
                    return;
                }
                if !job.planned_again {
                    job.tell(
                        Level::Info,
                        "queued",
                        "The files are valid and the plan fits; the job is queued",
                    );
                }
                job.plan = Some(plan);
                self.settle(id);
                return;
            }
            Ok(plan) => fault("memory_budget_exceeded", plan.refusal()),
            Err(PlanFault::Refused(Refusal { words, param })) => {
                let code = code_of(param.as_deref());
                Fault { param, ..fault(code, words) }
            }
            Err(_) if job.failed_plans < PLAN_TRIES => {
                job.failed_plans += 1;
                job.not_before = Some(Instant::now() + PLAN_AGAIN * job.failed_plans);
                return;
            }
            Err(error) => fault("planning_failed", error.to_string()),
        };
        self.fail(id, fault);
    }

    /// Ends a job that cannot run.
    pub(super) fn fail(&mut self, id: &str, fault: Fault) {
        let Some(job) = self.live.get_mut(id) else { return };
        let message = fault.message.clone();
        let changed = job.change(|state| {
            (state.phase, state.finished_at, state.fault) = (Phase::Failed, Some(seconds_now()), Some(fault));
        });
        if changed.is_ok() {
            job.tell(Level::Error, "failed", format!("The job failed: {message}"));
            self.settle(id);
        }
    }

    /// Asks everything that runs on this machine to write a checkpoint and end; the next server goes on with it.
    pub(super) fn begin_shutdown(&mut self) {
        self.stopping = true;
        if self.surroundings.runner.goes_on_without_us() {
            return;
        }
        let running = self.live.values_mut().filter(|job| job.state.phase == Phase::Running);
        let mut asked = Vec::new();
        for job in running {
            if job.state.wanted.is_none() && job.change(|state| state.wanted = Some(Wanted::Requeue)).is_ok()
            {
                job.tell(Level::Info, "stopping", "The server ends: a checkpoint is written");
                asked.push(job.id().to_owned());
            }
        }
        asked.iter().for_each(|id| self.signal(id));
    }

    pub(super) fn nothing_runs_here(&self) -> bool {
        self.surroundings.runner.goes_on_without_us()
            || self.live.values().all(|job| job.state.phase != Phase::Running)
    }

    /// Does to the job's process what is wanted, once: a second request would end the trainer without a checkpoint.
    pub(super) fn signal(&mut self, id: &str) {
        let Some(job) = self.live.get_mut(id) else { return };
        let Some(handle) = job.state.handle.clone() else { return };
        match job.state.wanted {
            Some(Wanted::Cancel) => self.surroundings.runner.kill(&job.folder, &handle),
            Some(_) if job.state.told => return,
            Some(_) => self.surroundings.runner.stop(&job.folder, &handle),
            None => return,
        }
        let _ = job.change(|state| state.told = true);
    }

    fn live_mut(&mut self, id: &str) -> Result<&mut Live, ApiError> {
        self.live.get_mut(id).ok_or_else(|| ApiError::not_found(Kind::Job, id))
    }

    /// Why nothing can be done with a job that is not live.
    fn not_live(&self, id: &str) -> ApiError {
        let state = self.surroundings.data.job(id).and_then(|path| JobFolder::at(path).read_state().ok());
        match state {
            Some(state) => {
                let message = format!("{id} is over: it has {}", state.phase.status());
                ApiError::bad_request(message).code("invalid_state")
            }
            None => ApiError::not_found(Kind::Job, id),
        }
    }
}

fn fault(code: &str, message: String) -> Fault {
    Fault { code: code.to_owned(), message, param: None }
}

/// Copies a checkpoint's folder into an output folder, by links: it costs no space, and stays if the other is deleted.
fn link_folder(from: &Path, into: &Path) -> io::Result<()> {
    let name = from.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let to = into.join(name);
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::hard_link(entry.path(), to.join(entry.file_name()))?;
        }
    }
    garden_files::sync_folder(&to)
}
