//! Memory that several processes of a tree share, counted once.
//!
//! `smaps_rollup` divides each page by the number of processes that map it, which shows how much of a
//! process's resident memory others must count. Reading it walks the page tables (milliseconds per gigabyte),
//! so it is done under a time budget. Between two measurements the last result is applied to the cheap
//! counters of `/proc/PID/status`.

use super::{kin::Measured, mapped::Then};
use procfs::process::Process;
use serde::Serialize;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The uncertain part of a tree's memory that matters ...
const MUCH_DOUBT: f64 = 0.02;
/// ... and the part that would show in a curve.
const SOME_DOUBT: f64 = 0.002;
/// Share of one core that the readings may take in the long run: a fifth of the probe's allowance of 0.5 %.
const BUDGET_SHARE: f64 = 0.001;
/// The same while the tree's memory is uncertain.
const BUDGET_SHARE_IN_DOUBT: f64 = 0.003;
/// How much may be saved up, and how much may be owed while the tree is uncertain. A pass over 12 small
/// processes costs 2 to 3 ms, one over a process of 20 GB about 100 ms.
const BUDGET_BURST: Duration = Duration::from_millis(100);
/// Parts add up only if they are of one moment. A measurement during which more than this part of the memory
/// moved is dropped.
const MOST_MOVED: f64 = 0.05;

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
    /// Anonymous and swapped memory, counted for this process alone.
    bytes: u64,
    /// Private pages that were written to, of whichever kind.
    private_dirty: u64,
    share: Kinds,
}

impl Rollup {
    /// What is known of anonymous and swapped memory. Private pages are not told apart by kind, so as much of
    /// them as may be shared memory is left out; anonymous pages are dirty.
    fn private(&self) -> Measured {
        Measured {
            bytes: self.bytes,
            private: self.private_dirty.saturating_sub(self.share.shmem).min(self.share.anon),
            share: self.share.anon + self.share.swap,
        }
    }
}

/// What the last reading left behind for one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub rollup: Rollup,
    /// Its files and its shared memory, unless they moved too much to be measured.
    pub file: Option<Then>,
    pub shmem: Option<Then>,
}

/// A process that is to be measured.
pub(super) struct Subject<'a> {
    pub pid: i32,
    /// Where its memory can be read.
    pub process: &'a Process,
    pub counters: Kinds,
}

/// Overlaps of the members of a tree, refreshed as the budget allows.
pub(super) struct Shares {
    known: HashMap<i32, Share>,
    budget: Budget,
    /// When the tree was last measured, and how long that took.
    last: Option<(Instant, Duration)>,
}

impl Shares {
    pub fn new() -> Self {
        Self { known: HashMap::new(), budget: Budget::new(Instant::now()), last: None }
    }

    /// Whether the budget allows measuring a tree of whose memory this part is uncertain.
    pub fn may_measure(&mut self, doubt: f64) -> bool {
        self.budget.allows(Instant::now(), doubt)
    }

    /// Whether a measurement now, repeated at this pace, would take at most this share of a core.
    pub fn costs_at_most(&self, share: f64) -> bool {
        self.last.is_none_or(|(when, cost)| when.elapsed().as_secs_f64() * share >= cost.as_secs_f64())
    }

    /// Measures the whole tree; `None` if a process ended meanwhile, or gave back much memory and the result
    /// is not `pressing`.
    ///
    /// It is all or nothing, because shares of different moments do not add up: when a worker ends, its part
    /// of the common pages falls to the others.
    pub fn measure(&mut self, tree: &[Subject<'_>], pressing: bool) -> Option<HashMap<i32, Measured>> {
        let start = Instant::now();
        let rollups: Vec<Option<Rollup>> = tree.iter().map(|subject| read_rollup(subject.process)).collect();
        let lives = |subject: &Subject<'_>| {
            let status = subject.process.status().ok().filter(|status| status.vmrss.is_some())?;
            Some(super::counters(&status))
        };
        let after: Option<Vec<Kinds>> = tree.iter().map(lives).collect();
        let cost = start.elapsed();
        self.budget.spend(cost);
        self.last = Some((Instant::now(), cost));
        let after = after?;
        let looks = || tree.iter().map(|subject| subject.counters).zip(after.iter().copied());
        let private = |kinds: Kinds| kinds.anon + kinds.swap;
        let held = looks().map(|(before, after)| (private(before), private(after).min(private(before))));
        if !pressing && !stood_still(held) {
            return None;
        }
        let has_file = stood_still(looks().map(|(before, after)| (before.file, after.file)));
        let has_shmem = stood_still(looks().map(|(before, after)| (before.shmem, after.shmem)));
        let share = |(subject, rollup): (&Subject<'_>, Option<Rollup>)| {
            let (rollup, now) = (rollup?, subject.counters);
            let file = has_file.then_some(Then { mapped: now.file, share: rollup.share.file });
            let shmem = has_shmem.then_some(Then { mapped: now.shmem, share: rollup.share.shmem });
            Some((subject.pid, Share { rollup, file, shmem }))
        };
        self.known = tree.iter().zip(rollups).filter_map(share).collect();
        Some(self.known.iter().map(|(pid, share)| (*pid, share.rollup.private())).collect())
    }

    /// What is known of a process.
    pub fn of(&self, pid: i32) -> Option<&Share> {
        self.known.get(&pid)
    }
}

/// Whether the memory of a tree, before and after it was measured, is that of one moment.
fn stood_still(looks: impl Iterator<Item = (u64, u64)>) -> bool {
    let (moved, all) = looks.fold((0, 0), |(moved, all), (before, after)| {
        (moved + before.abs_diff(after), all + before.max(after))
    });
    moved as f64 <= MOST_MOVED * all as f64
}

/// `None` if the process ended, may not be read, or the kernel (before 5.2) does not split the shares.
fn read_rollup(process: &Process) -> Option<Rollup> {
    let rollup = process.smaps_rollup().ok()?;
    let values = &rollup.memory_map_rollup.iter().next()?.extension.map;
    let get = |key: &str| values.get(key).copied();
    Some(Rollup {
        pss: get("Pss")?,
        uss: get("Private_Clean")? + get("Private_Dirty")?,
        bytes: get("Anonymous")? + get("Swap").unwrap_or(0),
        private_dirty: get("Private_Dirty")?,
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

    /// Whether it may be spent on a tree of whose memory this part is uncertain. Much doubt may run into
    /// debt, little doubt may use what is saved up, and no doubt only what would exceed the savings.
    fn allows(&mut self, now: Instant, doubt: f64) -> bool {
        let burst = BUDGET_BURST.as_nanos() as f64;
        let share = if doubt > MUCH_DOUBT { BUDGET_SHARE_IN_DOUBT } else { BUDGET_SHARE };
        let gained = now.duration_since(self.filled).as_nanos() as f64 * share;
        self.in_hand = (self.in_hand + gained).min(burst);
        self.filled = now;
        if doubt > MUCH_DOUBT {
            self.in_hand > -burst
        } else if doubt > SOME_DOUBT {
            self.in_hand > 0.0
        } else {
            self.in_hand >= burst
        }
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
            if budget.allows(start + Duration::from_secs(second), 0.01) {
                budget.spend(cost);
                spent += cost;
            }
        }
        let most = BUDGET_BURST + Duration::from_secs(seconds).mul_f64(BUDGET_SHARE) + cost;
        assert!(spent <= most, "{spent:?} > {most:?}");
        assert!(spent > most / 2, "the allowance is used: {spent:?}");
    }

    #[test]
    fn a_tree_in_doubt_may_go_into_debt_but_not_for_ever() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.spend(BUDGET_BURST + Duration::from_millis(1));
        assert!(!budget.allows(now, 0.01));
        assert!(budget.allows(now, 0.1));
        budget.spend(BUDGET_BURST);
        assert!(!budget.allows(now, 0.1));
    }

    #[test]
    fn a_tree_without_doubt_leaves_the_budget_to_times_of_doubt() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        assert!(budget.allows(now, 0.0), "what is full anyway may be used");
        budget.spend(Duration::from_millis(3));
        assert!(!budget.allows(now, 0.0) && budget.allows(now, 0.01));
        assert!(budget.allows(now + Duration::from_secs(3), 0.0));
    }

    #[test]
    fn what_moves_while_it_is_measured_is_not_of_one_moment() {
        assert!(stood_still([(100, 100), (50, 52)].into_iter()));
        assert!(!stood_still([(100, 100), (0, 60)].into_iter()));
        assert!(stood_still([(0, 0)].into_iter()), "there is nothing to move");
    }

    #[test]
    fn private_pages_may_be_shared_memory_that_nobody_else_maps() {
        let kinds = |anon, shmem| Kinds { anon, shmem, ..Kinds::default() };
        let of = |private_dirty, share| {
            Rollup { pss: 0, uss: private_dirty, bytes: 0, private_dirty, share }.private().private
        };
        assert_eq!(of(30, kinds(100, 0)), 30);
        assert_eq!(of(130, kinds(100, 50)), 80, "at least this much of it is anonymous");
        assert_eq!(of(500, kinds(100, 0)), 100);
    }

    #[test]
    fn pressing_measurements_are_paced_by_their_cost() {
        let mut shares = Shares::new();
        assert!(shares.costs_at_most(0.1), "the first is free");
        shares.last = Some((Instant::now(), Duration::from_secs(60)));
        assert!(!shares.costs_at_most(0.1));
        shares.last = Some((Instant::now(), Duration::ZERO));
        assert!(shares.costs_at_most(0.1));
    }
}
