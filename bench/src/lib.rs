//! What the benchmarks share: the memory of their own process.

use anyhow::{Context, Result};
use std::fs;

/// Resident memory now, and the most there ever was.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// Bytes now.
    pub now: u64,
    /// The most since the process began.
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
