//! Work on the threads of the pool that follows itself closely.
//!
//! In comes work that consists of many parallel operations one after another, a step of training or a token of an answer; out
//! comes what it gives. It runs on a thread of the pool, and the other threads wait for its operations awake: to put
//! them to sleep and wake them between two operations takes as long as a small operation does.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether threads are kept awake already: for one piece of work at a time, so that no thread ever waits for two.
static AWAKE: AtomicBool = AtomicBool::new(false);

/// Runs `work` on a thread of the pool while the others stay awake.
pub fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let working = AtomicBool::new(true);
    rayon::scope(|scope| {
        if AWAKE.swap(true, Ordering::AcqRel) {
            return work();
        }
        let _end = End(&working);
        let worker = rayon::current_thread_index();
        let working = &working;
        scope.spawn_broadcast(move |_, context| {
            while Some(context.index()) != worker && working.load(Ordering::Acquire) {
                // Another thread may need the processor more: a loader's, for instance.
                if rayon::yield_now() != Some(rayon::Yield::Executed) {
                    std::thread::yield_now();
                }
            }
        });
        work()
    })
}

/// Lets the threads sleep again, however the work ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
        AWAKE.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::in_pool;
    use rayon::prelude::*;

    #[test]
    fn pieces_of_work_that_run_at_once_all_end() {
        let sum = || in_pool(|| (0..20).map(|_| (0..1000u64).into_par_iter().sum::<u64>()).sum::<u64>());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(sum)).collect();
            for thread in threads {
                assert_eq!(thread.join().expect("ends"), 20 * 499_500);
            }
        });
    }

    #[test]
    fn work_that_panics_does_not_keep_the_threads() {
        let panics = std::panic::catch_unwind(|| in_pool(|| panic!("on purpose")));
        assert!(panics.is_err());
        assert_eq!(in_pool(|| 7), 7);
    }
}
