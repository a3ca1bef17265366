//! Turns rows of a dataset into batches, in memory that depends on the batch and not on the dataset.
//!
//! The main path: a [`Dataset`] numbers the rows of JSON Lines, JSON, CSV and Parquet files, folders of them
//! and hub ids. A [`Recipe`] holds a model folder's image processor, tokenizer and chat template, and encodes
//! conversations. A [`Loader`] prepares rows ahead in threads and gives packed [`Batch`]es of token ids,
//! labels and image patches; [`Padded`] is the same batch in the form of Hugging Face's models.
//! [`survey::survey`] looks at every row before anything is trained.
//!
//! Nothing here grows with the number of rows: their offsets live in an index file, and an image lives from
//! its decoding to the end of its batch.
//!
//! ```
//! use garden_data::{Dataset, DatasetOptions, Loader, LoaderOptions, NO_LABEL, Purpose, Recipe};
//! use std::{fs, path::Path, sync::Arc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let rows = folder.path().join("train.jsonl");
//! fs::write(&rows, r#"{"prompt": "What colour is the sky?", "completion": "Blue"}"#)?;
//!
//! let dataset = Arc::new(Dataset::open(&rows.to_string_lossy(), &DatasetOptions::default(), &())?);
//! let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/checkpoint"));
//! let recipe = Arc::new(Recipe::from_dir(model, Purpose::default())?);
//!
//! let mut loader = Loader::start(dataset, recipe, LoaderOptions { batch_size: 2, ..Default::default() })?;
//! while let Some(batch) = loader.next_batch()? {
//!     assert_eq!(batch.len(), 1);
//!     assert!(batch.labels.iter().any(|label| *label != NO_LABEL), "the completion is learned");
//!     loader.recycle(batch);
//! }
//! assert_eq!(loader.tally().used, 1);
//! # Ok(())
//! # }
//! ```

mod batch;
mod card;
mod columns;
mod convert;
pub mod create;
mod dataset;
pub mod embedded;
mod error;
mod guarded;
pub mod hub;
pub mod image;
pub mod index;
mod loader;
pub mod missing;
pub mod overlap;
mod position;
mod prefetch;
mod prepare;
pub mod processor;
pub mod progress;
mod recipe;
mod remote;
mod row;
pub mod scan;
pub mod shape;
mod share;
pub mod shuffle;
mod source;
mod split;
mod staging;
pub mod survey;
mod table;
pub mod text;
pub mod value;

pub use batch::{Batch, BatchImage, NO_LABEL, Padded};
pub use columns::Columns;
pub use convert::convert;
pub use dataset::{Dataset, DatasetOptions, Row, RowReader};
pub use error::{BadRow, DataError, RowError};
pub use loader::{Loader, LoaderOptions, OnBadRow, OnLongRow, Tally};
pub use position::Position;
pub use recipe::{EncodedRow, LeftOut, Purpose, Recipe, RecipeError};
pub use row::{Conversation, ImageSource, Json, Part, Role, RowId, Turn};
pub use share::RowShare;
pub use source::MAX_IMAGE_BYTES;
pub use split::SplitChoice;
