//! What the whole machine has left: `MemAvailable` and pressure stall information.
//!
//! In come `/proc/meminfo` and `/proc/pressure/memory`; out come bytes and percentages. Old kernels lack either, and
//! then the field is `None`.

use procfs::{Current, Meminfo, MemoryPressure};
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
