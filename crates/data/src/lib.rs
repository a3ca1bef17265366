//! Rows to batches in O(batch) memory: rows -> images, template -> labels -> batch; loader; check.
//!
//! In come dataset files (JSON Lines, JSON, Parquet, folders of them, hub ids) and a checkpoint's processor and
//! tokenizer files; out come packed batches of token ids, labels and image patches. Nothing here grows with the
//! number of rows: their offsets live in an index file, and an image lives from its decode to the end of its batch.

pub mod batch;
mod card;
pub mod columns;
pub mod convert;
pub mod create;
pub mod dataset;
pub mod embedded;
pub mod error;
mod guarded;
pub mod hub;
pub mod image;
pub mod index;
pub mod loader;
pub mod missing;
pub mod overlap;
mod position;
pub mod prefetch;
mod prepare;
pub mod processor;
pub mod progress;
mod recipe;
pub mod remote;
pub mod row;
pub mod scan;
pub mod shape;
mod share;
pub mod shuffle;
pub mod source;
pub mod split;
mod staging;
pub mod survey;
mod table;
pub mod text;
pub mod value;

pub use batch::{Batch, BatchImage, Padded};
pub use columns::Columns;
pub use dataset::{Dataset, DatasetOptions, Row, RowReader};
pub use error::{BadRow, DataError, RowError};
pub use loader::{Loader, LoaderOptions, OnBadRow, OnLongRow, Tally};
pub use position::Position;
pub use recipe::{EncodedRow, LeftOut, Purpose, Recipe, RecipeError};
pub use row::{Conversation, ImageSource, Json, Part, Role, RowId, Turn};
pub use share::RowShare;
pub use split::SplitChoice;
