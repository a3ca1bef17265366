//! Runs a command under supervision: started, watched, told of its limit, ended, started again.
//!
//! [`run`] takes [`Orders`], shows readings and [`Event`]s to an [`Observer`], and returns an [`Outcome`].
//! However it ends, no process of the command is left behind: the tree hangs below a guard that adopts every
//! orphan (see [`GuardProgram`]), and dropping a job ends all of it. A process supervises one command at a
//! time.

mod attempt;
mod end;
mod group;
mod guard;
mod job;
mod limit;
mod mirror;
mod own_limit;
mod reserve;
mod streams;
mod terminal;
mod witness;

pub use guard::{GuardProgram, run_guard};
pub use limit::{Call, LimitWatch, TELL_LEVEL};
pub use own_limit::OwnLimit;
pub use streams::Passage;

use crate::{
    RunFacts, TraceWriter,
    event::Event,
    observe::{Observer, stop_with},
    record::Recorder,
    sampling::ProbeError,
    signals::{StopSignal, asks_to_end},
    socket::{SOCKET_VARIABLE, StepSocket},
    steps::{StepBoard, StepPatterns},
    wake::Wake,
    who::Who,
};
use attempt::Attempt;
use group::CommandGroup;
use guard::CommandOrders;
use job::{Job, JobSetup};
use rustix::process::{getpid, set_child_subreaper};
use signal_hook::consts;
use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::PathBuf,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use terminal::{OurTerminal, Standing};

/// The exit code of a run that was stopped at its limit, and of a command that asks to be started again:
/// `EX_TEMPFAIL`.
const STOPPED_AT_LIMIT: i32 = 75;
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
    /// Only warn.
    Warn,
}

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The program that guards the command.
    pub guard: GuardProgram,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Time between two readings.
    pub interval: Duration,
    /// Readings are taken for this long, or until the end.
    pub duration: Option<Duration>,
    /// What is known of the run. Without a limit there is nothing to act upon; forecasts are made against the
    /// machine's.
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
    /// The user's patterns for steps and epochs in the output.
    pub patterns: StepPatterns,
    /// Whether the command's Python processes are asked who holds the memory by which they grow.
    pub who: bool,
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
    #[error("there is no command to run")]
    NoCommand,
    /// The command cannot be executed.
    #[error("cannot start '{command}'")]
    CannotStart {
        /// The program.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// The program of the guard was started by somebody else.
    #[error("a guard is started by a supervisor, not by hand")]
    NoGuardWords,
    /// The guard ended while the command was being started.
    #[error("the command's guard ended before the command could start")]
    GuardLost,
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

/// How the supervisor communicates with the program that runs it.
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
    let who = orders.who.then(|| Who::open(&folder.path().join("who"), board.clone())).transpose();
    let who = who.map_err(failed("prepare to ask Python processes"))?;
    let Surroundings { wakes, sender, passage, trace, observer } = surroundings;
    let terminal = OurTerminal::open();
    let group = orders.facts.limit.filter(|_| orders.on_limit != OnLimit::Warn).and_then(CommandGroup::make);
    let command = CommandOrders {
        standing: Standing::of(&passage, terminal.as_ref()),
        group: group.as_ref().map(|group| group.directory().to_owned()),
        command: orders.command.clone(),
    };
    let mut supervisor = Supervisor {
        orders,
        wakes,
        sender,
        passage,
        observer,
        board,
        socket,
        who,
        control: folder.path().join("guard"),
        command,
        terminal,
        group,
        recorder: None,
        user_stops: false,
    };
    let outcome = supervisor.run(trace);
    if let Some(who) = &supervisor.who {
        supervisor.observer.holders(&who.report());
    }
    drop(supervisor);
    outcome
}

/// Ends this process by SIGINT if that is how the command ended on our terminal; otherwise returns. A shell
/// that runs us in a loop stops only if it sees the signal, not for exit code 130.
pub fn end_like(outcome: Outcome) {
    if outcome == Outcome::Signaled(consts::SIGINT) && OurTerminal::open().is_some() {
        let _ = signal_hook::low_level::emulate_default_handler(consts::SIGINT);
    }
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
    /// Asks who holds the memory, if that was ordered.
    who: Option<Who>,
    /// The address at which the guard calls.
    control: PathBuf,
    command: CommandOrders,
    terminal: Option<OurTerminal>,
    group: Option<CommandGroup>,
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
            let stood_with_us = job.standing() == Standing::WithUs;
            job.finish();
            // A command that ended well has restored the terminal; one that was killed could not.
            if stood_with_us
                && outcome != Outcome::Exited(0)
                && let Some(terminal) = &self.terminal
            {
                terminal.restore();
            }
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
            self.command.command =
                self.orders.command.iter().chain(&self.orders.restart_args).cloned().collect();
        }
    }

    fn start(&mut self) -> Result<Job, SuperviseError> {
        let who = self.who.as_ref().map(Who::environment);
        let mut environment: Vec<(&str, &OsStr)> = vec![(SOCKET_VARIABLE, self.socket.path().as_os_str())];
        environment.extend(who.as_ref().map(|(name, value)| (*name, value.as_os_str())));
        let job = Job::start(&JobSetup {
            guard: &self.orders.guard,
            control: &self.control,
            orders: &self.command,
            environment: &environment,
            passage: &self.passage,
            board: &self.board,
            patterns: &self.orders.patterns,
            wakes: self.sender,
        })?;
        self.observer.event(&Event::Started { pid: job.pid(), in_group: self.command.group.is_some() });
        Ok(job)
    }

    /// Processes that the kernel killed so far because the command's control group was at its limit.
    fn kills(&self) -> u64 {
        self.group.as_ref().map_or(0, CommandGroup::kills)
    }

    /// Waits between two attempts; true if somebody asks us to end meanwhile.
    fn is_stopped_within(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.wakes.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Wake::Signal(heard)) if asks_to_end(heard.signal) => return true,
                Ok(Wake::Quit) => return true,
                Ok(Wake::Redraw) => self.observer.redraw(),
                Ok(Wake::Pause) => stop_with(self.observer),
                Ok(Wake::OutputLost { stream, error }) => {
                    self.observer.event(&Event::OutputLost { stream: stream.to_string(), error });
                }
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
