//! Spikes between two looks, from the high-water mark that the kernel keeps for each process.
//!
//! Follows the processes look by look and keeps the largest mark that rose above everything seen. A mark is
//! resident memory with file-backed pages, the only kind the kernel keeps, and that of one process alone: the
//! peaks of several need not coincide.

use super::ProcessRow;
use serde::Serialize;
use std::collections::HashMap;

/// Counters of a running process lag behind each other by a few pages.
const SLACK: u64 = 1 << 20;

/// The most that a process had resident between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spike {
    /// Its number.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Bytes, file-backed pages included.
    pub resident: u64,
}

/// Follows the high-water marks of a tree.
#[derive(Debug, Default)]
pub(super) struct HighWater {
    /// The most of each living process that was seen or is known from before.
    seen: HashMap<i32, u64>,
    /// The most of the tree that was seen.
    tree: u64,
    highest: Option<Spike>,
    /// The highest since it was last taken.
    fresh: Option<u64>,
    started: bool,
}

impl HighWater {
    /// Takes in a look. `attached` says that the tree started before the watch, so that its older marks do
    /// not count.
    pub fn follow(&mut self, rows: &[ProcessRow], resident: u64, attached: bool) {
        self.tree = self.tree.max(resident);
        self.seen.retain(|pid, _| rows.iter().any(|row| row.pid == *pid));
        for row in rows {
            // At first sight a mark may be inherited by a fork; what is above the whole tree is not.
            let first = if attached && !self.started { row.peak } else { row.peak.min(self.tree) };
            let seen = self.seen.entry(row.pid).or_insert(first);
            *seen = (*seen).max(row.memory.resident());
            if row.peak > *seen + SLACK {
                *seen = row.peak;
                self.fresh = self.fresh.max(Some(row.peak));
                if self.highest.as_ref().is_none_or(|highest| row.peak > highest.resident) {
                    let (pid, command) = (row.pid, row.command.clone());
                    self.highest = Some(Spike { pid, command, resident: row.peak });
                }
            }
        }
        self.started = true;
    }

    /// The highest so far.
    pub fn highest(&self) -> Option<Spike> {
        self.highest.clone()
    }

    /// The highest since this was last asked.
    pub fn take_fresh(&mut self) -> Option<u64> {
        self.fresh.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Kinds;

    fn row(pid: i32, resident: u64, peak: u64) -> ProcessRow {
        ProcessRow {
            pid,
            memory: Kinds { anon: resident, ..Kinds::default() },
            peak,
            ..ProcessRow::default()
        }
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn a_mark_above_all_that_was_seen_is_a_spike() {
        let mut marks = HighWater::default();
        marks.follow(&[row(1, 50 * MB, 50 * MB)], 50 * MB, false);
        assert_eq!(marks.highest(), None);
        marks.follow(&[row(1, 60 * MB, 500 * MB)], 60 * MB, false);
        assert_eq!(marks.highest().map(|spike| spike.resident), Some(500 * MB));
        assert_eq!((marks.take_fresh(), marks.take_fresh()), (Some(500 * MB), None), "told once");
        marks.follow(&[row(1, 60 * MB, 500 * MB)], 60 * MB, false);
        assert_eq!(marks.take_fresh(), None, "an old mark is no new spike");
    }

    #[test]
    fn what_a_look_saw_or_a_fork_inherited_is_none() {
        let mut marks = HighWater::default();
        marks.follow(&[row(1, 900 * MB, 900 * MB)], 900 * MB, false);
        marks.follow(&[row(1, 900 * MB, 900 * MB), row(2, 20 * MB, 900 * MB)], 900 * MB, false);
        assert_eq!(marks.highest(), None);
    }

    #[test]
    fn marks_from_before_the_watch_do_not_count() {
        let mut marks = HighWater::default();
        marks.follow(&[row(1, 100 * MB, 900 * MB)], 100 * MB, true);
        assert_eq!(marks.highest(), None);
        marks.follow(&[row(1, 100 * MB, 950 * MB)], 100 * MB, true);
        assert_eq!(marks.highest().map(|spike| spike.resident), Some(950 * MB));
    }
}
