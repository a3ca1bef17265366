//! Rows to batches in O(batch) memory: rows -> images, template -> labels -> batch; loader; check.
//!
//! In come dataset files (JSON Lines, JSON, Parquet, folders of them, hub ids) and a checkpoint's processor and
//! tokenizer files; out come packed batches of token ids, labels and image patches. Nothing here grows with the
//! number of rows: their offsets live in an index file, and an image lives from its decode to the end of its batch.

pub mod embedded;
pub mod error;
pub mod image;
pub mod processor;
pub mod row;
pub mod shape;
pub mod text;
pub mod value;

pub use error::{BadRow, DataError};
pub use row::{Conversation, ImageSource, Part, Role, RowId, Turn};
