//! Which part keeps memory: each alone, in a process of its own, with a verdict of its own.
//!
//! In come commands, or the parts of our own pipeline; out comes how the memory of each moved, and for two commands the difference with its
//! confidence. This is how a leak is found: not by reading code, but by leaving things out.

mod compare;
mod component;
mod measure;

pub use compare::{Difference, compare};
pub use component::{Component, Work, run_component};
pub use measure::{Host, Measured, Trial, measure};
