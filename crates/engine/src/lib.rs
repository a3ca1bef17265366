//! The arithmetic under the model: weights in the type they are stored in, and operations on them.
//!
//! In come slices of f32 and [`Weight`]s; out come results and gradients in slices the caller gives. Nothing here
//! allocates per step, every operation has its backward beside it, and the same inputs give the same bits.

pub mod arena;
pub mod dynamic_map;
mod heap;
pub mod nf4;
pub mod ops;
mod pool;
pub mod product;
mod rows;
pub mod simd;
pub mod storage;
pub mod weight;

pub use heap::{CountingAllocator, return_large_pieces, trim_heap};
pub use pool::in_pool;
pub use storage::{SharedBytes, Storage};
pub use weight::{Elements, StoredAs, Weight, WeightError, stored_bytes};
