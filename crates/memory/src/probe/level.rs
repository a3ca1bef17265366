//! A tree's own memory at one moment, and how well it is known.

use super::{ProcessRow, kin::Known};
use serde::Serialize;

/// Bytes that a tree must give back itself, as an estimate between bounds.
///
/// Where nothing is shared, or everything was just measured, all of them are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The best estimate; readings and verdicts are about this.
    pub owned: u64,
    /// There is no less than this.
    pub certain: u64,
    /// There is no more than this.
    pub most: u64,
    /// A lower bound that measurements leave alone: it moves only when memory does, so that speeds can be taken from it.
    #[serde(skip)]
    pub pace: u64,
}

impl Level {
    /// A level that is known to the byte.
    pub fn exact(owned: u64) -> Self {
        Self { owned, certain: owned, most: owned, pace: owned }
    }

    /// With the shared memory of `processes`, of which the tree is taken to have `shmem`.
    pub(super) fn of(private: Known, processes: &[ProcessRow], shmem: u64) -> Self {
        let largest = processes.iter().map(|row| row.memory.shmem).max().unwrap_or(0);
        let unmeasured: u64 =
            processes.iter().filter(|row| row.pss.is_none()).map(|row| row.memory.shmem).sum();
        let in_doubt = if processes.len() > 1 { unmeasured } else { 0 };
        Self {
            owned: private.likely + shmem,
            certain: private.certain + largest,
            most: private.most + shmem + in_doubt,
            pace: private.pace + largest,
        }
    }

    /// The part of it that is in doubt.
    pub fn doubt(&self) -> f64 {
        self.most.saturating_sub(self.owned) as f64 / (self.owned as f64).max(1.0)
    }
}
