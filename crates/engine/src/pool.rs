//! Runs consecutive parallel operations inside the thread pool, saving a wake-up each.
//!
//! A step of training or a token of an answer is many parallel operations, one after another. An operation
//! that starts outside the pool puts its caller to sleep and wakes it again, which takes as long as a small
//! operation does.

/// Runs `work` on a thread of the pool.
pub fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

#[cfg(test)]
mod tests {
    use super::in_pool;

    #[test]
    fn work_runs_on_a_thread_of_the_pool() {
        assert!(rayon::current_thread_index().is_none(), "a test is begun outside");
        assert!(in_pool(rayon::current_thread_index).is_some());
    }
}
