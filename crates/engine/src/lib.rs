//! The arithmetic under the model: weights in the type they are stored in, and operations on them.
//!
//! Operations take slices of f32 and [`Weight`]s, and write results and gradients into slices that the caller
//! gives. Nothing here allocates per step, every operation has its backward beside it, and the same inputs
//! give the same bits whatever the number of threads.
//!
//! - [`Weight`] holds a matrix in f32, bf16, f16, 8 bits or 4 bits ([`Nf4`]), in memory or in a mapped file.
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
mod nf4;
mod operations;
mod pool;
mod products;
mod rows;
mod simd;
mod storage;
mod weight;

// Buffers: placed before the first step, and the heap around them.
pub use arena::{Arena, Layout, Purpose, Slot, Usage};
pub use heap::{CountingAllocator, return_large_pieces, share_one_heap, trim_heap};

// Weights: stored in one of five types, owned or mapped.
pub use nf4::{NF4_BLOCK, NF4_CODES, NF4_NESTED_BLOCK, Nf4, Nf4Scales};
pub use storage::{SharedBytes, Storage};
pub use weight::{Elements, StoredAs, Weight, WeightError, stored_bytes};

// 8-bit codes for the state of an optimizer.
pub use dynamic_map::{DYNAMIC_BLOCK, DynamicMap};

// Threads and the processor's instructions.
pub use pool::in_pool;
pub use simd::{Isa, IsaError, vectorised};

/// Matrix products: sums of `left x right` with weights of any stored type.
pub mod product {
    pub use crate::products::{
        Matrix, Output, Right, Start, Term, multiplications, multiply, multiply_rowwise, prepare_threads,
        scratch_len,
    };
}

/// The model's operations beside its products, each with its backward next to it.
///
/// Operations take plain slices, row by row. Slices whose lengths do not fit each other are the caller's
/// error and panic.
pub mod ops {
    pub use crate::operations::Write;
    pub use crate::rows::{Rows, RowsMut};

    /// Attention within segments of a batch, without a matrix of all scores.
    pub mod attention {
        pub use crate::operations::attention::{
            Heads, PAGE, Pages, Reading, Saved, Shape, backward, forward, paged, prepare_threads,
        };
    }
    /// Dropout by a mask that is computed, never stored.
    pub mod dropout {
        pub use crate::operations::dropout::Mask;
    }
    /// Token embedding: rows of the vocabulary's matrix, looked up by id.
    pub mod embedding {
        pub use crate::operations::embedding::{OutOfVocabulary, backward, forward};
    }
    /// GELU in its exact form, `x * Phi(x)` with the normal distribution `Phi`, as the vision merger uses it.
    pub mod gelu {
        pub use crate::operations::gelu::{backward_in_place, forward};
    }
    /// A linear layer, with the LoRA pair beside it in the same product.
    pub mod linear {
        pub use crate::operations::linear::{Input, Linear, Lora, backward_matrix, scratch_len};
    }
    /// The head and its cross-entropy, on the rows that have a label and a slice of the vocabulary at a time.
    pub mod loss {
        pub use crate::operations::loss::{Gradients, Totals, run, scratch_len};
    }
    /// RMS normalisation: every row divided by its root mean square, then weighted.
    pub mod norm {
        pub use crate::operations::norm::{backward, backward_weight, forward};
    }
    /// Rotary position embedding: pairs of values turned by an angle that grows with the token's position.
    pub mod rotary {
        pub use crate::operations::rotary::{Frequencies, Table, backward, forward};
    }
    /// SwiGLU: `silu(gate) * up`, the gated half of a feed-forward block.
    pub mod swiglu {
        pub use crate::operations::swiglu::{backward_in_place, forward};
    }
}
