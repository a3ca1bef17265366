//! The arithmetic under the model: weights in the type they are stored in, and operations on them.
//!
//! Operations take slices of f32 and [`Weight`]s, and write results and gradients into slices that the caller
//! gives. Nothing here allocates per step, every operation has its backward beside it, and the same inputs
//! give the same bits whatever the number of threads.
//!
//! - [`Weight`] holds a matrix in f32, bf16, f16, 8 bits or 4 bits ([`nf4`]), in memory or in a mapped file.
//! - [`product`] multiplies matrices; [`ops`] has the model's other operations.
//! - [`Layout`] and [`Arena`] place every buffer of a step before the first one.
//!
//! A linear layer, there and back:
//!
//! ```
//! use garden_engine::ops::linear::{Input, Linear, scratch_len};
//! use garden_engine::ops::{Rows, RowsMut};
//! use garden_engine::product::{Output, Start, multiply};
//! use garden_engine::{StoredAs, Weight};
//!
//! let (rows, inputs, outputs) = (1, 2, 3);
//! let weight = Weight::quantise(outputs, inputs, &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], StoredAs::Bf16)?;
//! let layer = Linear::new(&weight, None, None);
//! let mut scratch = vec![0.0; scratch_len(rows, outputs, inputs, 0, false)];
//!
//! let (x, mut out) = ([3.0, 4.0], [0.0; 3]);
//! let input = Input { x: &x, narrow: &[], rows };
//! layer.forward(input, RowsMut { data: &mut out, stride: outputs }, None, &mut scratch);
//! assert_eq!(out, [3.0, 4.0, 7.0]);
//!
//! let (grad, mut grad_x) = ([1.0, 0.0, 10.0], [0.0; 2]);
//! let term = layer.weight_input_term(Rows { data: &grad, stride: outputs }, rows);
//! multiply(Output::new(&mut grad_x, rows, inputs), Start::ZERO, &[term], &mut scratch);
//! assert_eq!(grad_x, [11.0, 10.0]);
//! # Ok::<(), garden_engine::WeightError>(())
//! ```

mod arena;
mod dynamic_map;
mod heap;
pub mod nf4;
pub mod ops;
mod pool;
pub mod product;
mod rows;
mod simd;
mod storage;
mod weight;

pub use arena::{Arena, Layout, Purpose, Slot, Usage};
pub use dynamic_map::{DYNAMIC_BLOCK, DynamicMap};
pub use heap::{CountingAllocator, return_large_pieces, trim_heap};
pub use pool::in_pool;
pub use simd::{Isa, IsaError, vectorised};
pub use storage::{SharedBytes, Storage};
pub use weight::{Elements, StoredAs, Weight, WeightError, stored_bytes};
