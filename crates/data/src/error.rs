//! What can be wrong: with a row ([`BadRow`]), or with the whole dataset ([`DataError`]).
//!
//! A bad row is skipped or stops the run, as the user chose; anything else always stops it. Each message says what
//! was wrong and where, and what to do where that is not plain.

use crate::row::RowId;
use std::{io, path::PathBuf};

/// Why a row cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRow {
    /// The text of the row is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
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
