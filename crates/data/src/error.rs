//! What can be wrong: with a row ([`BadRow`]), or with the whole dataset ([`DataError`]).
//!
//! A bad row is skipped or stops the run, as the user chose; anything else always stops it. Each message says what
//! was wrong and where, and what to do where that is not plain.

use crate::{image::ImageError, prepare::LeftOut, row::RowId, text::TextError};
use std::{io, path::PathBuf};

/// Why a row cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRow {
    /// The text of the row is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// The row is longer than any honest row.
    #[error("the row has {bytes} bytes; at most {limit} are read")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// No shape has these fields.
    #[error(
        "no known shape of row: it has {keys}; expected messages, conversations, prompt and completion, \
         or text and response"
    )]
    Shape {
        /// The fields of the row.
        keys: String,
    },
    /// A field is missing or of another kind.
    #[error("'{field}' should be {expected}, found {found}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What the shape has there.
        expected: &'static str,
        /// What the row has there.
        found: &'static str,
    },
    /// A role that no chat template knows.
    #[error("unknown role '{0}': expected system, user, assistant or tool")]
    Role(String),
    /// A part that is neither text nor image.
    #[error("a part of type '{0}' where only text and images are understood")]
    PartType(String),
    /// Markers or placeholders do not match the images.
    #[error("{markers} image markers, but {images} images")]
    Markers {
        /// Markers or placeholders in the turns.
        markers: usize,
        /// Images beside them.
        images: usize,
    },
    /// Images beside the turns, and no user turn to show them.
    #[error("the row has images, but no user turn to show them in")]
    NoTurnForImages,
    /// An image where only text is allowed.
    #[error("an image in a turn of role '{0}': images belong to the user or a tool")]
    ImageInTurn(&'static str),
    /// A conversation without turns.
    #[error("the conversation has no turns")]
    Empty,
    /// Something stands where an image should, and is none.
    #[error("an image was expected, found {0}")]
    NoImage(&'static str),
    /// A data URI that cannot be read.
    #[error("broken data URI: {0}")]
    DataUri(&'static str),
    /// Base64 that cannot be read.
    #[error("broken base64: {0}")]
    Base64(String),
    /// An image file that cannot be read.
    #[error("image {}: {reason}", path.display())]
    ImageFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An image file outside the folder that rows may read.
    #[error(
        "image {} is outside {}: rows read images from the folder of their file; name another one with --image-root",
        path.display(), root.display()
    )]
    OutsideRoot {
        /// The file.
        path: PathBuf,
        /// The folder.
        root: PathBuf,
    },
    /// An image that is none, or broken.
    #[error("image {number}: {source}")]
    Image {
        /// Which image of the row, from 1.
        number: usize,
        /// What is wrong with it.
        source: ImageError,
    },
    /// An image that is of another size than it says.
    #[error("image {number}: its header tells another size than its pixels")]
    ImageHeader {
        /// Which image of the row, from 1.
        number: usize,
    },
    /// The text cannot be encoded.
    #[error(transparent)]
    Text(TextError),
    /// A good row that the user does not want left out.
    #[error("{0}")]
    LeftOut(LeftOut),
    /// A remote image, and the user did not allow them.
    #[error("image {0} is remote: allow such images with --allow-remote-images")]
    RemoteNotAllowed(String),
    /// A remote image that cannot be had.
    #[error("image {url}: {reason}")]
    Remote {
        /// Its address.
        url: String,
        /// Why.
        reason: String,
    },
}

impl BadRow {
    /// Names the image of a row, counted from 0, that an error is about.
    pub(crate) fn image(index: usize, source: ImageError) -> Self {
        Self::Image { number: index + 1, source }
    }
}

/// Why a dataset cannot be used, or why reading it stopped.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing to read.
    #[error("{}: {reason}", path.display())]
    NoData {
        /// The path as the user gave it.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// A file is broken as a whole.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub could not be asked, or did not have it.
    #[error("{id} on the hub: {reason}")]
    Hub {
        /// The dataset.
        id: String,
        /// What happened.
        reason: String,
    },
    /// The dataset is empty.
    #[error("the dataset has no rows")]
    NoRows,
    /// A row past the last one.
    #[error("there is no row {row} in a dataset of {rows} rows")]
    NoSuchRow {
        /// The row, from 0.
        row: u64,
        /// Rows of the dataset.
        rows: u64,
    },
    /// No row of an epoch could be used.
    #[error("no row of the dataset can be used: {tally}")]
    NoUsableRows {
        /// What became of them.
        tally: String,
    },
    /// More bad rows than the user accepts.
    #[error(
        "{bad} of {rows} rows are bad, more than the {}% that may be skipped (--max-bad-rows); the last: {last}",
        max_share * 100.0
    )]
    TooManyBadRows {
        /// Bad rows in this epoch.
        bad: u64,
        /// Rows of the dataset.
        rows: u64,
        /// The share that may be bad.
        max_share: f64,
        /// The last of them.
        last: String,
    },
    /// A saved place that this dataset does not have.
    #[error("cannot resume at row {row} of a dataset of {rows} rows: the data changed since")]
    BadPosition {
        /// The place.
        row: u64,
        /// Rows of the dataset.
        rows: u64,
    },
    /// A thread died of a bug.
    #[error("a loader thread panicked; its message is above")]
    Worker,
    /// A row is bad and bad rows are not skipped.
    #[error("{row}: {reason}")]
    Row {
        /// Where.
        row: RowId,
        /// Why.
        reason: BadRow,
    },
}

impl DataError {
    /// Names the file that an operation failed on.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
