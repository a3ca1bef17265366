//! How many connections there are at once, in all and from one client.
//!
//! A connection takes a place for its life. The number of all places is bounded, and one client has only a
//! share of them, so that nobody can shut everybody else out.

use crate::guard::{Share, Shares, network};
use std::{net::IpAddr, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at once.
const ALL: usize = 4096;
/// Connections of one client: a page has 6 and a busy program some dozens.
const OF_ONE: usize = 256;
/// Connections from this machine. It may be a proxy that everybody comes through, or a test of many streams.
/// A part is left for others, so that it cannot shut out clients that come another way.
const OF_LOOPBACK: usize = ALL - 512;

/// The places for connections.
#[derive(Debug)]
pub(crate) struct Connections {
    all: Arc<Semaphore>,
    clients: Shares<IpAddr>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _one: OwnedSemaphorePermit,
    _share: Share<IpAddr>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(ALL)), clients: Shares::default() }
    }
}

impl Connections {
    /// Waits until there is room for one more.
    pub(crate) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.all.clone().acquire_owned().await.ok()
    }

    /// The place of a client's connection; nothing if the client has its share already.
    pub(crate) fn take(&self, room: OwnedSemaphorePermit, peer: IpAddr) -> Option<Place> {
        let client = network(peer);
        let most = if client.is_loopback() { OF_LOOPBACK } else { OF_ONE };
        Some(Place { _one: room, _share: self.clients.take(client, most)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_client_has_a_share_and_this_machine_a_larger_one() {
        let connections = Connections::default();
        let mut held = Vec::new();
        for _ in 0..OF_ONE {
            let room = connections.room().await.unwrap();
            held.push(connections.take(room, "10.0.0.1".parse().unwrap()).unwrap());
        }
        let try_take = async |peer: &str| {
            let room = connections.room().await.unwrap();
            connections.take(room, peer.parse().unwrap())
        };
        assert!(try_take("10.0.0.1").await.is_none());
        assert!(try_take("10.0.0.2").await.is_some());
        let mut local = Vec::new();
        while let Some(place) = try_take("127.0.0.1").await {
            local.push(place);
        }
        assert_eq!(local.len(), OF_LOOPBACK);
        held.pop();
        assert!(
            try_take("::ffff:10.0.0.1").await.is_some(),
            "the same client, by another form of its address"
        );
        drop((held, local));
        assert_eq!(connections.all.available_permits(), ALL);
    }
}
