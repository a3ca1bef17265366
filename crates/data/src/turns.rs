//! Which batches of an optimizer step are read by which rank.
//!
//! Takes the number of a batch and tells whether this rank reads it. The ranks of a run take turns within a
//! step, so each batch is read by exactly one of them, and a rank knows its own without asking the others.

/// Which batches this process reads, where several processes train one model together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// The number of this process among them, from 0.
    pub rank: u64,
    /// How many there are.
    pub size: u64,
    /// Batches in an optimizer step, those of all ranks together.
    pub per_step: u64,
}

impl Default for Turns {
    /// One process reads every batch.
    fn default() -> Self {
        Self { rank: 0, size: 1, per_step: 1 }
    }
}

impl Turns {
    /// Whether this rank reads a batch, counted from the start of the loader or of the epoch.
    pub(crate) fn has(self, batch: u64) -> bool {
        batch % self.per_step.max(1) % self.size.max(1) == self.rank
    }

    /// The first batch that this rank reads, if it reads any.
    pub(crate) fn first(self) -> Option<u64> {
        self.has(self.rank).then_some(self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_turns_within_a_step_and_begin_each_step_anew() {
        let of = |rank| (0..10).filter(move |batch| Turns { rank, size: 2, per_step: 5 }.has(*batch));
        assert_eq!(of(0).collect::<Vec<_>>(), [0, 2, 4, 5, 7, 9]);
        assert_eq!(of(1).collect::<Vec<_>>(), [1, 3, 6, 8]);
    }

    #[test]
    fn the_first_turn_of_a_rank_is_known() {
        for (size, per_step) in [(1, 1), (2, 2), (3, 4), (4, 3), (2, 1)] {
            for rank in 0..5 {
                let turns = Turns { rank, size, per_step };
                assert_eq!(turns.first(), (0..50).find(|batch| turns.has(*batch)), "{turns:?}");
            }
        }
    }
}
