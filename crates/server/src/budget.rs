//! The memory that jobs and models in use share.
//!
//! Takes requests for bytes and gives reservations, which give their bytes back when they are dropped. The sum of
//! reservations never exceeds the budget, unless more was running already when the server started. A job that waits
//! for memory claims it: what becomes free goes to no model until the job has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes that everything started by the server may take together.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    total: u64,
    sums: Arc<Mutex<Sums>>,
}

#[derive(Debug, Default)]
struct Sums {
    used: u64,
    claimed: u64,
}

fn lock(sums: &Mutex<Sums>) -> MutexGuard<'_, Sums> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self { total, sums: Arc::default() }
    }

    /// All bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that nobody has reserved.
    pub(crate) fn free(&self) -> u64 {
        self.total.saturating_sub(lock(&self.sums).used)
    }

    /// Bytes that nobody has reserved or claimed.
    pub(crate) fn unclaimed(&self) -> u64 {
        let sums = lock(&self.sums);
        self.total.saturating_sub(sums.used.saturating_add(sums.claimed))
    }

    /// Whether somebody waits for bytes.
    pub(crate) fn is_claimed(&self) -> bool {
        lock(&self.sums).claimed > 0
    }

    /// Reserves bytes if they are free, whoever claims them: for jobs, which start in the order of their queue.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.reserve_beside(bytes, |_| 0)
    }

    /// Reserves bytes if they are free and nobody claims them.
    pub(crate) fn reserve_unclaimed(&self, bytes: u64) -> Option<Reservation> {
        self.reserve_beside(bytes, |sums| sums.claimed)
    }

    fn reserve_beside(&self, bytes: u64, others: impl FnOnce(&Sums) -> u64) -> Option<Reservation> {
        let mut sums = lock(&self.sums);
        let after = sums.used.checked_add(bytes)?;
        after.checked_add(others(&sums)).filter(|all| *all <= self.total)?;
        sums.used = after;
        Some(Reservation { bytes, sums: self.sums.clone() })
    }

    /// Reserves bytes for something that runs already, even beyond the total: after a restart with a smaller budget
    /// nothing new starts until there is room again.
    pub(crate) fn reserve_anyway(&self, bytes: u64) -> Reservation {
        lock(&self.sums).used += bytes;
        Reservation { bytes, sums: self.sums.clone() }
    }

    /// Claims bytes that are not free yet.
    pub(crate) fn claim(&self, bytes: u64) -> Claim {
        lock(&self.sums).claimed += bytes;
        Claim { bytes, sums: self.sums.clone() }
    }
}

/// Bytes of a budget that somebody has.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    sums: Arc<Mutex<Sums>>,
}

impl Reservation {
    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.sums).used -= self.bytes;
    }
}

/// Bytes of a budget that somebody waits for.
#[derive(Debug)]
pub(crate) struct Claim {
    bytes: u64,
    sums: Arc<Mutex<Sums>>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.sums).claimed -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_budget_and_come_back() {
        let budget = Budget::new(10);
        let six = budget.reserve(6).unwrap();
        assert!(budget.reserve(5).is_none());
        let four = budget.reserve(4).unwrap();
        assert_eq!(budget.free(), 0);
        drop(six);
        assert_eq!(budget.free(), 6);
        drop(four);
        assert_eq!((budget.free(), budget.total()), (10, 10));
        assert!(budget.reserve(u64::MAX).is_none());
    }

    #[test]
    fn what_runs_already_may_exceed_the_budget_until_it_ends() {
        let budget = Budget::new(8);
        let (first, second) = (budget.reserve_anyway(6), budget.reserve_anyway(6));
        assert_eq!(budget.free(), 0);
        drop(first);
        assert_eq!(budget.free(), 2);
        assert!(budget.reserve(3).is_none());
        drop(second);
        assert_eq!(budget.free(), 8);
    }

    #[test]
    fn what_a_job_claims_goes_to_no_model() {
        let budget = Budget::new(10);
        let model = budget.reserve_unclaimed(6).unwrap();
        assert!(budget.reserve(8).is_none());
        let claim = budget.claim(8);
        assert!(budget.reserve_unclaimed(4).is_none(), "nor what is free now");
        drop(model);
        assert!(budget.reserve_unclaimed(6).is_none());
        assert_eq!(budget.unclaimed(), 2);
        let job = budget.reserve(8).unwrap();
        drop(claim);
        assert!(budget.reserve_unclaimed(2).is_some());
        drop(job);
    }
}
