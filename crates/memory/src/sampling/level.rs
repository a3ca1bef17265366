//! A tree's own memory at one moment, and how well it is known.

use super::{kin::Known, mapped::Mapped};
use serde::Serialize;

/// Bytes that a tree must give back itself, as an estimate between bounds.
///
/// Where nothing is shared, or everything was just measured, all of them are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The best estimate; readings and verdicts are about this.
    pub owned: u64,
    /// A lower bound.
    pub certain: u64,
    /// An upper bound.
    pub most: u64,
    /// A lower bound that does not change when the tree is measured. It moves only when memory does, so that
    /// rates can be computed from it.
    #[serde(skip)]
    pub pace: u64,
    /// The part of the estimate that has moved since it was measured: it may be too high as well as too low.
    #[serde(skip)]
    pub unsure: u64,
}

impl Level {
    /// A level that is known to the byte.
    #[cfg(test)]
    pub(crate) fn exact(owned: u64) -> Self {
        Self { owned, certain: owned, most: owned, pace: owned, unsure: 0 }
    }

    /// Private and shared memory together.
    pub(super) fn of(private: Known, shared: &Mapped) -> Self {
        Self {
            owned: private.likely + shared.likely(),
            certain: private.certain + shared.certain(),
            most: private.most + shared.most(),
            pace: private.pace + shared.certain(),
            unsure: private.unsure + shared.moved(),
        }
    }

    /// The part of the estimate that is uncertain.
    pub(crate) fn doubt(&self) -> f64 {
        self.most.saturating_sub(self.owned).max(self.unsure) as f64 / (self.owned as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_that_may_be_too_high_is_in_doubt_as_one_that_may_be_too_low() {
        let level = Level::exact(1000);
        assert_eq!(level.doubt(), 0.0);
        assert_eq!(Level { most: 1100, ..level }.doubt(), 0.1);
        assert_eq!(Level { unsure: 200, ..level }.doubt(), 0.2);
    }
}
