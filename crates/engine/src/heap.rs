//! Giving freed memory back to the system.

/// Asks the C allocator to return what it keeps of freed memory; without effect where the allocator has no such call.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, touches only the allocator's own lists under its own locks, and may be called
    // at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
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
        // Small pieces, which the allocator keeps; every other one stays in use, so nothing shrinks from the top.
        let mut pieces: Vec<Option<Vec<u8>>> = (0..20_000).map(|_| Some(vec![1; 16_000])).collect();
        pieces.chunks_mut(64).for_each(|group| group[1..].iter_mut().for_each(|piece| *piece = None));
        let before = resident();
        super::trim_heap();
        let after = resident();
        assert!(after + 20_000 < before, "{before} -> {after} pages of 4 kB");
        assert_eq!(pieces.iter().flatten().count(), 313);
    }
}
