//! Keepers as processes of this machine, each in a session of its own.
//!
//! A handle is the keeper's PID with the moment it started, so that a PID that was given to somebody else is not
//! taken for it. Signals go to that process only.

use super::{ChildProgram, RunState, Runner, RunnerError, keeper_words};
use crate::job::folder::JobFolder;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::OpenOptions,
    os::unix::process::CommandExt,
    process::Child,
    sync::{Mutex, PoisonError},
};

/// Runs keepers on this machine.
pub(crate) struct Local {
    program: ChildProgram,
    /// Those that this server started; they are waited for, so that none stays behind as a zombie.
    children: Mutex<Vec<Child>>,
}

impl Local {
    pub(crate) fn new(program: ChildProgram) -> Self {
        Self { program, children: Mutex::default() }
    }

    fn reap(&self) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    fn signal(&self, handle: &str, signal: Signal) {
        if let Some(process) = ProcessName::parse(handle).filter(ProcessName::lives)
            && let Some(pid) = Pid::from_raw(process.pid)
        {
            // It may have ended by itself a moment ago.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Runner for Local {
    fn start(&self, job: &JobFolder, attempt: u32, bytes: u64) -> Result<String, RunnerError> {
        let events = OpenOptions::new().create(true).append(true).open(job.events())?;
        let mut command = self.program.command();
        command.args(keeper_words(job, attempt, bytes));
        command.stdout(events.try_clone()?).stderr(events).process_group(0);
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        let start = ProcessName::start_of(pid).unwrap_or_default();
        Ok(ProcessName { pid, start }.to_string())
    }

    fn state(&self, job: &JobFolder, handle: &str) -> RunState {
        self.reap();
        let alive = ProcessName::parse(handle).is_some_and(|process| process.lives());
        match job.is_kept() {
            Ok(kept) if kept || alive => RunState::Running,
            Ok(_) => RunState::Gone,
            Err(_) => RunState::Unknown,
        }
    }

    fn stop(&self, _job: &JobFolder, handle: &str) {
        self.signal(handle, Signal::TERM);
    }

    fn kill(&self, _job: &JobFolder, handle: &str) {
        self.signal(handle, Signal::KILL);
    }

    /// From the keeper's own record.
    fn handle_of(&self, job: &JobFolder, attempt: u32) -> Option<String> {
        Some(job.read_attempt(attempt).ok()??.process)
    }
}

/// A process that no other can be mistaken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessName {
    pid: i32,
    /// In ticks since the machine started.
    start: u64,
}

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.pid, self.start)
    }
}

impl ProcessName {
    /// This process.
    pub(crate) fn of_this() -> Self {
        let pid = std::process::id().cast_signed();
        Self { pid, start: Self::start_of(pid).unwrap_or_default() }
    }

    pub(crate) fn parse(handle: &str) -> Option<Self> {
        let (pid, start) = handle.split_once('@')?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    /// When a process started; nothing if there is none, or only what is left of one.
    fn start_of(pid: i32) -> Option<u64> {
        let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
        (stat.state != 'Z').then_some(stat.starttime)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn lives(&self) -> bool {
        Self::start_of(self.pid) == Some(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let pid = std::process::id().cast_signed();
        let start = ProcessName::start_of(pid).unwrap();
        let us = ProcessName::parse(&ProcessName { pid, start }.to_string()).unwrap();
        assert!(us.lives());
        assert!(!ProcessName { start: start + 1, ..us }.lives(), "the PID was given to another process");
        assert_eq!(ProcessName::parse("12"), None);
    }
}
