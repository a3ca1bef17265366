//! Calls third-party decoders without letting a panic of theirs end the process.
//!
//! Takes a call that decodes bytes of unknown origin and gives its result, or `None` if it panicked. Whatever
//! the call left half written must be overwritten or dropped by the caller.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a third party's reader on bytes that are not to be trusted.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
