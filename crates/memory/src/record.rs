//! One tick of a watch: probe the tree, place the sample in the run, write it to the trace, judge it.
//!
//! A [`Recorder`] gives a [`Reading`] per tick. Looks between two ticks are not recorded, but the highest of
//! them is part of the next reading. A trace that can no longer be written (a full disk) ends the recording,
//! never the watch; what the trace holds already stays there.

use crate::{
    Analyst, Assessment, RunFacts, Sample, TraceError, TraceWriter,
    sampling::{Need, Probe, ProbeError, Snapshot},
    steps::{LogFollower, StepBoard},
};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The tree at one moment and what it means.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// What the probe saw, with step and epoch filled in.
    pub snapshot: Snapshot,
    /// What can be said by now.
    pub assessment: Assessment,
    /// What is known of the run by now; its limit is the one that forecasts are made against.
    pub facts: RunFacts,
}

/// Watches one tree, tick by tick.
pub struct Recorder {
    probe: Probe,
    board: StepBoard,
    given: RunFacts,
    analyst: Analyst,
    trace: Option<TraceWriter>,
    lost_trace: Option<TraceError>,
    log: Option<LogFollower>,
    start: Instant,
    /// The tree's own memory at the last reading.
    last: u64,
    /// The highest look since then.
    highest: Option<HighestLook>,
}

/// A look that was not recorded, and the second at which it was taken.
struct HighestLook {
    t: f64,
    snapshot: Snapshot,
}

impl HighestLook {
    fn owned(&self) -> u64 {
        self.snapshot.sample.owned()
    }
}

impl Recorder {
    /// Watches with `probe`; `given` is what the user said of the run.
    pub fn new(probe: Probe, board: StepBoard, given: RunFacts, trace: Option<TraceWriter>) -> Self {
        let analyst = Analyst::new(given.clone());
        Self {
            probe,
            board,
            given,
            analyst,
            trace,
            lost_trace: None,
            log: None,
            start: Instant::now(),
            last: 0,
            highest: None,
        }
    }

    /// Writes every reading from now on into this trace.
    pub fn write_to(&mut self, trace: TraceWriter) {
        self.trace = Some(trace);
    }

    /// Reads steps from these logs before each reading.
    pub fn reading_along(mut self, log: LogFollower) -> Self {
        self.follow_log(log);
        self
    }

    /// Reads steps from these logs before each reading from now on.
    pub fn follow_log(&mut self, log: LogFollower) {
        self.log = Some(log);
    }

    /// Continues with another tree, the next attempt of the same run: time and trace continue, the verdict
    /// starts from nothing.
    pub(crate) fn follow(&mut self, probe: Probe) {
        self.probe = probe;
        self.board.restart();
        self.analyst = Analyst::new(self.given.clone());
        (self.last, self.highest) = (0, None);
    }

    /// Looks, records and judges; `None` once the tree has ended.
    pub fn tick(&mut self) -> Result<Option<Reading>, ProbeError> {
        let Some(mut snapshot) = self.probe.snapshot()? else { return Ok(None) };
        let above = self.last.max(snapshot.sample.owned());
        let peak = self.highest.take().filter(|highest| highest.owned() > above);
        snapshot.sample.peak = peak.map(|highest| highest.snapshot.moment(highest.t));
        Ok(Some(self.record(snapshot, self.start.elapsed().as_secs_f64())))
    }

    /// Looks without recording; `None` once the tree has ended. The highest look is part of the next reading.
    pub fn look(&mut self, need: Need) -> Result<Option<Snapshot>, ProbeError> {
        let Some(snapshot) = self.probe.look(need)? else { return Ok(None) };
        let owned = snapshot.sample.owned();
        if self.highest.as_ref().is_none_or(|highest| owned > highest.owned()) {
            let t = self.start.elapsed().as_secs_f64();
            self.highest = Some(HighestLook { t, snapshot: snapshot.clone() });
        }
        Ok(Some(snapshot))
    }

    /// Records the look at which the limit was acted upon, with who held what: it may be the last.
    pub(crate) fn record_action(&mut self, mut snapshot: Snapshot, why: &str) -> Reading {
        let t = self.start.elapsed().as_secs_f64();
        snapshot.sample.peak = Some(snapshot.moment(t));
        snapshot.sample.acted = Some(why.to_owned());
        self.highest = None;
        self.record(snapshot, t)
    }

    /// After the end: records the highest look since the last reading, if it was above that reading.
    pub(crate) fn finish(&mut self) -> Option<Reading> {
        let highest = self.highest.take().filter(|highest| highest.owned() > self.last)?;
        Some(self.record(highest.snapshot, highest.t))
    }

    /// Places a snapshot in the run, writes it to the trace and judges it.
    fn record(&mut self, mut snapshot: Snapshot, t: f64) -> Reading {
        if let Some(free) = self.given.leave_free {
            self.given.limit = natural_limit(&snapshot).map(|limit| limit.saturating_sub(free));
        } else if self.given.limit.is_none() {
            self.given.limit = natural_limit(&snapshot);
        }
        if let Some(log) = &mut self.log {
            log.catch_up();
        }
        let facts = self.board.facts(&self.given);
        if facts != *self.analyst.facts() {
            self.analyst.learn(facts.clone());
        }
        snapshot.sample.t = t;
        snapshot.sample.spike = self.probe.take_spike();
        let position = self.board.now(&facts);
        (snapshot.sample.step, snapshot.sample.epoch) = (position.step, position.epoch);
        self.last = snapshot.sample.owned();
        self.write_down(&snapshot.sample);
        self.analyst.push(&snapshot.sample);
        Reading { snapshot, assessment: self.analyst.assessment(), facts }
    }

    /// The analyst that has seen every reading.
    pub fn analyst(&self) -> &Analyst {
        &self.analyst
    }

    /// How long it has been watching.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Why the trace can no longer be written; given once.
    pub fn take_lost_trace(&mut self) -> Option<TraceError> {
        self.lost_trace.take()
    }

    fn write_down(&mut self, sample: &Sample) {
        if let Some(trace) = &mut self.trace
            && let Err(error) = trace.append(sample)
        {
            self.trace = None;
            self.lost_trace = Some(error);
        }
    }
}

/// The limit of a tree that was given none: what it has plus what the machine or its control group can still
/// give, whichever is less.
pub fn natural_limit(snapshot: &Snapshot) -> Option<u64> {
    snapshot.available().map(|available| snapshot.sample.owned() + available)
}

/// When the next tick is due. Missed ticks are skipped, not made up for.
pub(crate) fn next_tick(last: Instant, interval: Duration, now: Instant) -> Instant {
    let next = last + interval;
    if next > now { next } else { now + interval }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{CgroupMemory, Machine};

    #[test]
    fn the_natural_limit_is_the_nearer_of_machine_and_group() {
        let mut snapshot = Snapshot {
            sample: Sample { anon: 10, ..Sample::default() },
            machine: Machine { available: Some(90), ..Machine::default() },
            ..Snapshot::default()
        };
        assert_eq!(natural_limit(&snapshot), Some(100));
        snapshot.cgroup = Some(CgroupMemory { limit: Some(50), usage: 20 });
        assert_eq!(natural_limit(&snapshot), Some(40), "others use a part of the group");
        snapshot.cgroup = Some(CgroupMemory { limit: None, usage: 20 });
        assert_eq!(natural_limit(&snapshot), Some(100));
    }

    #[test]
    fn missed_ticks_are_left_out() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(next_tick(start, second, start + second / 2), start + second);
        assert_eq!(next_tick(start, second, start + 10 * second), start + 11 * second);
    }
}
