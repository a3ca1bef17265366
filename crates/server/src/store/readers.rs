//! Connections that only read.
//!
//! Handlers share a few, one to a question at a time; plain threads share one of their own, so that they never wait
//! for the handlers.

use super::{StoreError, database};
use rusqlite::Connection;
use std::{
    ops::Deref,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const CONNECTIONS: usize = 4;

pub(super) struct Readers {
    permits: Arc<Semaphore>,
    free: Mutex<Vec<Connection>>,
    blocking: Mutex<Connection>,
}

/// The right to use a connection, which goes back when this is dropped.
pub(super) struct Reader {
    readers: Arc<Readers>,
    connection: Option<Connection>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let free = (0..CONNECTIONS).map(|_| database::open_reader(path)).collect::<Result<_, _>>()?;
        Ok(Self {
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            free: Mutex::new(free),
            blocking: Mutex::new(database::open_reader(path)?),
        })
    }

    /// Waits for a connection.
    pub(super) async fn permit(self: Arc<Self>) -> Reader {
        // The semaphore is never closed.
        let permit = self.permits.clone().acquire_owned().await.ok();
        let connection = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Reader { connection, readers: self, _permit: permit }
    }

    /// The connection of plain threads.
    pub(super) fn blocking(&self) -> MutexGuard<'_, Connection> {
        self.blocking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a permit stands for a connection until it is dropped")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.connection.take());
    }
}
