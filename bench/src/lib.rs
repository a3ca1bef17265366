//! What the benchmarks share: the memory and the time of their own process.

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// Resident memory now and at its peak.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// Bytes now.
    pub now: u64,
    /// The peak since the process began.
    pub peak: u64,
}

/// Reads the memory of this process.
pub fn resident() -> Result<Resident> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).context("no such field in /proc")?;
        let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        anyhow::Ok(kibibytes * 1024)
    };
    Ok(Resident { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}

/// Seconds of processor time of all threads together, which other programs hardly affect.
pub fn processor_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
