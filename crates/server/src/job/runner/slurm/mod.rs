//! Keepers as jobs of Slurm, on any machine that sees the data folder.
//!
//! A handle is the name under which a job is submitted: the job's id and its attempt. Slurm starts a job again by itself when its machine fails or when it makes
//! room for another (`--requeue`): that is the same attempt, and the trainer goes on from its checkpoint. A job that was
//! stopped at its memory limit (exit code 75) is submitted again by the server, as a new attempt: the server counts
//! restarts, whoever runs them. However often something is submitted, a keeper works only if the job's state names its
//! attempt and no other keeper has the folder's lock.

mod commands;
mod follower;
mod script;

use super::{ChildProgram, RunState, Runner, RunnerError, keeper_words};
use crate::job::folder::JobFolder;
use follower::{Action, Follower, Submission};
use std::ffi::OsString;

/// Runs keepers by Slurm.
#[derive(Debug)]
pub(crate) struct Slurm {
    program: ChildProgram,
    /// Options for `sbatch` from whoever runs the server: a partition, an account, processors.
    options: Vec<String>,
    follower: Follower,
}

impl Slurm {
    /// A runner that hands `options` to `sbatch` beside its own.
    pub(crate) fn new(program: ChildProgram, options: Vec<String>) -> std::io::Result<Self> {
        Ok(Self { program, options, follower: Follower::start()? })
    }
}

/// The name of an attempt.
fn name(job: &JobFolder, attempt: u32) -> String {
    let id = job.path().file_name().unwrap_or_default().to_string_lossy();
    format!("{id}.{attempt}")
}

impl Runner for Slurm {
    fn start(&self, job: &JobFolder, attempt: u32, bytes: u64) -> Result<String, RunnerError> {
        let program = OsString::from(&self.program.program);
        let words = std::iter::once(program).chain(keeper_words(job, attempt, bytes));
        let script = script::write(&self.program.environment(), words, &job.events());
        garden_files::write(&job.path().join(script::NAME), &script)?;
        let (name, folder, options) = (name(job, attempt), job.path().to_owned(), self.options.clone());
        self.follower.submit(Submission { name: name.clone(), folder, bytes, options });
        Ok(name)
    }

    fn state(&self, job: &JobFolder, handle: &str) -> RunState {
        match self.follower.state(handle) {
            // Slurm has let go of it; its processes may not have.
            RunState::Gone => match job.is_kept() {
                Ok(true) => RunState::Running,
                Ok(false) => RunState::Gone,
                Err(_) => RunState::Unknown,
            },
            state => state,
        }
    }

    fn stop(&self, _job: &JobFolder, handle: &str) {
        self.follower.order(handle, Action::Stop);
    }

    fn kill(&self, _job: &JobFolder, handle: &str) {
        self.follower.order(handle, Action::Kill);
    }

    fn handle_of(&self, job: &JobFolder, attempt: u32) -> Option<String> {
        Some(name(job, attempt))
    }

    fn goes_on_without_us(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
