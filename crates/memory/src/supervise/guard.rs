//! The two small processes between us and a command: the guard that keeps its tree together, and the launcher that
//! becomes the command.
//!
//! The guard adopts every orphan of the tree, reports how the command ended, and ends the whole tree when its line to
//! the supervisor breaks, which is how a killed supervisor takes the command along. The launcher arranges that the
//! command dies should the guard be killed, joins the control group, and executes the command in its place.
//! Both are our own program started again, because doing this between `fork` and `exec` needs `unsafe`.

use super::{SuperviseError, end::end_below};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, wait,
};
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
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
}

impl Report {
    fn line(self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}\n"),
            Self::Exited(code) => format!("exited {code}\n"),
            Self::Signaled(signal) => format!("signaled {signal}\n"),
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
            _ => None,
        }
    }
}

/// What the guard needs.
#[derive(Debug, Clone)]
pub struct GuardOrders {
    /// The supervisor's socket, in a folder that is ours to remove.
    pub control: PathBuf,
    /// The control group that the command starts in.
    pub group: Option<PathBuf>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// The command line of the guard.
pub(super) fn guard_command(orders: &GuardOrders) -> Command {
    let mut command = again(&GUARD_WORDS);
    command.arg("--control").arg(&orders.control);
    with_command(&mut command, orders.group.as_deref(), &orders.command);
    command
}

fn again(words: &[&str]) -> Command {
    let mut command = Command::new(OURSELVES);
    command.arg0("model-garden").args(words);
    command
}

fn with_command(command: &mut Command, group: Option<&Path>, words: &[OsString]) {
    if let Some(group) = group {
        command.arg("--group").arg(group);
    }
    command.arg("--").args(words);
}

/// Runs as the guard; returns when the last process of the tree has ended.
pub fn guard(orders: &GuardOrders) -> Result<(), SuperviseError> {
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    let mut line = UnixStream::connect(&orders.control).map_err(failed("reach the supervisor"))?;
    set_child_subreaper(Some(getpid())).map_err(|error| failed("adopt orphans")(error.into()))?;
    let watched = line.try_clone().map_err(failed("watch the supervisor"))?;

    let mut launcher = again(&LAUNCH_WORDS);
    launcher.arg("--parent").arg(getpid().to_string());
    with_command(&mut launcher, orders.group.as_deref(), &orders.command);
    let command = launcher.process_group(0).spawn().map_err(failed("start the launcher"))?;
    let command = Pid::from_child(&command);
    tell(&mut line, Report::Started(command.as_raw_nonzero().get()));
    let watcher = thread::spawn({
        let orders = orders.clone();
        move || end_with_supervisor(watched, &orders)
    });
    collect(command, &mut line);

    // The supervisor answers the end of our reports with a goodbye, or is gone and leaves the tidying to us.
    let _ = line.shutdown(Shutdown::Write);
    let _ = watcher.join();
    Ok(())
}

/// Waits until no child is left: the command, and every orphan that was handed to us.
fn collect(command: Pid, line: &mut UnixStream) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                let code = status.exit_status().map(Report::Exited);
                let signal = status.terminating_signal().map(Report::Signaled);
                if let Some(report) = code.or(signal) {
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

/// Waits for the goodbye; if the line breaks without one, leaves nothing behind.
fn end_with_supervisor(mut line: UnixStream, orders: &GuardOrders) {
    if line.read(&mut [0]).is_ok_and(|length| length > 0) {
        return;
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
pub fn launch(parent: i32, group: Option<&Path>, command: &[OsString]) -> SuperviseError {
    let failed = |doing| move |source| SuperviseError::System { doing, source };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed("tie the command to its guard")(error.into());
    }
    // The guard may have ended before it was tied to us.
    if getppid().is_none_or(|current| current.as_raw_nonzero().get() != parent) {
        return SuperviseError::GuardLost;
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
    use super::Report;

    #[test]
    fn reports_survive_the_line() {
        for report in [Report::Started(7), Report::Exited(0), Report::Signaled(9)] {
            assert_eq!(Report::parse(&report.line()), Some(report));
        }
        for line in ["", "exited", "exited x", "danced 3"] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }
}
