//! Help for tests that run the real binary against real Python processes.

#![allow(dead_code, missing_docs, reason = "each test file uses a part")]

pub mod server;
pub mod terminal;
pub mod training;

use procfs::process::Process;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The binary under test.
pub fn model_garden() -> Command {
    Command::new(env!("CARGO_BIN_EXE_model-garden"))
}

/// A script of `tests/scripts`, to be run by python3, which the project needs anyway.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name)
}

/// `model-garden memory run FLAGS -- python3 -u SCRIPT ARGS`.
pub fn memory_run(flags: &[&str], name: &str, arguments: &[&str]) -> Command {
    let mut command = model_garden();
    command
        .args(["memory", "run"])
        .args(flags)
        .args(["--", "python3", "-u"])
        .arg(script(name))
        .args(arguments);
    command.stdin(Stdio::null());
    command
}

/// The same command, started as a terminal starts it: with no signal ignored. What runs in the background of
/// a script has SIGINT and SIGQUIT ignored, under `nohup` SIGHUP, tests and all, and what is ignored from the
/// start stays ignored. Python itself ignores SIGPIPE.
pub fn from_terminal(command: &Command) -> Command {
    const HEED: &str = "import os, signal, sys
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(ignored, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])";
    let mut started = Command::new("python3");
    started.args(["-c", HEED]).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    started
}

/// What a finished run left.
pub struct Finished {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    pub fn of(command: &mut Command) -> Self {
        command.output().expect("the binary runs").into()
    }

    /// The JSON lines among what `run` says.
    pub fn json(&self) -> Vec<Value> {
        self.errors.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The last of them.
    pub fn summary(&self) -> Value {
        self.json()
            .pop()
            .filter(|last| last["event"] == "summary")
            .unwrap_or_else(|| panic!("no summary:\n{}", self.errors))
    }

    /// The highest level that a reading saw.
    pub fn highest_level(&self) -> u64 {
        let owned = |line: &Value| {
            let sample = &line["snapshot"]["sample"];
            Some(sample["anon"].as_u64()? + sample["shmem"].as_u64()? + sample["swap"].as_u64()?)
        };
        self.json().iter().filter_map(owned).max().expect("readings")
    }

    /// The PIDs that the script printed as `pid N`.
    pub fn pids(&self) -> Vec<i32> {
        self.output.lines().filter_map(|line| line.strip_prefix("pid ")?.parse().ok()).collect()
    }
}

/// A process under way, ended with the test whatever happens.
pub struct Running {
    pub child: Child,
    output: BufReader<Box<dyn Read + Send>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let output: Box<dyn Read + Send> = Box::new(child.stdout.take().expect("piped"));
        let output = BufReader::new(output);
        Self { child, output }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Reads lines until one starts with `start`, and returns what follows.
    pub fn await_line(&mut self, start: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no line '{start}...'; {}", self.errors());
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The next `count` numbers printed as `pid N`.
    pub fn await_pids(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.await_line("pid ").parse().unwrap()).collect()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        signal_process(self.pid(), signal);
    }

    pub fn finish(mut self) -> Finished {
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        let errors = self.errors();
        let code = self.child.wait().unwrap().code();
        Finished { code, output, errors }
    }

    /// Stops reading what it prints.
    pub fn leave(&mut self) -> &mut Child {
        let (nobody, _) = std::io::pipe().expect("a pipe");
        drop(std::mem::replace(&mut self.output, BufReader::new(Box::new(nobody))));
        &mut self.child
    }

    fn errors(&mut self) -> String {
        let mut errors = Vec::new();
        if let Some(mut stream) = self.child.stderr.take() {
            stream.read_to_end(&mut errors).unwrap();
        }
        String::from_utf8_lossy(&errors).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal_process(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether a process lives; a zombie does not.
pub fn lives(pid: i32) -> bool {
    Process::new(pid).and_then(|process| process.stat()).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// The living PIDs among these.
pub fn living(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|pid| lives(*pid)).collect()
}

/// Waits for something to come true; the deadline only turns a hang into a failure.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
