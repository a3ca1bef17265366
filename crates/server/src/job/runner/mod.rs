//! Who starts the keepers of jobs: this machine, or Slurm.
//!
//! A [`Runner`] starts `PROGRAM serve-keep JOB --attempt N --limit BYTES` and gives a handle, which the job's state
//! records before anything else happens. With the handle and the job's folder it tells later, and after a restart of
//! the server, whether that keeper waits, runs or is gone.

mod local;
mod slurm;

pub(crate) use local::{Local, ProcessName};
pub(crate) use slurm::Slurm;

use super::folder::JobFolder;
use std::{ffi::OsString, io, path::PathBuf};

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunState {
    /// It was accepted and has not begun.
    Waiting,
    /// A process works on it.
    Running,
    /// No process works on it, and none will.
    Gone,
    /// The scheduler does not want it, in its words. No process works on it.
    Refused(String),
    /// Nobody can say at the moment; ask again.
    Unknown,
}

/// Why a keeper could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub(crate) enum RunnerError {
    #[error("cannot start the job's process: {0}")]
    Io(#[from] io::Error),
}

/// Starts and ends the keepers of jobs.
pub(crate) trait Runner: Send {
    /// Starts the keeper of an attempt, which may take so many bytes; gives a handle.
    fn start(&self, job: &JobFolder, attempt: u32, bytes: u64) -> Result<String, RunnerError>;
    /// Where the run behind a handle is.
    fn state(&self, job: &JobFolder, handle: &str) -> RunState;
    /// Asks it to end after a checkpoint.
    fn stop(&self, job: &JobFolder, handle: &str);
    /// Ends it at once.
    fn kill(&self, job: &JobFolder, handle: &str);
    /// The handle of an attempt, where the server died before it wrote the handle down; nothing if nobody knows it yet.
    fn handle_of(&self, job: &JobFolder, attempt: u32) -> Option<String>;
    /// Whether its jobs should go on while the server is not there.
    fn goes_on_without_us(&self) -> bool {
        false
    }
}

/// How a child of the server is started: the program, and an environment without secrets.
#[derive(Debug, Clone)]
pub(crate) struct ChildProgram {
    /// The `model-garden` program.
    pub program: PathBuf,
    /// Where children may cache; also their home.
    pub cache: PathBuf,
    /// The empty folder in which they run.
    pub empty: PathBuf,
}

/// Tells a child of this program to end when its standard input does.
pub const ENDS_WITH_STDIN: &str = "MODEL_GARDEN_ENDS_WITH_STDIN";

/// What children may see of the server's environment.
const PASSED: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TMPDIR", "MODEL_GARDEN_ISA"];

impl ChildProgram {
    /// The environment of every child.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let passed = PASSED.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
        let cache = self.cache.as_os_str().to_owned();
        let hub = self.cache.join("huggingface").into_os_string();
        let own = [("HOME", cache.clone()), ("XDG_CACHE_HOME", cache), ("HF_HOME", hub)];
        passed.chain(own.map(|(name, value)| (OsString::from(name), value))).collect()
    }

    /// A child's words without the path of the server's data folder.
    pub(crate) fn without_folders(&self, words: &str) -> String {
        let root = self.cache.parent().unwrap_or(&self.cache).to_string_lossy();
        words.replace(&format!("{root}/"), "")
    }

    /// A command that ends with the server, even with one that is killed: it reads a line that breaks then. Whoever
    /// spawns it keeps the child's `stdin` for as long as it should live.
    pub(crate) fn helper_command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::from(self.command());
        command.env(ENDS_WITH_STDIN, "1").stdin(std::process::Stdio::piped()).kill_on_drop(true);
        command
    }

    /// A command of this program, with that environment and nothing else of ours.
    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command.env_clear().envs(self.environment()).stdin(std::process::Stdio::null());
        command.current_dir(&self.empty);
        command
    }
}

/// The words of a keeper's command line after the program.
pub(crate) fn keeper_words(job: &JobFolder, attempt: u32, bytes: u64) -> Vec<OsString> {
    vec![
        "serve-keep".into(),
        job.path().into(),
        "--attempt".into(),
        attempt.to_string().into(),
        "--limit".into(),
        bytes.to_string().into(),
    ]
}
