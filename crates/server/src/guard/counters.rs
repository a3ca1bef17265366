//! What was answered, counted for `/metrics`.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Requests by method, route and status. Routes are the server's own patterns, so their number is bounded.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: Mutex<BTreeMap<Route, Answers>>,
    under_way: AtomicU64,
}

/// A kind of request and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub method: &'static str,
    pub path: String,
    pub status: u16,
}

/// How many answers there were, and the time until they began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answers {
    pub count: u64,
    pub time: Duration,
}

impl Counters {
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }

    pub(super) fn count(&self, route: Route, time: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = requests.entry(route).or_default();
        answers.count += 1;
        answers.time += time;
    }

    pub(crate) fn requests(&self) -> Vec<(Route, Answers)> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().map(|(route, answers)| (route.clone(), *answers)).collect()
    }

    /// Requests whose answer has not begun.
    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }
}

/// A request whose answer has not begun.
pub(super) struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
