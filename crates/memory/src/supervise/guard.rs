//! The two small processes between us and a command: the guard that keeps its tree together, and the launcher that
//! becomes the command.
//!
//! The guard adopts every orphan of the tree, reports how the command ended, and ends the whole tree when its line to
//! the supervisor breaks, which is how a killed supervisor takes the command along. The launcher arranges that the
//! command dies should the guard be killed, joins the control group, and executes the command in its place. Where the
//! command belongs to our process group the guard does too, as a witness of the signals that reach all of it.
//! Both are our own program started again, because doing this between `fork` and `exec` needs `unsafe`.

use super::{SuperviseError, end::end_below, signals::Heard, terminal::Standing, witness::Witness};
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

/// The words after our program's name that must lead to [`guard`].
pub const GUARD_WORDS: [&str; 2] = ["memory", "__guard"];
/// The words after our program's name that must lead to [`launch`].
pub const LAUNCH_WORDS: [&str; 2] = ["memory", "__launch"];
/// Ourselves, even if the file was replaced since we started.
const OURSELVES: &str = "/proc/self/exe";

/// What the guard tells the supervisor, one line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The command runs under this PID.
    Started(i32),
    /// It ended with this code.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
    /// It was stopped by this signal, as by Ctrl-Z.
    Stopped(i32),
}

impl Report {
    fn line(self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}\n"),
            Self::Exited(code) => format!("exited {code}\n"),
            Self::Signaled(signal) => format!("signaled {signal}\n"),
            Self::Stopped(signal) => format!("stopped {signal}\n"),
        }
    }

    /// The reverse of [`Report::line`].
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
    /// This signal reached the supervisor: the command gets it, unless it had it already.
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

/// What the guard needs.
#[derive(Debug, Clone)]
pub struct GuardOrders {
    /// The supervisor's socket, in a folder that is ours to remove.
    pub control: PathBuf,
    /// Where the command stands towards our terminal.
    pub standing: Standing,
    /// The control group that the command starts in.
    pub group: Option<PathBuf>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// The command line of the guard.
pub(super) fn guard_command(orders: &GuardOrders) -> Command {
    let mut command = again(&GUARD_WORDS);
    command.arg("--control").arg(&orders.control);
    with_orders(&mut command, orders);
    if orders.standing != Standing::WithUs {
        // In a group of its own, so that what the terminal sends to ours passes it by.
        command.process_group(0);
    }
    command
}

fn again(words: &[&str]) -> Command {
    let mut command = Command::new(OURSELVES);
    command.arg0("model-garden").args(words);
    command
}

fn with_orders(command: &mut Command, orders: &GuardOrders) {
    command.arg("--standing").arg(orders.standing.to_string());
    if let Some(group) = &orders.group {
        command.arg("--group").arg(group);
    }
    command.arg("--").args(&orders.command);
}

/// Runs as the guard; returns when the last process of the tree has ended.
pub fn guard(orders: &GuardOrders) -> Result<(), SuperviseError> {
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    let mut line = UnixStream::connect(&orders.control).map_err(failed("reach the supervisor"))?;
    set_child_subreaper(Some(getpid())).map_err(|error| failed("adopt orphans")(error.into()))?;
    let watched = line.try_clone().map_err(failed("watch the supervisor"))?;
    let shares_group = orders.standing == Standing::WithUs;
    let witness = shares_group.then(Witness::listen).transpose().map_err(failed("listen for signals"))?;

    let mut launcher = again(&LAUNCH_WORDS);
    launcher.arg("--parent").arg(getpid().to_string());
    with_orders(&mut launcher, orders);
    if orders.standing == Standing::OwnGroup {
        launcher.process_group(0);
    }
    let command = launcher.spawn().map_err(failed("start the launcher"))?;
    let command = Pid::from_child(&command);
    tell(&mut line, Report::Started(command.as_raw_nonzero().get()));
    let watcher = thread::spawn({
        let orders = orders.clone();
        move || serve(watched, command, witness.as_ref(), &orders)
    });
    // In our group the supervisor stops with the command, and must go on with it, whoever let that go on.
    collect(command, getppid().filter(|_| shares_group), &mut line);

    // The supervisor answers the end of our reports with a goodbye, or is gone and leaves the tidying to us.
    let _ = line.shutdown(Shutdown::Write);
    let _ = watcher.join();
    Ok(())
}

/// Waits until no child is left: the command, and every orphan that was handed to us. Lets `follower` go on when the
/// command does.
fn collect(command: Pid, follower: Option<Pid>, line: &mut UnixStream) {
    loop {
        match wait(WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
            Ok(Some((pid, status))) if pid == command && status.continued() => {
                let _ = follower.map(|follower| kill_process(follower, Signal::CONT));
            }
            Ok(Some((pid, status))) if pid == command => {
                let code = status.exit_status().map(Report::Exited);
                let signal = status.terminating_signal().map(Report::Signaled);
                let stop = status.stopping_signal().map(Report::Stopped);
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
fn tell(line: &mut UnixStream, report: Report) {
    let _ = line.write_all(report.line().as_bytes());
}

/// Does what the supervisor asks until it says goodbye; if the line breaks without one, leaves nothing behind.
fn serve(line: UnixStream, command: Pid, witness: Option<&Witness>, orders: &GuardOrders) {
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
    if let Some(folder) = orders.control.parent() {
        let _ = fs::remove_dir_all(folder);
    }
    if let Some(group) = &orders.group {
        let _ = fs::remove_dir(group);
    }
}

/// Becomes the command; returns only if that failed.
pub fn launch(parent: i32, standing: Standing, group: Option<&Path>, command: &[OsString]) -> SuperviseError {
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed("tie the command to its guard")(error.into());
    }
    // The guard may have ended before it was tied to us.
    if getppid().is_none_or(|current| current.as_raw_nonzero().get() != parent) {
        return SuperviseError::GuardLost;
    }
    if standing == Standing::OwnSession
        && let Err(error) = setsid()
    {
        return failed("leave the terminal")(error.into());
    }
    if let Some(group) = group
        && let Err(error) = fs::write(group.join("cgroup.procs"), "0")
    {
        return failed("join the control group")(error);
    }
    let Some((program, arguments)) = command.split_first() else { return SuperviseError::NoCommand };
    let source = Command::new(program).args(arguments).exec();
    SuperviseError::CannotStart { command: program.to_string_lossy().into_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_line() {
        for report in [Report::Started(7), Report::Exited(0), Report::Signaled(9), Report::Stopped(20)] {
            assert_eq!(Report::parse(&report.line()), Some(report));
        }
        for line in ["", "exited", "exited x", "danced 3"] {
            assert_eq!(Report::parse(line), None, "{line}");
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
