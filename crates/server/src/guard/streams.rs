//! How many answers stream at once, in all and to one client.

use super::{Client, Share, Shares};
use crate::api::error::ApiError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places that one client may have however few there are in all.
const SMALLEST_SHARE: usize = 32;

/// The places for answers that stream.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    places: Arc<Semaphore>,
    most: usize,
    clients: Shares<Client>,
}

/// A place, which is free again when this is dropped: the stream must own it.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    _place: OwnedSemaphorePermit,
    _share: Share<Client>,
}

impl Streams {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(most)), most, clients: Shares::default() }
    }

    /// Takes a place, or says that the client should come again.
    pub(crate) fn open(&self, client: &Client) -> Result<StreamPermit, ApiError> {
        let yours = || ApiError::busy("too many answers stream to you already; end some of them", 10);
        let all = |_| ApiError::busy(format!("{} answers stream already; try again later", self.most), 10);
        let share = self.clients.take(client.clone(), self.share(client)).ok_or_else(yours)?;
        let place = self.places.clone().try_acquire_owned().map_err(all)?;
        Ok(StreamPermit { _place: place, _share: share })
    }

    /// A quarter of all places, or three where everybody may come through a proxy of this machine.
    fn share(&self, client: &Client) -> usize {
        let quarter = self.most / 4;
        let share = if client.may_be_a_proxy() { self.most - quarter } else { quarter };
        share.max(SMALLEST_SHARE).min(self.most)
    }

    /// How many answers stream now.
    pub(crate) fn count(&self) -> usize {
        self.most - self.places.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(key: Option<&str>, address: &str) -> Client {
        Client::new(key.map(str::to_owned), address.parse().unwrap())
    }

    #[test]
    fn a_stream_too_many_is_told_to_come_again() {
        let streams = Streams::new(1);
        let anna = client(Some("anna"), "10.0.0.1");
        let first = streams.open(&anna).unwrap();
        let error = streams.open(&client(Some("berta"), "10.0.0.1")).unwrap_err();
        assert_eq!((error.status.as_u16(), error.retry_after), (429, Some(10)));
        assert_eq!(streams.count(), 1);
        drop(first);
        assert_eq!(streams.count(), 0);
        assert!(streams.open(&anna).is_ok());
    }

    #[test]
    fn one_client_leaves_places_to_others() {
        let streams = Streams::new(400);
        let held = |client: &Client| -> Vec<_> { std::iter::from_fn(|| streams.open(client).ok()).collect() };
        let anna = held(&client(Some("anna"), "10.0.0.1"));
        let anna_elsewhere = held(&client(Some("anna"), "10.0.0.2"));
        assert_eq!((anna.len(), anna_elsewhere.len()), (100, 0), "a key is one client, wherever it is used");
        assert_eq!(held(&client(None, "10.0.0.1")).len(), 100);
        assert_eq!(held(&client(None, "127.0.0.1")).len(), 300);
    }
}
