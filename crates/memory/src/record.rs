//! One tick of a watch: probe, place in the run, write down, judge.
//!
//! In comes a [`Probe`] and what is known of the run; out comes a [`Reading`] per tick. A trace that can no longer be
//! written (a full disk) ends the recording, never the watch, and what stands in it already stays there.

use crate::{
    Analyst, Assessment, RunFacts, Sample, TraceError, TraceWriter,
    probe::{Probe, ProbeError, Snapshot},
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
}

impl Recorder {
    /// Watches with `probe`; `given` is what the user said of the run.
    pub fn new(probe: Probe, board: StepBoard, given: RunFacts, trace: Option<TraceWriter>) -> Self {
        let analyst = Analyst::new(given.clone());
        Self { probe, board, given, analyst, trace, lost_trace: None, log: None, start: Instant::now() }
    }

    /// Writes every reading from now on into this trace.
    pub fn write_to(&mut self, trace: TraceWriter) {
        self.trace = Some(trace);
    }

    /// Reads steps from these logs before each reading.
    pub fn reading_along(mut self, log: LogFollower) -> Self {
        self.log = Some(log);
        self
    }

    /// Goes on with another tree, the next attempt of the same run: time and trace continue, the judgement starts anew.
    pub fn follow(&mut self, probe: Probe) {
        self.probe = probe;
        self.board.restart();
        self.analyst = Analyst::new(self.given.clone());
    }

    /// Looks, records and judges; `None` once the tree has ended.
    pub fn tick(&mut self) -> Result<Option<Reading>, ProbeError> {
        let Some(mut snapshot) = self.probe.snapshot()? else { return Ok(None) };
        if self.given.limit.is_none() {
            self.given.limit = natural_limit(&snapshot);
        }
        if let Some(log) = &mut self.log {
            log.catch_up();
        }
        let facts = self.board.facts(&self.given);
        if facts != *self.analyst.facts() {
            self.analyst.learn(facts.clone());
        }
        snapshot.sample.t = self.start.elapsed().as_secs_f64();
        (snapshot.sample.step, snapshot.sample.epoch) = self.board.now(&facts);
        self.write_down(&snapshot.sample);
        self.analyst.push(&snapshot.sample);
        Ok(Some(Reading { snapshot, assessment: self.analyst.assessment(), facts }))
    }

    /// The tree's own memory at this moment, without recording it; `None` once the tree has ended.
    pub fn level(&mut self) -> Result<Option<u64>, ProbeError> {
        Ok(self.probe.snapshot()?.map(|snapshot| snapshot.sample.owned()))
    }

    /// Since when it watches.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Why the trace could not be written on, told once.
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

/// Where memory ends for a tree that was given no limit: what it has plus what it could still get, from the machine or
/// from its control group, whichever is less.
pub fn natural_limit(snapshot: &Snapshot) -> Option<u64> {
    let owned = snapshot.sample.owned();
    let machine = snapshot.machine.available.map(|available| owned + available);
    let group = snapshot.cgroup.and_then(|group| Some(owned + group.limit?.saturating_sub(group.usage)));
    machine.into_iter().chain(group).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{CgroupMemory, Machine};

    #[test]
    fn the_natural_limit_is_the_nearer_of_machine_and_group() {
        let mut snapshot = Snapshot {
            sample: Sample { anon: 10, ..Sample::default() },
            peak: 0,
            minor_faults: 0,
            processes: Vec::new(),
            machine: Machine { available: Some(90), ..Machine::default() },
            cgroup: None,
        };
        assert_eq!(natural_limit(&snapshot), Some(100));
        snapshot.cgroup = Some(CgroupMemory { limit: Some(50), usage: 20 });
        assert_eq!(natural_limit(&snapshot), Some(40), "others use a part of the group");
        snapshot.cgroup = Some(CgroupMemory { limit: None, usage: 20 });
        assert_eq!(natural_limit(&snapshot), Some(100));
    }
}
