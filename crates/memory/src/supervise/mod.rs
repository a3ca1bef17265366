//! A command under our eye: started, watched, told of its limit, ended, started again.
//!
//! In come [`Orders`]; out come readings and [`Event`]s for an [`Observer`] and at last an [`Outcome`]. However this
//! ends, no process of the command is left behind: the tree hangs below a guard that adopts every orphan (see
//! `guard`), and dropping a job ends all of it. One command at a time per process.

mod end;
mod event;
mod group;
mod guard;
mod job;
mod limit;
mod signals;
mod streams;

pub use event::Event;
pub use guard::{GUARD_WORDS, GuardOrders, LAUNCH_WORDS, Report, guard, launch};
pub use limit::{Call, LimitWatch};
pub use signals::{BadSignal, StopSignal, listen};
pub use streams::Passage;

pub(crate) use signals::{ends, pause_if_asked};

use crate::{
    RunFacts, TraceWriter,
    probe::ProbeError,
    record::Recorder,
    steps::{BadPattern, Notice, SOCKET_VARIABLE, StepBoard, StepSocket},
    watch::{Observer, Wake, next_tick},
};
use group::CommandGroup;
use job::{Job, JobSetup};
use rustix::process::{Signal, getpid, set_child_subreaper};
use signal_hook::consts;
use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The exit code of a run that was stopped at its limit, and of a command that asks to be started again: `EX_TEMPFAIL`.
pub const STOPPED_AT_LIMIT: i32 = 75;
/// What a command leaves running in the background may end by itself for this long; Python's resource tracker, which
/// removes shared memory segments, needs a moment.
const STRAGGLER_GRACE: Duration = Duration::from_secs(2);
/// The pause before the first restart; it doubles with each ...
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// ... up to this.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// The address of a Unix socket holds 108 bytes; a folder for temporary files may be longer than that.
const LONGEST_FOLDER: usize = 70;

/// What to do at the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLimit {
    /// Tell the command, wait, end it.
    Stop,
    /// The same, then start it again.
    Restart,
    /// Only say so.
    Warn,
}

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Time between two readings.
    pub interval: Duration,
    /// Readings are taken for this long, or until the end.
    pub duration: Option<Duration>,
    /// What the user said of the run; without a limit there is nothing to act upon, and the machine's is warned of.
    pub facts: RunFacts,
    /// What to do at the limit.
    pub on_limit: OnLimit,
    /// How the command is told.
    pub stop_signal: StopSignal,
    /// How long it may take to end once it was told.
    pub grace: Duration,
    /// How often it is started again at most.
    pub max_restarts: u32,
    /// Arguments added when it is started again.
    pub restart_args: Vec<OsString>,
    /// The user's pattern for steps in the output.
    pub step_pattern: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended with this code.
    Exited(i32),
    /// The command was ended by this signal.
    Signaled(i32),
    /// It was stopped at its limit.
    StoppedAtLimit,
}

impl Outcome {
    /// What a shell would see: the command's code, 128 + n after a signal, 75 at the limit.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
            Self::StoppedAtLimit => STOPPED_AT_LIMIT,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "the command ended with code {code}"),
            Self::Signaled(signal) => write!(f, "the command was ended by signal {signal}"),
            Self::StoppedAtLimit => write!(f, "the command was stopped at its limit"),
        }
    }
}

/// Why a command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// No command was given.
    #[error("there is no command to run: write it after --")]
    NoCommand,
    /// The command cannot be executed.
    #[error("cannot start '{command}'")]
    CannotStart {
        /// The program.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// The guard ended while the command was being started.
    #[error("the guard of the command ended before it could start")]
    GuardLost,
    /// The step pattern is not usable.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
    /// The tree could not be read.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The system refused something that is needed.
    #[error("cannot {doing}")]
    System {
        /// What was to be done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a command is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Limit,
    User,
}

#[derive(Debug, Clone, Copy)]
struct Stopping {
    cause: Cause,
    deadline: Instant,
}

/// Where the supervisor is heard and seen.
pub struct Surroundings<'a> {
    /// Signals and keys arrive here ...
    pub wakes: &'a Receiver<Wake>,
    /// ... sent through this end, which the guard's reports use too.
    pub sender: &'a Sender<Wake>,
    /// Where the command's output goes.
    pub passage: Passage,
    /// The trace that is written.
    pub trace: Option<TraceWriter>,
    /// Who is shown what happens.
    pub observer: &'a mut dyn Observer,
}

/// Runs the command to its end, with all its restarts.
pub fn run(orders: &Orders, surroundings: Surroundings<'_>) -> Result<Outcome, SuperviseError> {
    if orders.command.is_empty() {
        return Err(SuperviseError::NoCommand);
    }
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    set_child_subreaper(Some(getpid())).map_err(|error| failed("adopt orphans")(error.into()))?;
    let folder = private_folder().map_err(failed("make a folder for sockets"))?;
    let board = StepBoard::default();
    let socket = StepSocket::bind(&folder.path().join("steps"), board.clone())
        .map_err(failed("make the step socket"))?;
    let group = orders.facts.limit.filter(|_| orders.on_limit != OnLimit::Warn).and_then(CommandGroup::make);
    let guard = GuardOrders {
        control: folder.path().join("guard"),
        group: group.as_ref().map(|group| group.directory().to_owned()),
        command: orders.command.clone(),
    };
    let Surroundings { wakes, sender, passage, trace, observer } = surroundings;
    let mut supervisor = Supervisor {
        orders,
        wakes,
        sender,
        passage,
        observer,
        board,
        socket,
        guard,
        recorder: None,
        user_stops: false,
    };
    let outcome = supervisor.run(trace);
    drop(supervisor);
    outcome
}

fn private_folder() -> io::Result<TempDir> {
    let usual = std::env::temp_dir();
    let place = if usual.as_os_str().len() <= LONGEST_FOLDER { usual } else { PathBuf::from("/tmp") };
    tempfile::Builder::new().prefix("model-garden-").tempdir_in(place)
}

struct Supervisor<'a> {
    orders: &'a Orders,
    wakes: &'a Receiver<Wake>,
    sender: &'a Sender<Wake>,
    passage: Passage,
    observer: &'a mut dyn Observer,
    board: StepBoard,
    socket: StepSocket,
    guard: GuardOrders,
    recorder: Option<Recorder>,
    /// A signal asked us to end: nothing is started again.
    user_stops: bool,
}

impl Supervisor<'_> {
    fn run(&mut self, mut trace: Option<TraceWriter>) -> Result<Outcome, SuperviseError> {
        let mut restarts = 0;
        loop {
            let job = self.start()?;
            match &mut self.recorder {
                Some(recorder) => recorder.follow(job.probe()),
                None => {
                    let facts = self.orders.facts.clone();
                    self.recorder = Some(Recorder::new(job.probe(), self.board.clone(), facts, trace.take()));
                }
            }
            let outcome = Attempt::new(self, &job).attend()?;
            job.finish();
            let wants_restart =
                outcome.exit_code() == STOPPED_AT_LIMIT && self.orders.on_limit == OnLimit::Restart;
            if !wants_restart || self.user_stops {
                return Ok(outcome);
            }
            if restarts == self.orders.max_restarts {
                self.observer.event(&Event::GaveUp { restarts });
                return Ok(outcome);
            }
            let pause = backoff(restarts);
            restarts += 1;
            self.observer.event(&Event::Restarting {
                restart: restarts,
                of: self.orders.max_restarts,
                pause,
            });
            if self.is_stopped_within(pause) {
                return Ok(outcome);
            }
            self.guard.command =
                self.orders.command.iter().chain(&self.orders.restart_args).cloned().collect();
        }
    }

    fn start(&mut self) -> Result<Job, SuperviseError> {
        let environment: [(&str, &OsStr); 1] = [(SOCKET_VARIABLE, self.socket.path().as_os_str())];
        let job = Job::start(&JobSetup {
            guard: &self.guard,
            environment: &environment,
            passage: &self.passage,
            board: &self.board,
            pattern: self.orders.step_pattern.as_deref(),
            wakes: self.sender,
        })?;
        self.observer.event(&Event::Started { pid: job.pid(), in_group: self.guard.group.is_some() });
        Ok(job)
    }

    /// Waits between two attempts; true if somebody asks us to end meanwhile.
    fn is_stopped_within(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.wakes.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Wake::Signal(signal)) if ends(signal) => return true,
                Ok(Wake::Quit) => return true,
                Ok(Wake::Redraw) => self.observer.redraw(),
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// 1, 2, 4 ... seconds.
fn backoff(restarts: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << restarts.min(16)).min(LONGEST_BACKOFF)
}

/// One attempt, from the start of the command to the end of its last process.
struct Attempt<'a, 'b> {
    supervisor: &'a mut Supervisor<'b>,
    job: &'a Job,
    watch: Option<LimitWatch>,
    next_tick: Instant,
    next_look: Instant,
    stopping: Option<Stopping>,
    warned: bool,
    /// How the command itself ended, and until when its stragglers may do so.
    ended: Option<(Outcome, Instant)>,
    guard_gone: bool,
}

impl<'a, 'b> Attempt<'a, 'b> {
    fn new(supervisor: &'a mut Supervisor<'b>, job: &'a Job) -> Self {
        let now = Instant::now();
        let watch =
            supervisor.orders.facts.limit.map(|limit| LimitWatch::new(limit, supervisor.orders.grace));
        Self {
            supervisor,
            job,
            watch,
            next_tick: now,
            next_look: now,
            stopping: None,
            warned: false,
            ended: None,
            guard_gone: false,
        }
    }

    fn attend(mut self) -> Result<Outcome, SuperviseError> {
        loop {
            let now = Instant::now();
            if let Some(outcome) = self.outcome(now) {
                return Ok(outcome);
            }
            if self.ended.is_none() {
                if self.stopping.is_some_and(|stopping| now >= stopping.deadline) {
                    self.end_tree("it did not end within the grace");
                } else if now >= self.next_look {
                    self.look(now)?;
                }
            }
            match self
                .supervisor
                .wakes
                .recv_timeout(self.next_event().saturating_duration_since(Instant::now()))
            {
                Ok(wake) => self.wake(wake),
                Err(RecvTimeoutError::Timeout) => {}
                // The supervisor holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return Err(SuperviseError::GuardLost),
            }
        }
    }

    /// The outcome once nothing is left; stragglers past their time are ended here.
    fn outcome(&mut self, now: Instant) -> Option<Outcome> {
        if !self.guard_gone {
            if self.ended.is_some_and(|(_, until)| now >= until) {
                self.end_tree("it was left behind by the command");
                self.ended = self.ended.map(|(outcome, _)| (outcome, now + LONGEST_BACKOFF));
            }
            return None;
        }
        let stopped = self.stopping.is_some_and(|stopping| stopping.cause == Cause::Limit);
        // A guard that went without a word was killed, and the command with it.
        let ended = self.ended.map_or(Outcome::Signaled(consts::SIGKILL), |(outcome, _)| outcome);
        Some(if stopped { Outcome::StoppedAtLimit } else { ended })
    }

    fn next_event(&self) -> Instant {
        match (self.ended, self.stopping) {
            (Some((_, until)), _) => until,
            (None, Some(stopping)) => self.next_look.min(stopping.deadline),
            (None, None) => self.next_look,
        }
    }

    /// Looks at the level, and takes a reading when one is due.
    fn look(&mut self, now: Instant) -> Result<(), SuperviseError> {
        let interval = self.supervisor.orders.interval;
        let Some(recorder) = &mut self.supervisor.recorder else { return Ok(()) };
        let records = self.supervisor.orders.duration.is_none_or(|duration| recorder.elapsed() < duration);
        let level = if records && now >= self.next_tick {
            self.next_tick = next_tick(self.next_tick, interval, now);
            let reading = recorder.tick()?;
            let lost = recorder.take_lost_trace();
            if let Some(reading) = &reading {
                if let Some(watch) = &mut self.watch {
                    watch.judge(reading);
                }
                self.supervisor.observer.reading(reading);
            }
            if let Some(error) = lost {
                self.supervisor.observer.event(&Event::TraceLost { error: error.to_string() });
            }
            reading.map(|reading| reading.snapshot.sample.owned())
        } else {
            recorder.level()?
        };
        let at = recorder.elapsed();
        let mut wait = interval;
        if let (Some(watch), Some(owned)) = (&mut self.watch, level) {
            let next = watch.next_look(interval);
            let call = watch.look(at, owned, next);
            wait = watch.next_look(interval);
            self.answer(call, owned);
        }
        self.next_look = (now + wait).min(self.next_tick.max(now));
        Ok(())
    }

    fn answer(&mut self, call: Call, owned: u64) {
        let warns = self.supervisor.orders.on_limit == OnLimit::Warn;
        match call {
            Call::Fine => self.warned = false,
            Call::Tell(why) | Call::End(why) if warns => {
                if !self.warned {
                    self.notify("warn", owned, &why);
                    self.supervisor.observer.event(&Event::LimitNear { why });
                }
                self.warned = true;
            }
            Call::Tell(why) => self.stop_for_limit(&why, owned),
            Call::End(why) => {
                self.stop_for_limit(&why, owned);
                self.end_tree(&why);
            }
        }
    }

    /// Tells the command, once.
    fn stop_for_limit(&mut self, why: &str, owned: u64) {
        if self.stopping.is_some() {
            return;
        }
        let orders = self.supervisor.orders;
        self.stopping = Some(Stopping { cause: Cause::Limit, deadline: Instant::now() + orders.grace });
        self.notify("checkpoint", owned, why);
        self.job.tell(orders.stop_signal.0);
        self.supervisor.observer.event(&Event::Stopping { why: why.to_owned(), grace: orders.grace });
    }

    fn notify(&self, action: &'static str, owned: u64, why: &str) {
        let orders = self.supervisor.orders;
        self.supervisor.socket.tell(&Notice {
            event: "memory-limit",
            action,
            owned,
            limit: orders.facts.limit.unwrap_or(0),
            grace_seconds: orders.grace.as_secs_f64(),
            reason: why.to_owned(),
        });
    }

    fn end_tree(&mut self, why: &str) {
        let stuck = self.job.end();
        self.supervisor.observer.event(&Event::EndedTree { why: why.to_owned(), stuck });
        // What could not be killed will not be killed by trying again at once.
        if let Some(stopping) = &mut self.stopping {
            stopping.deadline = Instant::now() + LONGEST_BACKOFF;
        }
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::Signal(signal) => self.pass_on(signal),
            Wake::Quit => self.pass_on(consts::SIGINT),
            Wake::Redraw => self.supervisor.observer.redraw(),
            Wake::Guard(Report::Started(_)) => {}
            Wake::Guard(Report::Exited(code)) => self.command_ended(Outcome::Exited(code)),
            Wake::Guard(Report::Signaled(signal)) => self.command_ended(Outcome::Signaled(signal)),
            Wake::GuardGone => self.guard_gone = true,
        }
    }

    fn command_ended(&mut self, outcome: Outcome) {
        self.ended = Some((outcome, Instant::now() + STRAGGLER_GRACE));
    }

    /// Hands a signal to the command as it would have got it: those of the keyboard reach its whole group.
    fn pass_on(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        match number {
            consts::SIGWINCH => self.job.resize(),
            consts::SIGTSTP => {
                self.job.tell_group(signal);
                // We stop here, as the shell expects, until it lets us go on; then the command does, too.
                pause_if_asked(number);
                self.job.tell_group(Signal::CONT);
            }
            consts::SIGINT | consts::SIGQUIT | consts::SIGCONT => self.job.tell_group(signal),
            _ => self.job.tell(signal),
        }
        if ends(number) {
            self.supervisor.user_stops = true;
            let deadline = Instant::now() + self.supervisor.orders.grace;
            self.stopping.get_or_insert(Stopping { cause: Cause::User, deadline });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_a_minute() {
        let seconds: Vec<u64> = [0, 1, 2, 5, 6, 40].map(|restarts| backoff(restarts).as_secs()).into();
        assert_eq!(seconds, [1, 2, 4, 32, 60, 60]);
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(Outcome::Exited(3).exit_code(), 3);
        assert_eq!(Outcome::Signaled(9).exit_code(), 137);
        assert_eq!(Outcome::StoppedAtLimit.exit_code(), 75);
    }
}
