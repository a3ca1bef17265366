//! The heap: giving freed memory back to the system, on demand or as it is freed, and counting what is taken
//! from it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asks the C allocator to return what it keeps of freed memory; without effect where the allocator has no
/// such call.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, touches only the allocator's own lists under its own locks, and may be called
    // at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The size from which on a piece of memory is the system's own: the C allocator's default.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Has the C allocator give every large piece back as soon as it is freed. By itself it raises what it calls
/// large to whatever was freed last, and then keeps such pieces: memory that comes and goes leaves a higher
/// level behind. Without effect where the allocator has no such call.
pub fn return_large_pieces() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and sets one of the allocator's own parameters under its lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Has all threads of the process share one heap. By itself the C allocator makes a heap for each of several threads, and
/// each keeps what its thread once needed: a server whose work wanders between threads then holds several times as much as
/// it uses. To be called before the first thread is started; without effect where the allocator has no such call.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and sets one of the allocator's own parameters under its lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// The system's allocator with a note of what was asked of it: as `#[global_allocator]` of a test or a
/// measurement.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    allocations: AtomicUsize,
    largest: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator that has counted nothing yet.
    pub const fn new() -> Self {
        Self { allocations: AtomicUsize::new(0), largest: AtomicUsize::new(0) }
    }

    /// Allocations since the last call, and the bytes of the largest of them.
    pub fn take(&self) -> (usize, usize) {
        (self.allocations.swap(0, Ordering::Relaxed), self.largest.swap(0, Ordering::Relaxed))
    }

    fn count(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is handed to the system's allocator with the arguments it came with; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        self.count(bytes);
        // SAFETY: as above; the block came from the system's allocator, because every block does.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    /// Resident pages, from the second number of /proc/self/statm.
    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
        text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages")
    }

    #[test]
    fn freed_memory_goes_back() {
        // Small pieces, which the allocator keeps; every other one stays in use, so nothing shrinks from the
        // top.
        let mut pieces: Vec<Option<Vec<u8>>> = (0..20_000).map(|_| Some(vec![1; 16_000])).collect();
        pieces.chunks_mut(64).for_each(|group| group[1..].iter_mut().for_each(|piece| *piece = None));
        let before = resident();
        super::trim_heap();
        let after = resident();
        assert!(after + 20_000 < before, "{before} -> {after} pages of 4 kB");
        assert_eq!(pieces.iter().flatten().count(), 313);
    }
}
