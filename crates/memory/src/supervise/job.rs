//! One attempt at the command: started under a guard, told, ended, and never left behind.
//!
//! In come the command and its streams; out come the guard's reports, as [`Wake`]s. Dropping a job ends every process
//! of its tree, whatever the reason.

use super::{
    SuperviseError,
    end::end_below,
    guard::{GuardOrders, Report, guard_command},
    streams::{self, Flow, Passage, Streams},
};
use crate::{
    probe::Probe,
    steps::{StepBoard, StepPatterns},
    watch::Wake,
};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Write},
    os::unix::{
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    process::Child,
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

/// Our own program starts within milliseconds, except on a machine that is already out of memory.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// What a job needs besides its guard's orders.
pub(super) struct JobSetup<'a> {
    pub guard: &'a GuardOrders,
    pub environment: &'a [(&'a str, &'a OsStr)],
    pub passage: &'a Passage,
    pub board: &'a StepBoard,
    pub patterns: &'a StepPatterns,
    pub wakes: &'a Sender<Wake>,
}

/// A command under way.
pub(super) struct Job {
    guard: Child,
    line: UnixStream,
    command: Pid,
    flow: Option<Flow>,
}

impl Job {
    pub fn start(setup: &JobSetup<'_>) -> Result<Self, SuperviseError> {
        let failed = |doing| move |source| SuperviseError::System { doing, source };
        let listener = UnixListener::bind(&setup.guard.control).map_err(failed("make the guard's socket"))?;
        let streams = Streams::open(setup.passage).map_err(failed("open the command's streams"))?;
        let mut guard = spawn_guard(setup, &streams).map_err(failed("start the guard"))?;
        if let Some(input) = guard.stdin.take() {
            streams::feed_input(input);
        }
        let flow = streams.flow(setup.passage, setup.board, setup.patterns);
        let met = meet(&listener, &mut guard);
        let _ = std::fs::remove_file(&setup.guard.control);
        let (line, command) = match met {
            Ok(met) => met,
            Err(error) => {
                let _ = guard.kill();
                let _ = guard.wait();
                return Err(failed("meet the guard")(error));
            }
        };
        let job = Self { guard, line, command, flow: Some(flow) };
        let reader = job.line.try_clone().map_err(failed("listen to the guard"))?;
        let wakes = setup.wakes.clone();
        thread::spawn(move || pass_reports(reader, &wakes));
        Ok(job)
    }

    /// The command's PID.
    pub fn pid(&self) -> i32 {
        self.command.as_raw_nonzero().get()
    }

    /// A probe of the whole tree.
    pub fn probe(&self) -> Probe {
        Probe::below(self.guard_pid(), self.pid())
    }

    /// Signals the command alone; its workers are its own to stop.
    pub fn tell(&self, signal: Signal) {
        let _ = kill_process(self.command, signal);
    }

    /// Signals the command's process group, as a terminal would.
    pub fn tell_group(&self, signal: Signal) {
        let _ = kill_process_group(self.command, signal);
    }

    /// Our terminal has another size, and so has the command's.
    pub fn resize(&self) {
        if let Some(flow) = &self.flow {
            flow.resize();
        }
        self.tell_group(Signal::WINCH);
    }

    /// Ends every process of the tree; what would not go is returned.
    pub fn end(&self) -> Vec<i32> {
        end_below(self.guard_pid())
    }

    /// After the guard has gone: says goodbye, takes what output is left, and takes the guard in.
    pub fn finish(mut self) {
        if let Some(flow) = self.flow.take() {
            self.dismiss();
            flow.drain();
        }
    }

    fn guard_pid(&self) -> i32 {
        self.guard.id().cast_signed()
    }

    fn dismiss(&mut self) {
        let _ = self.line.write_all(b".");
        // If the guard was killed, its orphans are ours now, for we adopt them too.
        if !self.guard.wait().is_ok_and(|status| status.success()) {
            end_below(getpid().as_raw_nonzero().get());
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.flow.is_some() {
            self.end();
            self.dismiss();
        }
    }
}

fn spawn_guard(setup: &JobSetup<'_>, streams: &Streams) -> io::Result<Child> {
    let [input, output, errors] = streams.for_command(setup.passage)?;
    let mut command = guard_command(setup.guard);
    command.envs(setup.environment.iter().copied());
    // In a group of its own, so that what the terminal sends to ours passes it by.
    command.stdin(input).stdout(output).stderr(errors).process_group(0).spawn()
}

/// Waits for the guard to call and to say that the command runs.
fn meet(listener: &UnixListener, guard: &mut Child) -> io::Result<(UnixStream, Pid)> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + START_PATIENCE;
    let line = loop {
        match listener.accept() {
            Ok((line, _)) => break line,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if guard.try_wait()?.is_some() => return Err(io::Error::other("it ended at once")),
            Err(_) if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    line.set_nonblocking(false)?;
    let mut first = String::new();
    // No buffer: the next report belongs to the reader that comes after us.
    read_line(&line, &mut first)?;
    match Report::parse(&first) {
        Some(Report::Started(pid)) => {
            let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("it named no process"))?;
            Ok((line, pid))
        }
        _ => Err(io::Error::other("it ended before the command started")),
    }
}

fn read_line(line: &UnixStream, text: &mut String) -> io::Result<usize> {
    BufReader::with_capacity(1, line).read_line(text)
}

fn pass_reports(line: UnixStream, wakes: &Sender<Wake>) {
    for report in BufReader::new(line).lines().map_while(Result::ok).filter_map(|line| Report::parse(&line)) {
        let _ = wakes.send(Wake::Guard(report));
    }
    let _ = wakes.send(Wake::GuardGone);
}
