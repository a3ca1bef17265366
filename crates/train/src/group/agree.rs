//! What processes that train together must agree on: whether a result is good for all of them.
//!
//! Takes the result of one process. Gives it back if all processes succeeded. If one did not, every process gets an error:
//! the one that failed its own, the others the words of the first that did.

use super::{Group, GroupError};

/// Another process could not do its part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {reason}")]
pub struct Elsewhere {
    /// Which process.
    pub rank: usize,
    /// What it said.
    pub reason: String,
}

impl Group {
    /// The result of this process, if all processes succeeded.
    pub fn all_well<T, E>(&self, result: Result<T, E>) -> Result<T, E>
    where
        E: std::error::Error + From<Elsewhere> + From<GroupError>,
    {
        if self.size() == 1 {
            return result;
        }
        let said = self.gather(&result.as_ref().err().map(ToString::to_string))?;
        let failed =
            said.into_iter().enumerate().find_map(|(rank, reason)| Some(Elsewhere { rank, reason: reason? }));
        match (result, failed) {
            (Ok(_), Some(failed)) => Err(failed.into()),
            (result, _) => result,
        }
    }

    /// What the first process made of something that only it does; the others get `other` if it succeeded.
    pub fn by_first<T, E>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
        other: impl FnOnce() -> T,
    ) -> Result<T, E>
    where
        E: std::error::Error + From<Elsewhere> + From<GroupError>,
    {
        self.all_well(if self.is_first() { work() } else { Ok(other()) })
    }
}
