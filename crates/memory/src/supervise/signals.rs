//! Signals that reach our process, as messages on a channel.
//!
//! In come signals; out come [`Wake::Signal`]s. One that was ignored when we started (as `nohup` arranges) stays
//! ignored, for us and for the command.

use crate::watch::Wake;
use procfs::process::Process;
use rustix::process::Signal;
use signal_hook::{consts, iterator::Signals};
use std::{io, str::FromStr, sync::mpsc::Sender, thread};

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
pub(crate) fn ends(signal: i32) -> bool {
    [consts::SIGHUP, consts::SIGINT, consts::SIGQUIT, consts::SIGTERM].contains(&signal)
}

/// Stops our process, as Ctrl-Z would without us, until it is let go on; any other signal does nothing.
pub(crate) fn pause_if_asked(signal: i32) {
    if signal == consts::SIGTSTP {
        // It fails only for a number that is no signal.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

/// Sends every signal that arrives from now on to `wakes`.
pub fn listen(wakes: Sender<Wake>) -> io::Result<()> {
    let ignored = Process::myself().and_then(|own| own.status()).map_or(0, |status| status.sigign);
    let is_ignored = |signal: &i32| ignored & (1 << (signal - 1)) != 0;
    let also = [consts::SIGWINCH, consts::SIGTSTP];
    let all = NAMED.iter().map(|(signal, _)| *signal).chain(also);
    let mut signals = Signals::new(all.filter(|signal| !is_ignored(signal)))?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if wakes.send(Wake::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// The signal that tells a command to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal(pub(super) Signal);

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
