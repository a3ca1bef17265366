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
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::{ffi::OsString, io, os::unix::process::ExitStatusExt, path::PathBuf, process::ExitStatus};

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
#[derive(Debug, Clone, Default)]
pub(crate) struct ChildProgram {
    /// The `model-garden` program.
    pub program: PathBuf,
    /// Where children may cache; also their home.
    pub cache: PathBuf,
    /// The empty folder in which they run.
    pub empty: PathBuf,
    /// Folders of models, whose paths are nobody's business.
    pub models: Vec<PathBuf>,
    /// Bytes of the largest file that a child may write which reads what clients have sent.
    pub largest_file: Option<u64>,
}

/// Tells a child of this program to end when its standard input does.
pub const ENDS_WITH_STDIN: &str = "MODEL_GARDEN_ENDS_WITH_STDIN";

/// What children may see of the server's environment.
const PASSED: [&str; 14] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "MODEL_GARDEN_ISA",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    // An engine in Python finds its packages and its GPU by these, and heeds what the owner chose for PyTorch.
    "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
];

impl ChildProgram {
    /// The environment of every child.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        self.environment_from(|name| std::env::var_os(name))
    }

    fn environment_from(&self, ours: impl Fn(&str) -> Option<OsString>) -> Vec<(OsString, OsString)> {
        let passed = PASSED.iter().filter_map(|name| Some((OsString::from(name), ours(name)?)));
        let cache = self.cache.as_os_str().to_owned();
        let hub = self.cache.join("huggingface").into_os_string();
        let own = [
            ("HOME", cache.clone()),
            ("XDG_CACHE_HOME", cache),
            ("HF_HOME", hub),
            // Rows come from clients, who should not find out which files there are.
            (garden_data::IMAGES_INSIDE, "1".into()),
        ];
        passed.chain(own.map(|(name, value)| (OsString::from(name), value))).collect()
    }

    /// A child's words without the paths of the server's data folder and of its folders of models.
    pub(crate) fn without_folders(&self, words: &str) -> String {
        let root = self.cache.parent().unwrap_or(&self.cache);
        let folders =
            self.models.iter().flat_map(|folder| [Some(folder.clone()), folder.canonicalize().ok()]);
        let folders = folders.flatten().chain([root.to_owned()]).filter(|folder| folder.is_absolute());
        folders.fold(words.to_owned(), |words, folder| words.replace(&format!("{}/", folder.display()), ""))
    }

    /// Bounds the files that a child which has just begun may write. One that goes on writing is ended.
    pub(crate) fn bound_files(&self, child: Option<u32>) {
        let pid = child.and_then(|id| Pid::from_raw(id.cast_signed()));
        let limit = Rlimit { current: self.largest_file, maximum: self.largest_file };
        // A child that is gone already needs no bound.
        let _ = pid.map(|pid| prlimit(Some(pid), Resource::Fsize, limit));
    }

    /// Why a child was ended, if it was for a file that grew too large.
    pub(crate) fn wrote_too_much(&self, status: ExitStatus) -> Option<String> {
        let most = self.largest_file.filter(|_| status.signal() == Some(Signal::XFSZ.as_raw()))?;
        Some(format!("the rows take more than {} when they are written out", garden_memory::ByteSize(most)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_writes_without_end_is_ended_and_the_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let program = ChildProgram {
            program: "/bin/sh".into(),
            cache: folder.path().to_owned(),
            empty: folder.path().to_owned(),
            largest_file: Some(1 << 20),
            ..ChildProgram::default()
        };
        let mut child = program.command().args(["-c", "exec yes > rows"]).spawn().unwrap();
        program.bound_files(Some(child.id()));
        let words = program.wrote_too_much(child.wait().unwrap()).unwrap();
        assert!(words.starts_with("the rows take more than 1"), "{words}");
    }

    #[test]
    fn children_know_the_hub_and_what_pytorch_needs_and_no_secret_and_read_no_images_by_path() {
        let environment = ChildProgram::default().environment_from(|name| Some(format!("our {name}").into()));
        let get = |name: &str| {
            let found = environment.iter().find(|(key, _)| *key == *name);
            found.map(|(_, value)| value.to_string_lossy().into_owned())
        };
        for name in ["HF_HUB_OFFLINE", "HF_ENDPOINT", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"] {
            assert_eq!(get(name), Some(format!("our {name}")));
        }
        assert_eq!((get("HF_TOKEN"), get("MODEL_GARDEN_IMAGES_INSIDE")), (None, Some("1".to_owned())));
    }

    #[test]
    fn words_lose_the_folders_of_data_and_models() {
        let program = ChildProgram {
            cache: "/var/garden/cache".into(),
            models: vec!["/srv/models".into(), "relative".into()],
            ..ChildProgram::default()
        };
        let words = "/srv/models/tiny/config.json and /var/garden/blobs/a: relative/b, /etc/passwd";
        assert_eq!(program.without_folders(words), "tiny/config.json and blobs/a: relative/b, /etc/passwd");
    }
}
