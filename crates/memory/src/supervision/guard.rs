//! The two small processes between us and a command: the guard that keeps its tree together, and the launcher
//! that becomes the command.
//!
//! The guard adopts every orphan of the tree, reports how the command ended, and ends the whole tree when its
//! line to the supervisor breaks, which is how a killed supervisor takes the command along. The launcher
//! arranges that the command dies should the guard be killed, joins the control group, and executes the
//! command in its place. Where the command belongs to our process group the guard does too, as a witness of
//! the signals that reach all of it. Both are processes of their own, because doing this between `fork` and
//! `exec` needs `unsafe`. The caller says which program runs them: a [`GuardProgram`] that hands its words to
//! [`run_guard`].

use super::{SuperviseError, end::end_below, terminal::Standing, witness::Witness};
use crate::{signals::Heard, wake::CommandReport};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, setsid, wait,
};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Write},
    net::Shutdown,
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// The program that guards a command: a process between the supervisor and the command, which ends the
/// command's whole tree when the supervisor is gone.
///
/// The supervisor starts `program` with `arguments` and words of its own after them. The program must hand
/// these words to [`run_guard`] and end with a code other than 0 if that fails. Usually it is the program
/// that supervises, started again with a hidden command.
#[derive(Debug, Clone)]
pub struct GuardProgram {
    /// Its file.
    pub program: PathBuf,
    /// Its name in a list of processes (`argv[0]`), where it is not the file's.
    pub name: Option<OsString>,
    /// What leads it to call [`run_guard`].
    pub arguments: Vec<OsString>,
}

impl GuardProgram {
    fn command(&self, words: impl IntoIterator<Item = OsString>) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(name) = &self.name {
            command.arg0(name);
        }
        command.args(&self.arguments).args(words);
        command
    }
}

impl CommandReport {
    fn line(self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}\n"),
            Self::Exited(code) => format!("exited {code}\n"),
            Self::Signaled(signal) => format!("signaled {signal}\n"),
            Self::Stopped(signal) => format!("stopped {signal}\n"),
        }
    }

    /// The reverse of [`CommandReport::line`].
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, number) = line.trim_end().split_once(' ')?;
        let number = number.parse().ok()?;
        match word {
            "started" => Some(Self::Started(number)),
            "exited" => Some(Self::Exited(number)),
            "signaled" => Some(Self::Signaled(number)),
            "stopped" => Some(Self::Stopped(number)),
            _ => None,
        }
    }
}

/// What the supervisor tells the guard, one line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// A signal reached the supervisor: pass it to the command, unless the command had it already.
    Pass(Heard),
    /// All is done.
    Goodbye,
}

impl Request {
    pub fn line(self) -> String {
        match self {
            Self::Pass(Heard { signal, sender: Some(sender) }) => format!("pass {signal} {sender}\n"),
            Self::Pass(Heard { signal, sender: None }) => format!("pass {signal}\n"),
            Self::Goodbye => "goodbye\n".to_owned(),
        }
    }

    /// The reverse of [`Request::line`].
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["pass", signal] => Some(Self::Pass(Heard { signal: signal.parse().ok()?, sender: None })),
            ["pass", signal, sender] => {
                let sender = Some(sender.parse().ok()?);
                Some(Self::Pass(Heard { signal: signal.parse().ok()?, sender }))
            }
            ["goodbye"] => Some(Self::Goodbye),
            _ => None,
        }
    }
}

/// What the guard and the launcher are told of the command.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CommandOrders {
    /// Where the command stands towards our terminal.
    pub standing: Standing,
    /// The control group that the command starts in.
    pub group: Option<PathBuf>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// What the words of the guard ask for.
#[derive(Debug, Clone, PartialEq)]
enum Duty {
    /// Guard the command; `control` is the supervisor's socket, in a folder that the guard may remove.
    Guard { control: PathBuf, orders: CommandOrders },
    /// Become the command; `parent` is the guard.
    Launch { parent: i32, orders: CommandOrders },
}

const GUARD: &str = "guard";
const LAUNCH: &str = "launch";

impl Duty {
    fn words(&self) -> Vec<OsString> {
        let (duty, first, orders) = match self {
            Self::Guard { control, orders } => (GUARD, control.clone().into_os_string(), orders),
            Self::Launch { parent, orders } => (LAUNCH, parent.to_string().into(), orders),
        };
        let group = orders.group.clone().unwrap_or_default().into_os_string();
        let words = [duty.into(), first, orders.standing.to_string().into(), group];
        words.into_iter().chain(orders.command.iter().cloned()).collect()
    }

    /// The reverse of [`Duty::words`].
    fn parse(words: &[OsString]) -> Option<Self> {
        let (duty, first, standing, group, command) = match words {
            [duty, first, standing, group, command @ ..] => (duty, first, standing, group, command),
            _ => return None,
        };
        let orders = CommandOrders {
            standing: standing.to_str()?.parse().ok()?,
            group: (!group.is_empty()).then(|| group.into()),
            command: command.to_vec(),
        };
        match duty.to_str()? {
            GUARD => Some(Self::Guard { control: first.into(), orders }),
            LAUNCH => Some(Self::Launch { parent: first.to_str()?.parse().ok()?, orders }),
            _ => None,
        }
    }
}

/// Runs as the guard of a command: call this from the program that a [`GuardProgram`] names, with the words
/// it was started with after its `arguments`. Returns when the last process of the command has ended.
pub fn run_guard(program: &GuardProgram, words: &[OsString]) -> Result<(), SuperviseError> {
    match Duty::parse(words).ok_or(SuperviseError::NoGuardWords)? {
        Duty::Guard { control, orders } => guard(program, &control, &orders),
        Duty::Launch { parent, orders } => Err(launch(parent, &orders)),
    }
}

/// The command line of the guard.
pub(super) fn guard_command(program: &GuardProgram, control: &Path, orders: &CommandOrders) -> Command {
    let duty = Duty::Guard { control: control.to_owned(), orders: orders.clone() };
    let mut command = program.command(duty.words());
    if orders.standing != Standing::WithUs {
        // In a group of its own, so that signals of the terminal to our group do not reach it.
        command.process_group(0);
    }
    command
}

fn guard(program: &GuardProgram, control: &Path, orders: &CommandOrders) -> Result<(), SuperviseError> {
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    let mut line = UnixStream::connect(control).map_err(failed("reach the supervisor"))?;
    set_child_subreaper(Some(getpid())).map_err(|error| failed("adopt orphans")(error.into()))?;
    let watched = line.try_clone().map_err(failed("watch the supervisor"))?;
    let shares_group = orders.standing == Standing::WithUs;
    let witness = shares_group.then(Witness::listen).transpose().map_err(failed("listen for signals"))?;

    let duty = Duty::Launch { parent: getpid().as_raw_nonzero().get(), orders: orders.clone() };
    let mut launcher = program.command(duty.words());
    if orders.standing == Standing::OwnGroup {
        launcher.process_group(0);
    }
    let command = launcher.spawn().map_err(failed("start the launcher"))?;
    let command = Pid::from_child(&command);
    tell(&mut line, CommandReport::Started(command.as_raw_nonzero().get()));
    let watcher = thread::spawn({
        let leftovers =
            Leftovers { folder: control.parent().map(Path::to_owned), group: orders.group.clone() };
        move || serve(watched, command, witness.as_ref(), &leftovers)
    });
    // In our process group the supervisor stops with the command, and must continue with it, whoever
    // continued it.
    collect(command, getppid().filter(|_| shares_group), &mut line);

    // The supervisor answers the end of the reports with a goodbye. If it is gone, tidying up is left to the
    // guard.
    let _ = line.shutdown(Shutdown::Write);
    let _ = watcher.join();
    Ok(())
}

/// Waits until no child is left: the command, and every orphan that was adopted. Continues `follower` when
/// the command continues.
fn collect(command: Pid, follower: Option<Pid>, line: &mut UnixStream) {
    loop {
        match wait(WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
            Ok(Some((pid, status))) if pid == command && status.continued() => {
                let _ = follower.map(|follower| kill_process(follower, Signal::CONT));
            }
            Ok(Some((pid, status))) if pid == command => {
                let code = status.exit_status().map(CommandReport::Exited);
                let signal = status.terminating_signal().map(CommandReport::Signaled);
                let stop = status.stopping_signal().map(CommandReport::Stopped);
                if let Some(report) = code.or(signal).or(stop) {
                    tell(line, report);
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// A supervisor that is gone is noticed by the other thread.
fn tell(line: &mut UnixStream, report: CommandReport) {
    let _ = line.write_all(report.line().as_bytes());
}

/// What a supervisor that was killed leaves for the guard to remove.
struct Leftovers {
    /// The folder of its sockets.
    folder: Option<PathBuf>,
    /// The command's control group.
    group: Option<PathBuf>,
}

/// Does what the supervisor asks until it says goodbye. If the line breaks without one, ends everything and
/// tidies up.
fn serve(line: UnixStream, command: Pid, witness: Option<&Witness>, leftovers: &Leftovers) {
    for request in BufReader::new(line).lines().map_while(Result::ok).filter_map(|line| Request::parse(&line))
    {
        match request {
            Request::Goodbye => return,
            Request::Pass(heard) if witness.is_some_and(|witness| witness.heard_too(heard)) => {}
            Request::Pass(heard) => {
                // The command may have ended by now.
                let _ = Signal::from_named_raw(heard.signal).map(|signal| kill_process(command, signal));
            }
        }
    }
    end_below(getpid().as_raw_nonzero().get());
    if let Some(folder) = &leftovers.folder {
        let _ = fs::remove_dir_all(folder);
    }
    if let Some(group) = &leftovers.group {
        let _ = fs::remove_dir(group);
    }
}

/// Becomes the command; returns only if that failed.
fn launch(parent: i32, orders: &CommandOrders) -> SuperviseError {
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed("tie the command to its guard")(error.into());
    }
    // The guard may have ended before it was tied to us.
    if getppid().is_none_or(|current| current.as_raw_nonzero().get() != parent) {
        return SuperviseError::GuardLost;
    }
    if orders.standing == Standing::OwnSession
        && let Err(error) = setsid()
    {
        return failed("leave the terminal")(error.into());
    }
    if let Some(group) = &orders.group
        && let Err(error) = fs::write(group.join("cgroup.procs"), "0")
    {
        return failed("join the control group")(error);
    }
    let Some((program, arguments)) = orders.command.split_first() else { return SuperviseError::NoCommand };
    let source = Command::new(program).args(arguments).exec();
    SuperviseError::CannotStart { command: program.to_string_lossy().into_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn reports_survive_the_line() {
        for report in [
            CommandReport::Started(7),
            CommandReport::Exited(0),
            CommandReport::Signaled(9),
            CommandReport::Stopped(20),
        ] {
            assert_eq!(CommandReport::parse(&report.line()), Some(report));
        }
        for line in ["", "exited", "exited x", "danced 3"] {
            assert_eq!(CommandReport::parse(line), None, "{line}");
        }
    }

    #[test]
    fn duties_survive_the_words() {
        let command = vec!["python".into(), "--".into(), "".into(), OsString::from_vec(vec![0xff])];
        for group in [None, Some("/sys/fs/cgroup/one".into())] {
            let orders = CommandOrders { standing: Standing::OwnGroup, group, command: command.clone() };
            let guard = Duty::Guard { control: "/tmp/a folder/guard".into(), orders: orders.clone() };
            for duty in [guard, Duty::Launch { parent: 7, orders }] {
                assert_eq!(Duty::parse(&duty.words()), Some(duty));
            }
        }
        for words in [&["guard"][..], &["dance", "x", "own-group", ""], &["launch", "x", "own-group", ""]] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(Duty::parse(&words), None, "{words:?}");
        }
    }

    #[test]
    fn requests_survive_the_line() {
        let pass = |sender| Request::Pass(Heard { signal: 15, sender });
        for request in [pass(Some(7)), pass(None), Request::Goodbye] {
            assert_eq!(Request::parse(&request.line()), Some(request));
        }
        for line in ["", "pass", "pass x", "pass 15 x", "hello"] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
    }
}
