//! Which part keeps memory: each alone, in a process of its own, with a verdict of its own.
//!
//! Takes commands, or the parts of our own pipeline. Gives how the memory of each moved and, for two
//! commands, the difference with its confidence. A leak is found by leaving things out, not by reading code.

mod compare;
mod component;
mod measure;

pub use compare::{Difference, compare};
pub use component::{Component, Work, run_component};
pub use measure::{Host, Measured, Trial, measure};
