//! What the whole machine has left: `MemAvailable` and pressure stall information.
//!
//! Reads `/proc/meminfo` and `/proc/pressure/memory`. A field that an old kernel lacks is `None`.

use super::cgroup::Cgroup;
use procfs::{Current, Meminfo, MemoryPressure, process::Process};
use serde::Serialize;

/// The machine's memory at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Machine {
    /// All memory of the machine.
    pub total: u64,
    /// What could still be given to processes without swapping.
    pub available: Option<u64>,
    /// Share of the last ten seconds, in percent, in which some task waited for memory.
    pub pressure_some: Option<f32>,
    /// Share of the last ten seconds, in percent, in which every task waited for memory.
    pub pressure_full: Option<f32>,
}

impl Machine {
    pub(super) fn read() -> Self {
        let memory = Meminfo::current().ok();
        let pressure = MemoryPressure::current().ok();
        Self {
            total: memory.as_ref().map_or(0, |memory| memory.mem_total),
            available: memory.and_then(|memory| memory.mem_available),
            pressure_some: pressure.as_ref().map(|pressure| pressure.some.avg10),
            pressure_full: pressure.as_ref().map(|pressure| pressure.full.avg10),
        }
    }
}

/// What a process started by this one could get now from the machine or from the control group, whichever is
/// less; `None` where neither is known.
pub fn memory_available() -> Option<u64> {
    let own = Process::myself().ok()?;
    let group = Cgroup::of(&own).and_then(|group| group.read()?.available());
    Machine::read().available.into_iter().chain(group).min()
}

/// The most that a process started by this one could have: the machine's memory or the control group's limit,
/// whichever is lower; `None` where neither is known.
pub fn memory_ceiling() -> Option<u64> {
    let machine = Some(Machine::read().total).filter(|total| *total > 0);
    let own = Process::myself().ok()?;
    let group = Cgroup::of(&own).and_then(|group| group.read()?.limit);
    machine.into_iter().chain(group).min()
}
