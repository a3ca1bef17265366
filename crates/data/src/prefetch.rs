//! Work done ahead by threads, handed out in order, within a budget of bytes.
//!
//! Takes an iterator over pieces of work, such as rows, and gives their results in the same order, whatever
//! the number of threads and whichever finishes first. A piece is begun only while the waiting results and
//! those under way fit the budget. The next result in order is always under way, so no budget is too small.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

/// What a result weighs while it waits.
pub(crate) trait Weight {
    /// Its bytes.
    fn bytes(&self) -> u64;
}

/// A thread died of a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a loader thread panicked; its message is above")]
pub(crate) struct Panicked;

/// Threads that work ahead.
pub(crate) struct Prefetch<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
    /// The result that is handed out next, counted from 0.
    next: u64,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Signalled when a piece may be begun, or when all threads shall stop.
    room: Condvar,
    /// Signalled when a result is there.
    done: Condvar,
    budget: u64,
}

struct State<T> {
    /// The pieces that are not begun yet. A thread takes one while it holds the lock, so they must come
    /// quickly.
    pieces: Box<dyn Iterator<Item = u64> + Send>,
    /// How many were begun.
    begun: u64,
    /// Whether none is left to begin.
    exhausted: bool,
    ready: BTreeMap<u64, T>,
    ready_bytes: u64,
    under_way: u64,
    /// The heaviest result so far: what a piece under way is expected to weigh.
    heaviest: u64,
    stop: bool,
    panicked: bool,
}

impl<T> Shared<T> {
    /// The state stays sound when a thread dies: every change to it is complete before anything can panic.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn may_begin(&self, budget: u64) -> bool {
        let expected = self.heaviest.saturating_mul(self.under_way + 1);
        let idle = self.under_way == 0 && self.ready.is_empty();
        idle || self.ready_bytes.saturating_add(expected) <= budget
    }
}

impl<T: Weight + Send + 'static> Prefetch<T> {
    /// Begins the pieces in their order. Each thread works with its own `worker`.
    pub fn start<W, P>(workers: Vec<W>, budget: u64, pieces: P) -> Self
    where
        W: FnMut(u64) -> T + Send + 'static,
        P: Iterator<Item = u64> + Send + 'static,
    {
        let state = State {
            pieces: Box::new(pieces),
            begun: 0,
            exhausted: false,
            ready: BTreeMap::new(),
            ready_bytes: 0,
            under_way: 0,
            heaviest: 0,
            stop: false,
            panicked: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), room: Condvar::new(), done: Condvar::new(), budget });
        let thread = |worker| {
            let shared = shared.clone();
            std::thread::spawn(move || run(&shared, worker))
        };
        let threads = workers.into_iter().map(thread).collect();
        Self { shared, threads, next: 0 }
    }

    /// The next result in order; `None` after the last.
    pub fn take_next(&mut self) -> Result<Option<T>, Panicked> {
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.ready.remove(&self.next) {
                state.ready_bytes -= result.bytes();
                self.next += 1;
                self.shared.room.notify_all();
                return Ok(Some(result));
            }
            if state.exhausted && self.next == state.begun {
                return Ok(None);
            }
            if state.panicked || self.threads.is_empty() {
                return Err(Panicked);
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // The panic was already printed.
            let _ = thread.join();
        }
    }
}

fn run<T: Weight>(shared: &Shared<T>, mut worker: impl FnMut(u64) -> T) {
    loop {
        let mut state = shared.lock();
        while !state.stop && !state.exhausted && !state.may_begin(shared.budget) {
            state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop || state.exhausted {
            return;
        }
        let Some(piece) = state.pieces.next() else {
            state.exhausted = true;
            shared.room.notify_all();
            shared.done.notify_all();
            return;
        };
        let number = state.begun;
        state.begun += 1;
        state.under_way += 1;
        drop(state);

        let result = catch_unwind(AssertUnwindSafe(|| worker(piece)));

        let mut state = shared.lock();
        state.under_way -= 1;
        match result {
            Ok(result) => {
                let bytes = result.bytes();
                state.heaviest = state.heaviest.max(bytes);
                state.ready_bytes += bytes;
                state.ready.insert(number, result);
            }
            Err(_) => {
                state.panicked = true;
                state.stop = true;
                shared.room.notify_all();
            }
        }
        shared.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        thread,
        time::Duration,
    };

    struct Piece(u64, u64);

    impl Weight for Piece {
        fn bytes(&self) -> u64 {
            self.1
        }
    }

    fn collect(mut prefetch: Prefetch<Piece>) -> Vec<u64> {
        std::iter::from_fn(|| prefetch.take_next().unwrap()).map(|piece| piece.0).collect()
    }

    #[test]
    fn results_come_in_order_whatever_the_number_of_threads_and_the_budget() {
        for workers in [1, 2, 5] {
            for budget in [0, 10, 1_000_000] {
                // Every third piece is slow, so that later ones finish first.
                let worker = |n| {
                    thread::sleep(Duration::from_micros(if n % 3 == 0 { 300 } else { 0 }));
                    Piece(n, n % 7)
                };
                let prefetch = Prefetch::start(vec![worker; workers], budget, 5..105);
                assert_eq!(collect(prefetch), (5..105).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn pieces_may_be_any_numbers_and_there_may_be_none() {
        let prefetch = |pieces: Vec<u64>| Prefetch::start(vec![|n| Piece(n, 1); 2], 3, pieces.into_iter());
        assert_eq!(collect(prefetch(vec![7, 3, 3, 900])), [7, 3, 3, 900]);
        let mut none = prefetch(vec![]);
        assert!(none.take_next().unwrap().is_none());
        assert!(none.take_next().unwrap().is_none(), "and there is still none");
    }

    #[test]
    fn what_waits_stays_within_the_budget() {
        const BYTES: u64 = 100;
        let held = Arc::new(AtomicU64::new(0));
        let worker = {
            let held = held.clone();
            move |n| {
                held.fetch_add(BYTES, Ordering::SeqCst);
                Piece(n, BYTES)
            }
        };
        let mut prefetch = Prefetch::start(vec![worker; 3], 5 * BYTES, 0..200);
        let mut most = 0;
        while let Some(piece) = prefetch.take_next().unwrap() {
            thread::sleep(Duration::from_micros(100));
            most = most.max(held.load(Ordering::SeqCst));
            held.fetch_sub(piece.bytes(), Ordering::SeqCst);
        }
        // The five that fit, and the one in hand; before the first weight is known, one a thread may be under
        // way.
        assert!((2 * BYTES..=6 * BYTES).contains(&most), "{most}");
    }

    #[test]
    fn a_thread_that_panics_is_an_error_and_not_a_wait() {
        let worker = |n| if n == 3 { panic!("meant to happen in this test") } else { Piece(n, 1) };
        let mut prefetch = Prefetch::start(vec![worker; 2], 0, 0..10);
        for n in 0..3 {
            assert_eq!(prefetch.take_next().unwrap().map(|piece| piece.0), Some(n));
        }
        assert!(prefetch.take_next().is_err());
    }

    #[test]
    fn stops_when_it_is_dropped() {
        let begun = Arc::new(AtomicU64::new(0));
        let worker = {
            let begun = begun.clone();
            move |n| {
                begun.fetch_add(1, Ordering::SeqCst);
                Piece(n, 1)
            }
        };
        drop(Prefetch::start(vec![worker; 2], 8, 0..));
        assert!(begun.load(Ordering::SeqCst) <= 10);
    }
}
