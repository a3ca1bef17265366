//! Zeroed memory for one arena, on huge pages where the system gives them.
//!
//! Takes a number of values and gives memory that stays where it is until dropped. Pages are touched only
//! when they are first used, and a page of 2 MiB instead of 4 KiB makes that first touch and every later
//! translation cheap.

#[cfg(all(target_os = "linux", not(miri)))]
pub(super) use mapped::Memory;
#[cfg(any(not(target_os = "linux"), miri))]
pub(super) use plain::Memory;

#[cfg(all(target_os = "linux", not(miri)))]
mod mapped {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    /// An anonymous mapping.
    #[derive(Debug)]
    pub(crate) struct Memory {
        start: NonNull<f32>,
        len: usize,
    }

    // SAFETY: the mapping belongs to this value alone.
    unsafe impl Send for Memory {}
    // SAFETY: shared access only reads the length; values are reached through `&mut self`.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub(crate) fn zeroed(len: usize) -> std::io::Result<Self> {
            if len == 0 {
                return Ok(Self { start: NonNull::dangling(), len });
            }
            // No slice may be longer than this, and the kernel has never given as much.
            let too_large = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            let bytes = len.checked_mul(size_of::<f32>()).filter(|&bytes| bytes <= isize::MAX as usize);
            let bytes = bytes.ok_or_else(too_large)?;
            // SAFETY: a fresh anonymous mapping; nothing else refers to it.
            let start = unsafe {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)?
            };
            // SAFETY: the range was just mapped. Where huge pages are off the advice fails, and small ones serve.
            let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
            let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
            Ok(Self { start, len })
        }

        pub(crate) fn values(&mut self) -> &mut [f32] {
            // SAFETY: `len` values were mapped zeroed, are aligned to a page, and are borrowed through `&mut self`.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: mapped in `zeroed` with this length, and no borrow outlives `self`. It cannot fail for such a
                // range, and there would be nothing to do about it.
                let _ = unsafe { munmap(self.start.as_ptr().cast(), 4 * self.len) };
            }
        }
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod plain {
    /// An ordinary allocation.
    #[derive(Debug)]
    pub(crate) struct Memory(Vec<f32>);

    impl Memory {
        pub(crate) fn zeroed(len: usize) -> std::io::Result<Self> {
            let mut values = Vec::new();
            values.try_reserve_exact(len)?;
            values.resize(len, 0.0);
            Ok(Self(values))
        }

        pub(crate) fn values(&mut self) -> &mut [f32] {
            &mut self.0
        }
    }
}
