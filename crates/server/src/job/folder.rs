//! A job's folder: every file of a job, read and written.
//!
//! The folder appears whole, under its own name, once its record and its first state are in it. The server writes
//! the state and the history, the keeper its attempts and the trace, and the trainer its events and the output: no
//! file has two writers.

use super::record::{AttemptRecord, JobRecord, JobState};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The largest record that is read; a plan and a list of settings are a few kilobytes.
const LARGEST_RECORD: u64 = 4 << 20;

/// The folder of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobFolder {
    path: PathBuf,
}

impl JobFolder {
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes the folder of a new job below `jobs`: filled under a hidden name, then renamed.
    pub(crate) fn create(
        jobs: &Path,
        record: &JobRecord,
        state: &JobState,
        fill: impl FnOnce(&Self, &Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let unfinished = Self::at(jobs.join(format!(".new-{}", record.id)));
        let named = Self::at(jobs.join(&record.id));
        fs::create_dir_all(unfinished.path.join("attempts"))?;
        fs::create_dir_all(unfinished.output())?;
        write_json(&unfinished.path.join("job.json"), record)?;
        unfinished.write_state(state)?;
        fill(&unfinished, &named.path)?;
        garden_files::rename(&unfinished.path, &named.path)?;
        Ok(named)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The trainer's configuration file.
    pub(crate) fn settings(&self) -> PathBuf {
        self.path.join("settings.json")
    }

    /// The events that the trainer writes.
    pub(crate) fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// What the server did with the job.
    pub(crate) fn history(&self) -> PathBuf {
        self.path.join("history.jsonl")
    }

    /// The memory trace of an attempt: each has its own.
    pub(crate) fn trace(&self, attempt: u32) -> PathBuf {
        self.path.join(format!("memory-{attempt}.jsonl"))
    }

    /// The trainer's output folder.
    pub(crate) fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    /// The memory plan, as the planner printed it.
    pub(crate) fn plan(&self) -> PathBuf {
        self.path.join("plan.json")
    }

    fn attempt_path(&self, attempt: u32) -> PathBuf {
        self.path.join("attempts").join(format!("{attempt}.json"))
    }

    pub(crate) fn read_record(&self) -> io::Result<JobRecord> {
        read_json(&self.path.join("job.json"))
    }

    pub(crate) fn read_state(&self) -> io::Result<JobState> {
        read_json(&self.path.join("state.json"))
    }

    pub(crate) fn write_state(&self, state: &JobState) -> io::Result<()> {
        write_json(&self.path.join("state.json"), state)
    }

    pub(crate) fn read_plan(&self) -> io::Result<serde_json::Value> {
        read_json(&self.plan())
    }

    /// The keeper's record; nothing where the attempt never began.
    pub(crate) fn read_attempt(&self, attempt: u32) -> io::Result<Option<AttemptRecord>> {
        match read_json(&self.attempt_path(attempt)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    pub(crate) fn write_attempt(&self, attempt: u32, record: &AttemptRecord) -> io::Result<()> {
        write_json(&self.attempt_path(attempt), record)
    }

    /// Appends a line to the history.
    pub(crate) fn append_history(&self, line: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.history())?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// Takes the keeper's lock for as long as the file given back lives; nothing if another process has it. The lock
    /// passes to every process that is started meanwhile, and ends with the last of them: a job whose keeper was
    /// killed is kept until the trainer is gone too.
    pub(crate) fn keep(&self) -> io::Result<Option<File>> {
        let lock = self.lock()?;
        if let Some(file) = &lock {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
        }
        Ok(lock)
    }

    /// Takes the lock for a moment, as a keeper would: while the file given back lives, no keeper can begin. Nothing if a
    /// process is at work on the job.
    pub(crate) fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path.join("keeper.lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Whether a process is at work on the job.
    pub(crate) fn is_kept(&self) -> io::Result<bool> {
        Ok(self.lock()?.is_none())
    }

    /// The steps of the whole checkpoints in the output folder, in order.
    pub(crate) fn checkpoints(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.output()) else { return Vec::new() };
        let step = |entry: fs::DirEntry| -> Option<u64> {
            let step = entry.file_name().to_str()?.strip_prefix("checkpoint-")?.parse().ok()?;
            entry.path().join("manifest.json").exists().then_some(step)
        };
        let mut steps: Vec<u64> = entries.flatten().filter_map(step).collect();
        steps.sort_unstable();
        steps
    }

    /// The folder of a checkpoint.
    pub(crate) fn checkpoint(&self, step: u64) -> PathBuf {
        self.output().join(format!("checkpoint-{step}"))
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    garden_files::write(path, &serde_json::to_vec_pretty(value)?)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    if fs::metadata(path)?.len() > LARGEST_RECORD {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than a record ever is"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_job_is_kept_until_the_last_process_of_its_keeper_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(root.path());
        assert!(!folder.is_kept().unwrap());
        let lock = folder.keep().unwrap().expect("nobody has it");
        assert!(folder.keep().unwrap().is_none(), "a second keeper is refused");
        let mut trainer = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(lock);
        assert!(folder.is_kept().unwrap(), "the keeper is gone, its trainer is not");
        drop(trainer.stdin.take());
        trainer.wait().unwrap();
        assert!(!folder.is_kept().unwrap());
    }
}
