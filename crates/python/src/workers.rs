//! The threads of one collator, and the buffers that they reuse.
//!
//! Takes work items and gives their results in order. Threads belong to one process: after a fork, the child makes its
//! own at its first batch, because a fork copies no thread. What the parent had is left alone there, since a thread may
//! have held any lock of it.

use garden_data::ImageWorkspace;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    mem, process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Buffers beyond this are freed after an image: a camera's photo of 12 megapixels takes 30 MB of patches.
const MAX_KEPT_BYTES: usize = 48 << 20;

/// What one thread needs for an image.
#[derive(Default)]
pub(crate) struct Space {
    pub work: ImageWorkspace,
    pub patches: Vec<u8>,
}

/// The threads and buffers of one process.
pub(crate) struct Workers {
    pid: u32,
    /// The threads that help the caller's; none where that is enough.
    helpers: Option<ThreadPool>,
    spaces: Mutex<Vec<Space>>,
}

impl Workers {
    fn new(threads: usize) -> Result<Self, String> {
        let pool = ThreadPoolBuilder::new().num_threads(threads - 1).thread_name(|n| format!("collator {n}"));
        let helpers = (threads > 1).then(|| pool.build()).transpose().map_err(|error| error.to_string())?;
        Ok(Self { pid: process::id(), helpers, spaces: Mutex::default() })
    }

    /// Does the work, on all threads at once. The caller's begins at once: it takes milliseconds to wake a helper whose
    /// processor is busy, as it is with the threads of torch, which spin for a while after their work.
    pub fn map<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        let Some(helpers) = self.helpers.as_ref().filter(|_| items.len() > 1) else {
            return items.into_iter().map(work).collect();
        };
        let count = helpers.current_num_threads().min(items.len() - 1);
        let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
        let queue = Mutex::new(items.into_iter().zip(&mut results));
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let drain = || {
            while let Some((item, result)) = next() {
                *result = Some(work(item));
            }
        };
        helpers.in_place_scope(|scope| {
            (0..count).for_each(|_| scope.spawn(|_| drain()));
            drain();
        });
        results.into_iter().flatten().collect()
    }

    /// Lends buffers to one image.
    pub fn with_space<R>(&self, work: impl FnOnce(&mut Space) -> R) -> R {
        let spaces = || self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut space = spaces().pop().unwrap_or_default();
        let result = work(&mut space);
        if space.work.buffer_bytes() + space.patches.capacity() <= MAX_KEPT_BYTES {
            spaces().push(space);
        }
        result
    }
}

/// The workers of whichever process asks. Its lock is only taken with the interpreter's lock held, and a fork in Python
/// holds that too: so a child never finds it locked.
#[derive(Default)]
pub(crate) struct OwnWorkers(Mutex<Option<Arc<Workers>>>);

impl OwnWorkers {
    /// The workers of this process, made at the first call. `threads` says how many; it may run Python, where another
    /// thread gets its turn, so nothing is locked meanwhile.
    pub fn get<E: From<String>>(
        &self,
        threads: impl FnOnce() -> Result<usize, E>,
    ) -> Result<Arc<Workers>, E> {
        if let Some(workers) = self.own() {
            return Ok(workers);
        }
        let threads = threads()?;
        if let Some(workers) = self.own() {
            return Ok(workers);
        }
        let workers = Arc::new(Workers::new(threads)?);
        forget_of_parent(self.lock().replace(workers.clone()));
        Ok(workers)
    }

    fn own(&self) -> Option<Arc<Workers>> {
        self.lock().as_ref().filter(|workers| workers.pid == process::id()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Workers>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnWorkers {
    fn drop(&mut self) {
        forget_of_parent(self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Leaves the workers of another process alone: ending its threads would wait for locks that nobody gives back.
fn forget_of_parent(workers: Option<Arc<Workers>>) {
    if let Some(workers) = workers.filter(|workers| workers.pid != process::id()) {
        mem::forget(workers);
    }
}
