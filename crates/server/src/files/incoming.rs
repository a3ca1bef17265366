//! Content on its way to the disk.
//!
//! Takes a body piece by piece, hashes it and writes it to a temporary file of the data folder, so that no more than a
//! buffer of it is ever in memory. What is dropped before it is finished leaves nothing.

use crate::{api::error::ApiError, data_dir::DataDir};
use sha2::{Digest, Sha256};
use std::{
    io::{self, Write},
    mem,
};
use tempfile::NamedTempFile;
use tokio::task;

/// Names of temporary files begin so.
pub(super) const PREFIX: &str = "incoming-";
/// Bytes that are written at once.
const BUFFER: usize = 256 << 10;

/// A body that is being received.
pub(crate) struct Incoming {
    /// Empty only while it is written to, or after that failed.
    content: Option<Content>,
    buffer: Vec<u8>,
    limit: u64,
    received: u64,
}

/// Bytes on disk that have no name yet.
pub(crate) struct Content {
    pub(super) file: NamedTempFile,
    hash: Sha256,
    pub(super) bytes: u64,
}

impl Content {
    /// An empty one. Blocks.
    pub(super) fn create(data: &DataDir) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix(PREFIX).tempfile_in(data.uploads())?;
        Ok(Self { file, hash: Sha256::new(), bytes: 0 })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    pub(super) fn sha256(&self) -> String {
        hex(&self.hash.clone().finalize())
    }
}

impl Incoming {
    /// Begins to receive at most `limit` bytes.
    pub(super) async fn begin(data: &DataDir, limit: u64) -> Result<Self, ApiError> {
        let data = data.clone();
        let content = blocking(move || Content::create(&data)).await?;
        Ok(Self { content: Some(content), buffer: Vec::with_capacity(BUFFER), limit, received: 0 })
    }

    /// Takes the next piece.
    pub(crate) async fn push(&mut self, mut piece: &[u8]) -> Result<(), ApiError> {
        self.received += piece.len() as u64;
        if self.received > self.limit {
            let limit = garden_memory::ByteSize(self.limit);
            return Err(ApiError::too_large(format!("this server takes at most {limit} here")));
        }
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(BUFFER - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            piece = later;
            if self.buffer.len() == BUFFER {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// All of it has come.
    pub(crate) async fn finish(mut self) -> Result<Content, ApiError> {
        self.flush().await?;
        self.content.ok_or_else(gone)
    }

    async fn flush(&mut self) -> Result<(), ApiError> {
        let mut content = self.content.take().ok_or_else(gone)?;
        let mut buffer = mem::take(&mut self.buffer);
        let (content, buffer) = blocking(move || {
            content.append(&buffer)?;
            buffer.clear();
            Ok((content, buffer))
        })
        .await?;
        (self.content, self.buffer) = (Some(content), buffer);
        Ok(())
    }
}

fn gone() -> ApiError {
    ApiError::internal("the upload has failed already")
}

/// Runs what waits for the disk on a thread for that.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    match task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| ApiError::disk(&error)),
        Err(error) => Err(ApiError::internal(error)),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
