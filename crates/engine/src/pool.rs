//! Work on the threads of the pool that follows itself closely.
//!
//! In comes work that consists of many parallel operations one after another, a step of training or a token of an answer; out
//! comes what it gives. It runs on a thread of the pool: an operation that is begun from outside puts its caller to sleep and wakes
//! it again, which takes as long as a small operation does.

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
