//! A watch from beginning to end: ticks at an interval until the tree ends, the time is up or somebody stops it.
//!
//! In come a [`Recorder`] and a channel on which signals and keys arrive; out go readings to an [`Observer`]. Whatever
//! ends the watch, every reading was recorded before it was shown.

use crate::{
    probe::ProbeError,
    record::{Reading, Recorder},
    supervise::{Event, Report, ends, pause_if_asked},
};
use std::{
    fmt,
    ops::ControlFlow,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

/// What can interrupt the wait for the next tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// A signal arrived at our process.
    Signal(i32),
    /// A person asks to stop.
    Quit,
    /// The screen must be drawn again, for another size or another view.
    Redraw,
    /// The guard of a supervised command reports.
    Guard(Report),
    /// The guard is gone.
    GuardGone,
}

/// Who is shown what happens.
pub trait Observer {
    /// The tree at this moment.
    fn reading(&mut self, reading: &Reading);
    /// Something happened.
    fn event(&mut self, event: &Event);
    /// The screen must be drawn again.
    fn redraw(&mut self) {}
}

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
) -> Result<WatchEnd, ProbeError> {
    let end = duration.map(|duration| Instant::now() + duration);
    let mut next = Instant::now();
    loop {
        let Some(reading) = recorder.tick()? else { return Ok(WatchEnd::TreeEnded) };
        observer.reading(&reading);
        if let Some(error) = recorder.take_lost_trace() {
            observer.event(&Event::TraceLost { error: error.to_string() });
        }
        next = next_tick(next, interval, Instant::now());
        let until = end.map_or(next, |end| end.min(next));
        if wait(until, wakes, observer).is_break() {
            return Ok(WatchEnd::Stopped);
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(WatchEnd::TimeUp);
        }
    }
}

/// The next point of the grid; ticks that were missed are left out rather than made up for.
pub(crate) fn next_tick(last: Instant, interval: Duration, now: Instant) -> Instant {
    let next = last + interval;
    if next > now { next } else { now + interval }
}

fn wait(until: Instant, wakes: &Receiver<Wake>, observer: &mut dyn Observer) -> ControlFlow<()> {
    loop {
        match wakes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Wake::Signal(signal)) if ends(signal) => return ControlFlow::Break(()),
            Ok(Wake::Quit) => return ControlFlow::Break(()),
            Ok(Wake::Redraw) => observer.redraw(),
            Ok(Wake::Signal(signal)) => pause_if_asked(signal),
            Ok(Wake::Guard(_) | Wake::GuardGone) => {}
            Err(RecvTimeoutError::Timeout) => return ControlFlow::Continue(()),
            // Nobody can interrupt any more; the clock still can.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return ControlFlow::Continue(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_ticks_are_left_out() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(next_tick(start, second, start + second / 2), start + second);
        assert_eq!(next_tick(start, second, start + 10 * second), start + 11 * second);
    }
}
