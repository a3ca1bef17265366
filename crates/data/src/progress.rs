//! How far long work has come, for whoever waits for it.
//!
//! The work reports its beginning, its steps and its end to a [`Progress`]; what becomes of them is the
//! listener's business. `()` listens to nothing.

/// Hears how far a piece of work is.
pub trait Progress: Send + Sync {
    /// Work begins; `total` is in the unit of [`Progress::advance`].
    fn begin(&self, what: &str, unit: ProgressUnit, total: u64);
    /// Some of it is done.
    fn advance(&self, by: u64);
    /// All of it is done.
    fn end(&self);
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes read or downloaded.
    Bytes,
    /// Rows read or written.
    Rows,
}

impl Progress for () {
    fn begin(&self, _: &str, _: ProgressUnit, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}
