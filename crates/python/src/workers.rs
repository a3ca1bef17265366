//! The threads of one collator, and the buffers that they reuse.
//!
//! Takes work items and gives their results in order. Threads belong to one process: after a fork, the child makes its
//! own at its first batch, because a fork copies no thread. What the parent had is left alone there, since a thread may
//! have held any lock of it.

use garden_data::ImageWorkspace;
use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};
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
    /// None where one thread is enough: the caller's.
    pool: Option<ThreadPool>,
    spaces: Mutex<Vec<Space>>,
}

impl Workers {
    fn new(threads: usize) -> Result<Self, String> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("collator {n}"));
        let pool = (threads > 1).then(|| pool.build()).transpose().map_err(|error| error.to_string())?;
        Ok(Self { pid: process::id(), pool, spaces: Mutex::default() })
    }

    /// Does the work, on all threads at once.
    pub fn map<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
        match &self.pool {
            Some(pool) if items.len() > 1 => pool.install(|| items.into_par_iter().map(work).collect()),
            _ => items.into_iter().map(work).collect(),
        }
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
