//! The model's operations beside its matrix products, each with its backward next to it.
//!
//! Operations take plain slices, row by row, and write results and gradients into slices that the caller
//! gives. Rows are shared out among rayon's threads, but every sum has one fixed order, so the same inputs
//! give the same bits whatever the threads do. Slices whose lengths do not fit each other are the caller's
//! error and panic.

pub(crate) mod attention;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod gelu;
pub(crate) mod linear;
pub(crate) mod loss;
mod math;
pub(crate) mod norm;
pub(crate) mod rotary;
pub(crate) mod swiglu;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use crate::rows::{Rows, RowsMut};

/// What an operation does with what its output already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Overwrites it.
    Replace,
    /// Adds to it, as the gradient of a residual connection needs.
    Add,
}

/// Values that one task takes: 64 KiB stay in the L2, and waking a thread for less costs more than the work.
const TASK: usize = 16 * 1024;

/// Rows of `width` values that make up one task.
fn rows_per_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}
