//! How many answers stream at once.

use crate::api::error::ApiError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places for answers that stream.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    places: Arc<Semaphore>,
    most: usize,
}

/// A place, which is free again when this is dropped: the stream must own it.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    _place: OwnedSemaphorePermit,
}

impl Streams {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(most)), most }
    }

    /// Takes a place, or says that the client should come again.
    pub(crate) fn open(&self) -> Result<StreamPermit, ApiError> {
        let full = |_| ApiError::busy(format!("{} answers stream already; try again later", self.most), 10);
        let place = self.places.clone().try_acquire_owned().map_err(full)?;
        Ok(StreamPermit { _place: place })
    }

    /// How many answers stream now.
    pub(crate) fn count(&self) -> usize {
        self.most - self.places.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_too_many_is_told_to_come_again() {
        let streams = Streams::new(1);
        let first = streams.open().unwrap();
        let error = streams.open().unwrap_err();
        assert_eq!((error.status.as_u16(), error.retry_after), (429, Some(10)));
        assert_eq!(streams.count(), 1);
        drop(first);
        assert_eq!(streams.count(), 0);
        assert!(streams.open().is_ok());
    }
}
