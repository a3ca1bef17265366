//! Memory that several processes of a tree share, counted once.
//!
//! In come `smaps_rollup` readings, where the kernel divides each page by the number of processes that map it; out
//! comes, per process, how much of each kind of its resident memory is somebody else's to count. The reading walks
//! the page tables (milliseconds per gigabyte), so it is taken under a time budget, and in between what it found is
//! applied to the cheap counters of `/proc/PID/status`.

use procfs::process::Process;
use serde::Serialize;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Share of one core that the readings may take in the long run: a fifth of the probe's allowance of 0.5 %.
const BUDGET_SHARE: f64 = 0.001;
/// What may be saved up, and what may be owed after the tree changed its shape. A pass over 12 small processes costs
/// 2 to 3 ms, one over a process of 20 GB about 100 ms.
const BUDGET_BURST: Duration = Duration::from_millis(100);

/// Bytes of each kind of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    /// Anonymous.
    pub anon: u64,
    /// File-backed.
    pub file: u64,
    /// Shared memory.
    pub shmem: u64,
    /// Swapped out.
    pub swap: u64,
}

impl Kinds {
    /// What is in memory, of whichever kind.
    pub fn resident(&self) -> u64 {
        self.anon + self.file + self.shmem
    }

    /// The larger of each kind.
    pub(super) fn each_max(&self, other: &Kinds) -> Kinds {
        Kinds {
            anon: self.anon.max(other.anon),
            file: self.file.max(other.file),
            shmem: self.shmem.max(other.shmem),
            swap: self.swap.max(other.swap),
        }
    }

    pub(super) fn add(&mut self, other: &Kinds) {
        self.anon += other.anon;
        self.file += other.file;
        self.shmem += other.shmem;
        self.swap += other.swap;
    }
}

/// What `smaps_rollup` says of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rollup {
    pub pss: u64,
    pub uss: u64,
    share: Kinds,
}

/// What the last reading left behind for one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub rollup: Rollup,
    /// The process's counters at that moment.
    counters: Kinds,
}

/// Overlaps of the members of a tree, refreshed as the budget allows.
pub(super) struct Shares {
    known: HashMap<i32, Share>,
    budget: Budget,
}

impl Shares {
    pub fn new() -> Self {
        Self { known: HashMap::new(), budget: Budget::new(Instant::now()) }
    }

    /// Reads the whole tree again if the budget allows; true if it was read.
    ///
    /// It is all or nothing, because shares of different moments do not add up: when a worker ends, its part of the
    /// common pages falls to the others. For that reason a changed tree may go into debt for a new reading.
    pub fn refresh<'a>(&mut self, tree: impl Iterator<Item = (&'a Process, Kinds)>, changed: bool) -> bool {
        let start = Instant::now();
        if !self.budget.allows(start, changed) {
            return false;
        }
        let read = |(process, counters): (&Process, Kinds)| {
            let rollup = read_rollup(process)?;
            Some((process.pid, Share { rollup, counters }))
        };
        self.known = tree.filter_map(read).collect();
        self.budget.spend(start.elapsed());
        true
    }

    /// What is known of a process.
    pub fn of(&self, pid: i32) -> Option<&Share> {
        self.known.get(&pid)
    }
}

impl Share {
    /// The process's own part of its counters of this moment.
    ///
    /// Anonymous memory that came since the reading is the process's own: what was forked can only become less shared.
    /// Shared and mapped memory that came since is taken to be shared as the rest of it is, for parent and workers map
    /// the same new segments.
    pub fn own(&self, now: &Kinds) -> Kinds {
        let Self { rollup: Rollup { share, .. }, counters: then } = self;
        let less_overlap = |now: u64, then: u64, share: u64| now.saturating_sub(then.saturating_sub(share));
        let in_proportion = |now: u64, then: u64, share: u64| match then {
            0 => now,
            _ => (now as f64 * (share as f64 / then as f64)).round() as u64,
        };
        Kinds {
            anon: less_overlap(now.anon, then.anon, share.anon),
            file: in_proportion(now.file, then.file, share.file),
            shmem: in_proportion(now.shmem, then.shmem, share.shmem),
            swap: less_overlap(now.swap, then.swap, share.swap),
        }
    }
}

/// `None` if the process ended, is not ours to look into, or the kernel (before 5.2) does not split the shares.
fn read_rollup(process: &Process) -> Option<Rollup> {
    let rollup = process.smaps_rollup().ok()?;
    let values = &rollup.memory_map_rollup.iter().next()?.extension.map;
    let get = |key: &str| values.get(key).copied();
    Some(Rollup {
        pss: get("Pss")?,
        uss: get("Private_Clean")? + get("Private_Dirty")?,
        share: Kinds {
            anon: get("Pss_Anon")?,
            file: get("Pss_File")?,
            shmem: get("Pss_Shmem")?,
            swap: get("SwapPss").unwrap_or(0),
        },
    })
}

/// An allowance of time that fills steadily and is spent after the fact.
struct Budget {
    /// Nanoseconds in hand; negative while in debt.
    in_hand: f64,
    filled: Instant,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { in_hand: BUDGET_BURST.as_nanos() as f64, filled: now }
    }

    fn allows(&mut self, now: Instant, into_debt: bool) -> bool {
        let burst = BUDGET_BURST.as_nanos() as f64;
        let gained = now.duration_since(self.filled).as_nanos() as f64 * BUDGET_SHARE;
        self.in_hand = (self.in_hand + gained).min(burst);
        self.filled = now;
        self.in_hand > if into_debt { -burst } else { 0.0 }
    }

    fn spend(&mut self, cost: Duration) {
        self.in_hand -= cost.as_nanos() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_run_cost_stays_within_the_share() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let cost = Duration::from_millis(30);
        let seconds = 1000;
        let mut spent = Duration::ZERO;
        for second in 0..seconds {
            if budget.allows(start + Duration::from_secs(second), false) {
                budget.spend(cost);
                spent += cost;
            }
        }
        let most = BUDGET_BURST + Duration::from_secs(seconds).mul_f64(BUDGET_SHARE) + cost;
        assert!(spent <= most, "{spent:?} > {most:?}");
        assert!(spent > most / 2, "the allowance is used: {spent:?}");
    }

    #[test]
    fn a_changed_tree_may_go_into_debt_but_not_for_ever() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.spend(BUDGET_BURST + Duration::from_millis(1));
        assert!(!budget.allows(now, false));
        assert!(budget.allows(now, true));
        budget.spend(BUDGET_BURST);
        assert!(!budget.allows(now, true));
    }

    #[test]
    fn between_readings_new_private_memory_is_own_and_new_shared_memory_is_shared() {
        let kinds = |anon, shmem| Kinds { anon, shmem, ..Kinds::default() };
        let share =
            Share { rollup: Rollup { pss: 65, uss: 10, share: kinds(40, 25) }, counters: kinds(100, 50) };
        assert_eq!(share.own(&kinds(100, 50)), kinds(40, 25));
        assert_eq!(share.own(&kinds(130, 80)), kinds(70, 40));
        assert_eq!(share.own(&kinds(20, 0)), kinds(0, 0));
    }
}
