//! Turns rows of a dataset into batches, in memory that depends on the batch and not on the dataset.
//!
//! The main path: a [`Dataset`] numbers the rows of JSON Lines, JSON, CSV and Parquet files, folders of them
//! and hub ids. A [`Recipe`] holds a model folder's image processor, tokenizer and chat template, and encodes
//! conversations. A [`Loader`] prepares rows ahead in threads and gives packed [`Batch`]es of token ids,
//! labels and image patches; [`Padded`] is the same batch in the form of Hugging Face's models.
//! [`survey()`] looks at every row before anything is trained.
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
mod course;
mod create;
mod dataset;
mod embedded;
mod error;
mod guarded;
mod held;
mod hub;
mod image;
mod index;
mod loader;
mod missing;
mod overlap;
mod position;
mod prefetch;
mod prepare;
mod preview;
mod processor;
mod progress;
mod recipe;
mod remote;
mod row;
mod scan;
mod shape;
mod share;
mod shuffle;
mod skipped;
mod source;
mod split;
mod staging;
mod survey;
mod table;
mod text;
mod turns;
mod value;

// Datasets: files, folders and hub ids as numbered rows.
pub use columns::{Columns, ColumnsError};
pub use dataset::{Dataset, DatasetOptions, IMAGES_INSIDE, Row, RowReader};
pub use overlap::{RowSet, SharedRows, shared_rows};
pub use share::RowShare;
pub use shuffle::RowOrder;
pub use skipped::SkippedRows;
pub use split::{LeftSplit, NotRead, SplitChoice};

// Rows: what one says, and how it was written.
pub use row::{Conversation, ImageSource, Json, Part, Role, RowId, Turn};
pub use shape::Shape;
pub use source::MAX_IMAGE_BYTES;

// Images: encoded bytes to pixels, and to the patches of a model.
pub use held::{FoundImage, HeldImage, ImageFinder, ImageInput};
pub use image::{DecodeLimits, Facing, ImageDecoder, ImageError, ImageFormat, Pixels};
pub use processor::{
    Grid, ImageHeader, ImageWorkspace, PixelLimits, Processor, ProcessorConfig, ProcessorError,
    files_for_transformers_4,
};

// Text: conversations to token ids and labels, and back.
pub use text::{Encoded, Encoder, EncoderError, TextError, TokenRun, TokenRuns, TrainOn, token_bytes};

// Batches: rows encoded for a purpose, prepared ahead and packed.
pub use batch::{Batch, BatchImage, NO_LABEL, Padded};
pub use loader::{BatchTurn, Loader, LoaderOptions, OnBadRow, OnLongRow, Tally};
pub use position::Position;
pub use recipe::{EncodedRow, LeftOut, Purpose, Recipe, RecipeError};
pub use turns::Turns;

// The survey: what a dataset holds and what training will make of it.
pub use survey::{
    Lengths, Measure, RowCounts, SampleRow, SizeClass, Survey, SurveyLine, SurveyOptions, SurveyPart,
    SurveyReport, SurveyTopic, survey, survey_part,
};

// One row for people.
pub use preview::{Preview, PreviewImage, PreviewImages, preview};

// New datasets: made up, or written again with their images inside.
pub use convert::convert;
pub use create::{CreateKind, CreateOptions, create as create_dataset, shape_colours};

// Paths and hub ids that a user names.
pub use hub::{cached_model, cached_model_folder, model_folder};
pub use missing::{check_exists, check_folder, edit_distance};

// Addresses of the network that may be reached.
pub use remote::{CheckedResolver, is_public};

// The cache: what it holds of a data file, for whoever deletes data files.
pub use index::CACHE_FOLDERS;
pub use staging::cached_as;

// What every part shares: errors, progress, and a hash for fingerprints.
pub use error::{BadRow, DataError, RowError};
pub use index::fnv1a;
pub use progress::{Progress, ProgressUnit};

/// The parsers of untrusted input, one by one. The main path calls them; fuzz targets call them directly.
pub mod parsers {
    pub use crate::embedded::decode_data_uri;
    pub use crate::image::{Extent, decode as decode_image, extent as image_extent};
    pub use crate::scan::{Layout, ScanError, scan as scan_rows, trim as trim_row};
    pub use crate::shape::{Reading, is_known_field, read as read_row};
    pub use crate::value::Value;
}
