//! Counts failed attempts to read a process tree, so that one failure costs a reading and not the watch.

/// After this many failures in a row the limit can no longer be enforced. Fewer are tolerated: a machine that
/// is short of memory or file handles for a moment must not end hours of work.
const MOST_FAILED_LOOKS: u32 = 60;

/// Counts looks that failed.
#[derive(Debug, Default)]
pub(crate) struct FailedLooks {
    in_a_row: u32,
    told: bool,
}

/// What to do about a look that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Say so, once.
    Tell,
    /// Nothing: it was said.
    GoOn,
    /// End the run: its limit cannot be kept.
    GiveUp,
}

impl FailedLooks {
    /// Counts one more failure. Gives up only where a limit must be enforced.
    pub fn count(&mut self, keeps_limit: bool) -> Failed {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if keeps_limit && self.in_a_row >= MOST_FAILED_LOOKS {
            Failed::GiveUp
        } else if std::mem::replace(&mut self.told, true) {
            Failed::GoOn
        } else {
            Failed::Tell
        }
    }

    /// Records a look that succeeded.
    pub fn end(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_fails_is_told_once_and_ends_nothing() {
        let mut failed = FailedLooks::default();
        assert_eq!(failed.count(true), Failed::Tell);
        for _ in 0..3 {
            // Each time it comes right again before there are too many.
            (failed.in_a_row..MOST_FAILED_LOOKS - 1)
                .for_each(|_| assert_eq!(failed.count(true), Failed::GoOn));
            failed.end();
        }
        let all: Vec<Failed> = (0..2 * MOST_FAILED_LOOKS).map(|_| failed.count(false)).collect();
        assert!(all.iter().all(|what| *what == Failed::GoOn), "without a limit there is nothing to give up");
    }

    #[test]
    fn a_limit_that_cannot_be_kept_any_more_is_given_up() {
        let mut failed = FailedLooks::default();
        let all: Vec<Failed> = (0..MOST_FAILED_LOOKS).map(|_| failed.count(true)).collect();
        assert_eq!(all.iter().position(|what| *what == Failed::GiveUp), Some(MOST_FAILED_LOOKS as usize - 1));
    }
}
