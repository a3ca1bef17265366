//! Signals that reach this process, each with its sender.
//!
//! A signal that was ignored when the program started (as `nohup` arranges) stays ignored, for this process
//! and for a command it starts.

use procfs::process::Process;
use rustix::process::Signal;
use signal_hook::{
    consts,
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::siginfo::{Cause, Origin},
};
use std::{io, ops::ControlFlow, str::FromStr, thread};

/// What a command is told and we pass on; each by its number and name.
const NAMED: [(i32, &str); 7] = [
    (consts::SIGHUP, "HUP"),
    (consts::SIGINT, "INT"),
    (consts::SIGQUIT, "QUIT"),
    (consts::SIGTERM, "TERM"),
    (consts::SIGUSR1, "USR1"),
    (consts::SIGUSR2, "USR2"),
    (consts::SIGCONT, "CONT"),
];

/// Whether the signal asks a process to end.
pub(crate) fn asks_to_end(signal: i32) -> bool {
    [consts::SIGHUP, consts::SIGINT, consts::SIGQUIT, consts::SIGTERM].contains(&signal)
}

/// A signal that arrived, and where it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Its number.
    pub signal: i32,
    /// The process that sent it; `None` for the kernel.
    pub sender: Option<i32>,
}

impl Heard {
    /// Whether a key of the terminal sent it: then the kernel told the whole process group in the foreground.
    pub(crate) fn is_by_key(self) -> bool {
        let keys = [consts::SIGINT, consts::SIGQUIT, consts::SIGTSTP];
        self.sender.is_none() && keys.contains(&self.signal)
    }
}

impl From<Origin> for Heard {
    fn from(origin: Origin) -> Self {
        let by_kernel = origin.cause == Cause::Kernel;
        let sender = origin.process.map_or(0, |process| process.pid);
        Self { signal: origin.signal, sender: (!by_kernel).then_some(sender) }
    }
}

/// Stops our process until it is let go on, as Ctrl-Z would without us.
pub(crate) fn stop_here() {
    // It fails only for a number that is no signal.
    let _ = signal_hook::low_level::emulate_default_handler(consts::SIGTSTP);
}

/// Those of the signals that are not ignored. Asked before anybody listens to them, it tells which were
/// ignored when the program started, as `nohup` and `trap ''` arrange, and should stay so.
pub fn heeded(signals: impl IntoIterator<Item = i32>) -> impl Iterator<Item = i32> {
    let ignored = Process::myself().and_then(|own| own.status()).map_or(0, |status| status.sigign);
    signals.into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Calls `each` for every signal that arrives from now on, of those we pass on and `also`.
pub(crate) fn on_signals(
    also: &[i32],
    each: impl FnMut(Heard) -> ControlFlow<()> + Send + 'static,
) -> io::Result<()> {
    let all = NAMED.iter().map(|(signal, _)| signal).chain(also).copied();
    let mut signals = SignalsInfo::<WithOrigin>::new(heeded(all))?;
    thread::spawn(move || signals.forever().map(Heard::from).try_for_each(each));
    Ok(())
}

/// The signal that tells a command to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal(pub(crate) Signal);

impl Default for StopSignal {
    fn default() -> Self {
        Self(Signal::TERM)
    }
}

/// A name that is no signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a signal to stop with: use TERM, INT, HUP, QUIT, USR1 or USR2, or its number")]
pub struct BadSignal(String);

impl FromStr for StopSignal {
    type Err = BadSignal;

    fn from_str(text: &str) -> Result<Self, BadSignal> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let named = NAMED.iter().filter(|(signal, _)| *signal != consts::SIGCONT);
        let found = named.clone().find(|(signal, known)| *known == name || signal.to_string() == name);
        let signal = found.and_then(|(signal, _)| Signal::from_named_raw(*signal));
        signal.map(Self).ok_or_else(|| BadSignal(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(text.parse(), Ok(StopSignal(Signal::TERM)), "{text}");
        }
        for text in ["", "KILL", "CONT", "99", "SIG"] {
            assert!(text.parse::<StopSignal>().is_err(), "{text}");
        }
    }
}
