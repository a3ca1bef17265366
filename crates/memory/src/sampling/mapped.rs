//! Memory that processes map together (shared memory or files), estimated between two measurements.
//!
//! Compares what each process maps now with what it mapped, and was counted for, at the last measurement.
//! Growth since then may be one segment that all of them map, or one segment each; only the next measurement
//! tells. Until then it counts once.

/// Growth up to this part of what a process had is assumed to be shared like the rest.
const KNOWN_GROWTH: f64 = 0.1;

/// What a measurement said of one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Then {
    /// What it mapped.
    pub mapped: u64,
    /// Its part of that.
    pub share: u64,
}

impl Then {
    /// Its part of what it maps now, if all of that is shared as it was.
    pub fn part(self, now: u64) -> u64 {
        match self.mapped {
            0 => now,
            mapped => (now as f64 * (self.share as f64 / mapped as f64)).round() as u64,
        }
    }
}

/// The processes of a tree, added up.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    processes: usize,
    all: u64,
    largest: u64,
    /// Measured, counted for each process.
    then: u64,
    /// Measured, each page once.
    share: u64,
    /// The part of `share` that is left, with what is taken to be shared as it is.
    known: f64,
    /// Growth beyond that.
    new: f64,
    grown: u64,
    shrunk: u64,
}

impl Mapped {
    pub fn add(&mut self, now: u64, measured: Option<Then>) {
        self.processes += 1;
        self.all += now;
        self.largest = self.largest.max(now);
        let Then { mapped, share } = measured.unwrap_or(Then { mapped: 0, share: 0 });
        let share = share.min(mapped);
        self.then += mapped;
        self.share += share;
        let known = (now as f64).min((1.0 + KNOWN_GROWTH) * mapped as f64);
        self.known += known * (share as f64 / (mapped as f64).max(1.0));
        self.new += now as f64 - known;
        self.grown += now.saturating_sub(mapped);
        self.shrunk += mapped.saturating_sub(now);
    }

    /// What the tree has, by the best estimate. A part is also divided with strangers that map the same pages
    /// (libraries, a parent outside the tree), so it is never less than the largest process maps.
    pub fn likely(&self) -> u64 {
        let shared = self.share as f64 / (self.then as f64).max(1.0);
        // Segments come and go: another process may by now have what one has given back.
        let known = self.known + shared * self.new.min(self.shrunk as f64);
        (known.round() as u64).clamp(self.largest, self.all)
    }

    /// An upper bound.
    pub fn most(&self) -> u64 {
        ((self.known + self.new).round() as u64).clamp(self.likely(), self.all)
    }

    /// A lower bound.
    pub fn certain(&self) -> u64 {
        self.largest
    }

    /// What came or went since it was measured, where it may be shared.
    pub fn moved(&self) -> u64 {
        if self.processes > 1 { self.grown + self.shrunk } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(processes: &[(u64, Option<(u64, u64)>)]) -> Mapped {
        let mut tree = Mapped::default();
        for (now, then) in processes {
            tree.add(*now, then.map(|(mapped, share)| Then { mapped, share }));
        }
        tree
    }

    #[test]
    fn what_workers_begin_to_map_after_the_measurement_counts_once() {
        let mut processes = vec![(400, Some((400, 400)))];
        processes.extend([(400, Some((0, 0))); 8]);
        let tree = tree(&processes);
        assert_eq!((tree.certain(), tree.likely(), tree.most()), (400, 400, 3600));
        assert_eq!(tree.moved(), 3200, "a reason to measure again");
    }

    #[test]
    fn a_page_of_its_own_says_nothing_of_a_large_segment() {
        let tree = tree(&[(500, Some((8, 8))), (500, Some((8, 8))), (500, Some((8, 8)))]);
        assert!((500..=510).contains(&tree.likely()), "{}", tree.likely());
    }

    #[test]
    fn a_little_more_is_shared_as_the_rest_is() {
        let halves = tree(&[(104, Some((100, 50))), (104, Some((100, 50)))]);
        assert_eq!(halves.likely(), 104);
        let own = tree(&[(104, Some((100, 100))), (104, Some((100, 100)))]);
        assert_eq!(own.likely(), 208);
    }

    #[test]
    fn segments_that_come_and_go_among_workers_add_up() {
        let tree = tree(&[(40, Some((50, 50))), (70, Some((50, 50))), (40, Some((50, 50)))]);
        assert_eq!(tree.likely(), 150);
    }

    #[test]
    fn what_was_given_back_is_gone() {
        let tree = tree(&[(50, Some((100, 40))), (30, Some((50, 25)))]);
        assert_eq!(tree.likely(), 50, "at least what one of them maps");
        assert_eq!(super::tests::tree(&[(0, Some((100, 40))), (0, None)]).likely(), 0);
    }

    #[test]
    fn without_a_measurement_it_is_what_the_largest_maps() {
        let tree = tree(&[(100, None), (60, None), (40, None)]);
        assert_eq!((tree.certain(), tree.likely(), tree.most()), (100, 100, 200));
    }

    #[test]
    fn one_process_has_what_it_maps() {
        let tree = tree(&[(700, Some((100, 20)))]);
        assert_eq!((tree.likely(), tree.moved()), (700, 0));
    }
}
