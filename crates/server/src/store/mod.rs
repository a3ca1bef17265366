//! The index over the data folder: jobs, files and idempotency keys in SQLite.
//!
//! Takes rows and questions from handlers and from plain threads. Writes go through one thread, each in a transaction
//! of its own, and wait while another program has the database locked; reads have connections of their own and never
//! wait for a writer. Nothing is true only here: a database that is gone or broken is filled again from the folders.

mod database;
mod files;
mod idempotency;
mod jobs;
mod readers;
mod writer;

pub(crate) use files::{FileQuery, FileRow, Order};
pub(crate) use idempotency::{Claim, MadeByKey};
pub(crate) use jobs::{JobQuery, JobRow, Written};

use crate::{api::error::ApiError, data_dir::DataDir};
use readers::Readers;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction};
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use writer::Writer;

/// How long a write waits for a lock before its caller is told.
const PATIENCE: Duration = Duration::from_secs(10);

/// The index. A clone is another handle of the same one.
#[derive(Clone)]
pub(crate) struct Store {
    // The writer is dropped last: it brings the database in order when no other connection is open.
    readers: Arc<Readers>,
    writer: Arc<Writer>,
}

/// What opening the index came to.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// Why the index is empty though the folders may not be; the callers fill it again.
    pub rebuilt: Option<String>,
}

/// A part of a list, and whether there is more.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Page<T> {
    pub data: Vec<T>,
    pub has_more: bool,
}

impl<T> Page<T> {
    /// A page of at most `limit`, of rows that were asked for with one more.
    fn cut(mut data: Vec<T>, limit: usize) -> Self {
        let has_more = data.len() > limit;
        data.truncate(limit);
        Self { data, has_more }
    }
}

/// Why the index did not answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StoreError {
    #[error("the index is locked by another program and was not written; try again")]
    Locked,
    #[error("the disk is full: the index was not written; free some space and try again")]
    Full,
    #[error("no such object to list from: {0}")]
    NoCursor(String),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the index failed: {0}")]
    Sqlite(rusqlite::Error),
    #[error("a row of the index is broken: {0}")]
    Row(#[from] serde_json::Error),
    #[error("the index has ended")]
    Ended,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked,
            Some(ErrorCode::DiskFull) => Self::Full,
            _ => Self::Sqlite(error),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked => Self::busy(&error, 5).code("index_locked"),
            StoreError::Full => Self::disk_full(&error),
            StoreError::NoCursor(_) => Self::bad_request(&error).param("after"),
            _ => Self::internal(&error),
        }
    }
}

impl Store {
    /// Opens the index of a data folder. A database that cannot be used is set aside, never deleted.
    pub(crate) fn open(data: &DataDir) -> Result<(Self, Opened), StoreError> {
        Self::with_patience(data, PATIENCE)
    }

    fn with_patience(data: &DataDir, patience: Duration) -> Result<(Self, Opened), StoreError> {
        let path = data.database();
        let (connection, opened) = database::open(&path)?;
        let readers = Arc::new(Readers::open(&path)?);
        Ok((Self { writer: Arc::new(Writer::start(connection, patience)?), readers }, opened))
    }

    /// Runs `work` in a transaction of its own. It may run several times, if the database was locked.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.send(work).await.map_err(|_| StoreError::Ended)?
    }

    /// As [`Store::write`], from a plain thread.
    fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.send(work).blocking_recv().map_err(|_| StoreError::Ended)?
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.readers.clone().permit().await;
        let joined = tokio::task::spawn_blocking(move || work(&permit)).await;
        joined.unwrap_or(Err(StoreError::Ended))
    }

    fn read_blocking<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        work(&self.readers.blocking())
    }
}

/// The place in a list of what a page begins after, also where it was deleted not long ago.
fn place(connection: &Connection, list: &'static str, id: &str) -> Result<i64, StoreError> {
    let sql = format!(
        "SELECT seq FROM {list} WHERE id = ?1
         UNION ALL SELECT seq FROM gone WHERE id = ?1 AND list = '{list}'"
    );
    let seq = connection.prepare_cached(&sql)?.query_row([id], |row| row.get(0)).optional()?;
    seq.ok_or_else(|| StoreError::NoCursor(id.to_owned()))
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
