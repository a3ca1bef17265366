//! Watches a process tree at an interval until the tree ends, the time is up or somebody stops it.
//!
//! Takes a [`Recorder`] and a channel on which signals and keys arrive, and shows readings to an
//! [`Observer`]. Every reading is recorded before it is shown. A look that fails costs a reading, not the
//! watch.

use crate::{
    event::Event,
    failed_looks::{Failed, FailedLooks},
    observe::{Observer, stop_with},
    record::{Recorder, next_tick},
    signals::{Heard, asks_to_end},
    wake::Wake,
};
use signal_hook::consts;
use std::{
    fmt,
    ops::ControlFlow,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The last process of the tree ended.
    TreeEnded,
    /// The time was up.
    TimeUp,
    /// A signal or a person ended it.
    Stopped,
}

impl fmt::Display for WatchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TreeEnded => "the process ended",
            Self::TimeUp => "the time was up",
            Self::Stopped => "stopped by hand",
        })
    }
}

/// Watches until the end.
pub fn watch(
    recorder: &mut Recorder,
    interval: Duration,
    duration: Option<Duration>,
    wakes: &Receiver<Wake>,
    observer: &mut dyn Observer,
) -> WatchEnd {
    let end = duration.map(|duration| Instant::now() + duration);
    let mut next = Instant::now();
    let mut failed = FailedLooks::default();
    loop {
        match recorder.tick() {
            Ok(None) => return WatchEnd::TreeEnded,
            Ok(Some(reading)) => {
                failed.end();
                observer.reading(&reading);
            }
            // There is no limit to keep, so there is nothing to give up.
            Err(error) if failed.count(false) == Failed::Tell => {
                observer.event(&Event::LookFailed { error: error.to_string() });
            }
            Err(_) => {}
        }
        if let Some(error) = recorder.take_lost_trace() {
            observer.event(&Event::TraceLost { error: error.to_string() });
        }
        next = next_tick(next, interval, Instant::now());
        let until = end.map_or(next, |end| end.min(next));
        if wait(until, wakes, observer).is_break() {
            return WatchEnd::Stopped;
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return WatchEnd::TimeUp;
        }
    }
}

fn wait(until: Instant, wakes: &Receiver<Wake>, observer: &mut dyn Observer) -> ControlFlow<()> {
    loop {
        match wakes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Wake::Signal(heard)) if asks_to_end(heard.signal) => return ControlFlow::Break(()),
            Ok(Wake::Quit) => return ControlFlow::Break(()),
            Ok(Wake::Signal(Heard { signal: consts::SIGTSTP, .. }) | Wake::Pause) => stop_with(observer),
            Ok(Wake::Signal(Heard { signal: consts::SIGWINCH, .. }) | Wake::Redraw) => observer.redraw(),
            Ok(Wake::Signal(_) | Wake::OutputLost { .. } | Wake::Guard(_) | Wake::GuardGone) => {}
            Err(RecvTimeoutError::Timeout) => return ControlFlow::Continue(()),
            // Nobody can interrupt any more; the clock still can.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return ControlFlow::Continue(());
            }
        }
    }
}
