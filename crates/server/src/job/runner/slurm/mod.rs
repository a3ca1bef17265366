//! Keepers as jobs of Slurm, on any machine that sees the data folder.
//!
//! A handle is Slurm's number of the job. Slurm starts a job again by itself when its machine fails or when it makes
//! room for another (`--requeue`): that is the same attempt, and the trainer goes on from its checkpoint. A job that was
//! stopped at its memory limit (exit code 75) is submitted again by the server, as a new attempt: the server counts
//! restarts, whoever runs them. However often something is submitted, a keeper works only if the job's state names its
//! attempt and no other keeper has the folder's lock.

mod commands;
mod follower;
mod script;

use super::{ChildProgram, RunState, Runner, RunnerError, keeper_words};
use crate::job::folder::JobFolder;
use commands::Failure;
use follower::{Action, Follower};
use std::{ffi::OsString, path::Path};

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

    /// Submits a script under a name of its own. A job that already waits or runs under that name is that one: the
    /// server died, or lost its patience, after it was submitted.
    fn submit(&self, folder: &Path, name: &str, bytes: u64, script: &[u8]) -> Result<u64, RunnerError> {
        if let Some(number) = commands::find(name).map_err(refused)? {
            return Ok(number);
        }
        garden_files::write(&folder.join(script::NAME), script)?;
        let number = commands::submit(folder, name, bytes, &self.options).map_err(refused)?;
        self.follower.submitted();
        Ok(number)
    }
}

impl Runner for Slurm {
    fn start(&self, job: &JobFolder, attempt: u32, bytes: u64) -> Result<String, RunnerError> {
        let program = OsString::from(&self.program.program);
        let words = std::iter::once(program).chain(keeper_words(job, attempt, bytes));
        let script = script::write(&self.program.environment(), words, &job.events());
        let id = job.path().file_name().unwrap_or_default().to_string_lossy();
        let number = self.submit(job.path(), &format!("{id}.{attempt}"), bytes, &script)?;
        Ok(number.to_string())
    }

    fn state(&self, job: &JobFolder, handle: &str) -> RunState {
        let Ok(number) = handle.parse() else { return RunState::Gone };
        match self.follower.state(number) {
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
        self.order(handle, Action::Stop);
    }

    fn kill(&self, _job: &JobFolder, handle: &str) {
        self.order(handle, Action::Kill);
    }

    fn goes_on_without_us(&self) -> bool {
        true
    }
}

impl Slurm {
    fn order(&self, handle: &str, action: Action) {
        if let Ok(number) = handle.parse() {
            self.follower.order(number, action);
        }
    }
}

fn refused(failure: Failure) -> RunnerError {
    RunnerError::Refused(failure.to_string())
}

#[cfg(test)]
mod tests;
