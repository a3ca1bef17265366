//! What can interrupt a watch between two readings, as messages on one channel.
//!
//! Signals (by [`listen`]), keys that a screen reads, and what happens to a supervised command all arrive as
//! a [`Wake`].

use crate::signals::{Heard, on_signals};
use signal_hook::consts;
use std::{fmt, io, ops::ControlFlow, sync::mpsc::Sender};

/// What can interrupt the wait for the next reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// A signal arrived at this process.
    Signal(Heard),
    /// A person asks to end.
    Quit,
    /// A person asks to pause, as by Ctrl-Z.
    Pause,
    /// The screen must be drawn again, for another size or another view.
    Redraw,
    /// The output of a supervised command cannot be passed on.
    OutputLost {
        /// Which stream of this process.
        stream: Stream,
        /// Why.
        error: String,
    },
    /// The guard of a supervised command reports.
    Guard(CommandReport),
    /// The guard is gone.
    GuardGone,
}

/// What the guard of a command tells its supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandReport {
    /// The command runs under this PID.
    Started(i32),
    /// It ended with this code.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
    /// It was stopped by this signal, as by Ctrl-Z.
    Stopped(i32),
}

/// One of the two output streams of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Output => "standard output",
            Self::Errors => "standard error",
        })
    }
}

/// Sends every signal that arrives from now on to `wakes`.
pub fn listen(wakes: Sender<Wake>) -> io::Result<()> {
    on_signals(&[consts::SIGWINCH, consts::SIGTSTP], move |heard| match wakes.send(Wake::Signal(heard)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    })
}
