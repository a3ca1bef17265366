//! A command under way: started under a guard, signalled, ended, and never left behind.
//!
//! What the guard reports arrives as [`Wake`]s. Dropping a job ends every process of its tree.

use super::{
    SuperviseError,
    end::end_below,
    guard::{CommandOrders, GuardProgram, Request, guard_command},
    mirror::Mirror,
    streams::{Along, Flow, Passage, Streams},
    terminal::Standing,
};
use crate::{
    sampling::Probe,
    signals::Heard,
    steps::{StepBoard, StepPatterns},
    wake::{CommandReport, Wake},
};
use procfs::process::Process;
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};
use signal_hook::consts;
use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::Child,
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

/// A guard starts within milliseconds, except on a machine that is already out of memory.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// What a job needs.
pub(super) struct JobSetup<'a> {
    pub guard: &'a GuardProgram,
    /// The address of the socket at which the guard calls.
    pub control: &'a Path,
    pub orders: &'a CommandOrders,
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
    standing: Standing,
    flow: Option<Flow>,
    mirror: Option<Mirror>,
}

impl Job {
    pub fn start(setup: &JobSetup<'_>) -> Result<Self, SuperviseError> {
        let failed = |doing| move |source| SuperviseError::System { doing, source };
        let listener = UnixListener::bind(setup.control).map_err(failed("make the guard's socket"))?;
        let streams = Streams::open().map_err(failed("open the command's streams"))?;
        let mut guard = spawn_guard(setup, &streams).map_err(failed("start the guard"))?;
        let standing = setup.orders.standing;
        let terminal = (standing == Standing::WithUs).then(|| streams.terminal()).flatten();
        let mirror = terminal.and_then(|terminal| Mirror::start(terminal, guard.id().cast_signed()));
        let along = Along { board: setup.board, patterns: setup.patterns, wakes: setup.wakes };
        let flow = streams.flow(setup.passage, &along, mirror.as_ref().map(Mirror::look));
        let met = meet(&listener, &mut guard);
        let _ = std::fs::remove_file(setup.control);
        let (line, command) = match met {
            Ok(met) => met,
            Err(error) => {
                let _ = guard.kill();
                let _ = guard.wait();
                return Err(failed("meet the guard")(error));
            }
        };
        let job = Self { guard, line, command, standing, flow: Some(flow), mirror };
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

    /// Signals the command alone, which stops its workers itself.
    pub fn tell(&self, signal: Signal) {
        let _ = kill_process(self.command, signal);
    }

    /// Where the command stands towards our terminal.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Passes a signal on to the command as it would have arrived without us.
    pub fn pass_on(&self, heard: Heard) {
        let Some(signal) = Signal::from_named_raw(heard.signal) else { return };
        // The guard only tells us to follow the command.
        if heard.sender == Some(self.guard_pid()) {
            return;
        }
        match self.standing {
            // A key's signal has reached the whole group. For other signals the guard knows whether they were
            // for us alone.
            Standing::WithUs if heard.is_by_key() => {}
            Standing::WithUs => self.ask(Request::Pass(heard)),
            // Those of the keyboard reach the whole group.
            Standing::OwnGroup | Standing::OwnSession => match heard.signal {
                consts::SIGINT | consts::SIGQUIT | consts::SIGTSTP | consts::SIGCONT => {
                    self.tell_group(signal);
                }
                _ => self.tell(signal),
            },
        }
    }

    /// Stops the command together with us, until [`Job::go_on`].
    pub fn stop(&self) {
        // A session of its own has nobody who could continue it, so the kernel would not stop it for SIGTSTP.
        self.tell_group(if self.standing == Standing::OwnSession { Signal::STOP } else { Signal::TSTP });
    }

    /// The reverse of [`Job::stop`].
    pub fn go_on(&self) {
        self.tell_group(Signal::CONT);
    }

    /// Whether the command itself is stopped.
    pub fn is_stopped(&self) -> bool {
        Process::new(self.pid()).and_then(|process| process.stat()).is_ok_and(|stat| stat.state == 'T')
    }

    /// Gives the command's terminal the size of ours, and tells the command if it changed.
    pub fn resize(&self) {
        // The kernel's own signal came before its terminal had the new size.
        if self.flow.as_ref().is_some_and(Flow::resize) {
            self.tell_group(Signal::WINCH);
        }
    }

    /// Waits until what the command has printed so far has been passed on.
    pub fn settle(&self) {
        if let Some(flow) = &self.flow {
            flow.settle();
        }
    }

    fn tell_group(&self, signal: Signal) {
        let group = if self.standing == Standing::WithUs { getpgrp() } else { self.command };
        let _ = kill_process_group(group, signal);
    }

    fn ask(&self, request: Request) {
        // A guard that is gone is noticed elsewhere.
        let _ = (&self.line).write_all(request.line().as_bytes());
    }

    /// Ends every process of the tree; returns those that would not end.
    pub fn end(&self) -> Vec<i32> {
        end_below(self.guard_pid())
    }

    /// After the guard has finished: says goodbye, passes on the remaining output, and reaps the guard.
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
        self.mirror = None;
        self.ask(Request::Goodbye);
        // If the guard was killed, this process has adopted its orphans.
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
    let mut command = guard_command(setup.guard, setup.control, setup.orders);
    command.envs(setup.environment.iter().copied());
    command.stdin(input).stdout(output).stderr(errors).spawn()
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
    match CommandReport::parse(&first) {
        Some(CommandReport::Started(pid)) => {
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
    for report in
        BufReader::new(line).lines().map_while(Result::ok).filter_map(|line| CommandReport::parse(&line))
    {
        let _ = wakes.send(Wake::Guard(report));
    }
    let _ = wakes.send(Wake::GuardGone);
}
