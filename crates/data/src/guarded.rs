//! Readers of others, kept from taking us down.
//!
//! In comes a call into a third party's decoder of bytes that anybody may have written; out goes its result, or `None` if it
//! panicked. What it may have left half written must not be used again: callers overwrite or drop it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a third party's reader on bytes that are not to be trusted.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
