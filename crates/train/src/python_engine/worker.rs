//! The worker process, and the messages between it and this program.
//!
//! A worker is asked one thing at a time: a line of JSON, followed by the bytes of the arrays that it names.
//! It answers with a line of JSON. Both travel over a socket that is the worker's standard input: libraries
//! print on the other two, which go to a log. The worker is ended when this value is dropped.

use super::{death, find::Interpreter};
use crate::cancel::Cancel;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

/// The worker's output, in the run's folder.
const LOG: &str = "worker.log";
/// How often a run that waits for the model looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why a worker could not go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not be started.
    #[error("{}: {source}", path.display())]
    Start {
        /// The interpreter, or the worker's log.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its process is gone.
    #[error("the Python worker {how}; the end of {}:\n{tail}", log.display())]
    Died {
        /// Who ended it.
        how: String,
        /// Where it wrote.
        log: PathBuf,
        /// What it wrote last.
        tail: String,
    },
    /// It said why it cannot go on.
    #[error("the Python worker: {error}")]
    Failed {
        /// In its own words.
        error: String,
    },
    /// It found no space for what it was to save.
    #[error("the Python worker: {error}")]
    Full {
        /// In its own words.
        error: String,
        /// The same for whoever looks for the kind.
        source: io::Error,
    },
    /// It said something that is no answer.
    #[error("the Python worker gave no answer but {0}")]
    Strange(String),
}

/// What a worker says.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Answer(Value),
    Note(String),
    Failed(String),
    Full(String),
}

/// An array of a message: its description for the header, and its bytes.
pub(super) struct Array<'a> {
    pub name: &'static str,
    pub kind: &'static str,
    pub shape: Vec<usize>,
    pub bytes: &'a [u8],
}

impl Array<'_> {
    pub fn header(&self) -> Value {
        json!({"name": self.name, "kind": self.kind, "shape": self.shape})
    }
}

/// A worker at work.
pub(super) struct Worker {
    child: Child,
    answers: BufReader<UnixStream>,
    log: PathBuf,
    /// Where this worker's part of the log begins.
    log_from: u64,
    kills_before: Option<u64>,
}

impl Worker {
    /// Starts a worker with the settings in a file; its log goes into `output`.
    pub fn start(interpreter: &Interpreter, settings: &Path, output: &Path) -> Result<Self, WorkerError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| WorkerError::Start { path, source }
        };
        let log = output.join(LOG);
        let file = File::options().create(true).append(true).open(&log).map_err(failed(&log))?;
        let log_from = file.metadata().map_err(failed(&log))?.len();
        let errors = file.try_clone().map_err(failed(&log))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed(&interpreter.path))?;
        let kills_before = death::out_of_memory_kills();
        let mut command = interpreter.command();
        command.args(["-m", "model_garden.worker"]).arg(settings);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(file).stderr(errors);
        // Ctrl-C reaches this program alone, which asks the worker to save and end.
        command.process_group(0);
        let child = command.spawn().map_err(failed(&interpreter.path))?;
        Ok(Self { child, answers: BufReader::new(ours), log, log_from, kills_before })
    }

    /// Waits until the worker has the model, which may take minutes; gives nothing if the run is to end before.
    pub fn ready(
        &mut self,
        cancel: &Cancel,
        note: &mut dyn FnMut(String),
    ) -> Result<Option<Value>, WorkerError> {
        let log = self.log.clone();
        let failed = move |source| WorkerError::Start { path: log.clone(), source };
        self.answers.get_ref().set_read_timeout(Some(LOOK_EVERY)).map_err(&failed)?;
        // A signal interrupts a read that has a time limit.
        let in_vain = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
        while self.answers.fill_buf().is_err_and(|error| in_vain.contains(&error.kind())) {
            if cancel.is_cancelled() {
                return Ok(None);
            }
        }
        self.answers.get_ref().set_read_timeout(None).map_err(&failed)?;
        self.answer(note).map(Some)
    }

    /// Asks for something and waits for the answer. `note` is told what the worker says before it.
    pub fn ask(
        &mut self,
        header: &Value,
        arrays: &[Array<'_>],
        note: &mut dyn FnMut(String),
    ) -> Result<Value, WorkerError> {
        let asked = self.send(header, arrays);
        // A worker that fails says so before it goes: its words come before the broken pipe.
        let answer = self.answer(note);
        match (asked, answer) {
            (Err(_), Ok(_)) => Err(self.died()),
            (_, answer) => answer,
        }
    }

    fn send(&mut self, header: &Value, arrays: &[Array<'_>]) -> io::Result<()> {
        let socket = self.answers.get_mut();
        socket.write_all(format!("{header}\n").as_bytes())?;
        arrays.iter().try_for_each(|array| socket.write_all(array.bytes))
    }

    /// Waits for an answer.
    fn answer(&mut self, note: &mut dyn FnMut(String)) -> Result<Value, WorkerError> {
        loop {
            let mut line = String::new();
            match self.answers.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(self.died()),
                Ok(_) => {}
            }
            match serde_json::from_str(&line) {
                Ok(Said::Answer(value)) => return Ok(value),
                Ok(Said::Note(text)) => note(text),
                Ok(Said::Failed(error)) => return Err(WorkerError::Failed { error }),
                Ok(Said::Full(error)) => {
                    return Err(WorkerError::Full { error, source: io::ErrorKind::StorageFull.into() });
                }
                Err(_) if !line.ends_with('\n') => return Err(self.died()),
                Err(_) => return Err(WorkerError::Strange(line.trim().chars().take(200).collect())),
            }
        }
    }

    /// Removes the log if this worker wrote nothing into it.
    pub fn forget_empty_log(&self) {
        if fs::metadata(&self.log).is_ok_and(|file| file.len() == 0) {
            // An empty file does no harm.
            let _ = fs::remove_file(&self.log);
        }
    }

    fn died(&mut self) -> WorkerError {
        // It closed its side: what is left of it, if anything, can only be ended.
        let status = match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            _ => self.wait_a_moment(),
        };
        let how = match status {
            Ok(status) => death::how(status, self.kills_before, death::out_of_memory_kills()),
            Err(error) => format!("is gone ({error})"),
        };
        let tail = death::tail(&self.log, self.log_from);
        WorkerError::Died { how, log: self.log.clone(), tail }
    }

    /// A process closes its socket a moment before its status is there.
    fn wait_a_moment(&mut self) -> io::Result<std::process::ExitStatus> {
        for _ in 0..100 {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        self.end_at_once();
        self.child.wait()
    }

    /// Ends the worker and the processes that it started.
    fn end_at_once(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // It may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.end_at_once();
            let _ = self.child.wait();
        }
    }
}
