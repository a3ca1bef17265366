//! Forward and backward of the whole model in one planned arena.
//!
//! Takes a [`Model`] (weights, and perhaps an adapter), the [`Shapes`] of the longest batch, and then batch
//! after batch, and gives sums of losses and gradients of what is trained. Every buffer is laid out before
//! the first step: a step allocates nothing of a tensor's size, and the same batch gives the same bits.

mod batch;
mod batch_decode;
mod block;
mod cache;
mod decode;
mod images;
mod model;
mod pages;
mod plan;
mod session;
mod slots;
mod text;
mod training;
mod vision;

pub use batch::{BatchError, PackedBatch};
pub use batch_decode::{BatchDecoder, DecoderRoom, PromptImage, SequenceId, SequenceUse};
pub use decode::Decoder;
pub use model::{Model, TrainableTensor};
pub use plan::{MemoryPlan, PlanError, PlanRequest, trained_shapes};
pub use session::{LossSums, Recompute, Session, SessionError, Stage};
pub use slots::Shapes;
