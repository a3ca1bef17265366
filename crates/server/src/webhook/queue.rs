//! Events that were not received yet, a file each.
//!
//! Takes events for endpoints and keeps them until they are removed. What `add` accepted is on disk when it returns.

use super::{Event, now};
use crate::id::Kind;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Files at most: with ten endpoints away, the ends of a thousand jobs.
const MAX_WAITING: usize = 10_000;
/// Events are given up after a day.
const GIVE_UP_SECONDS: i64 = 24 * 60 * 60;

/// An event that one endpoint has not received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub endpoint: String,
    pub queued_at: i64,
    pub event: Event,
    /// When it is given up. A moment of this server's own, since the machine's clock may jump; the date counts only for
    /// what an earlier server left.
    #[serde(skip, default = "Instant::now")]
    pub given_up: Instant,
}

impl Entry {
    /// Given up a day after it was queued, however much of that has passed.
    fn aged(self, seconds: i64) -> Self {
        let left = u64::try_from(GIVE_UP_SECONDS.saturating_sub(seconds.max(0))).unwrap_or(0);
        Self { given_up: Instant::now() + Duration::from_secs(left), ..self }
    }
}

/// The folder of waiting events.
#[derive(Debug)]
pub(super) struct Queue {
    folder: PathBuf,
    waiting: AtomicUsize,
}

impl Queue {
    /// Opens the folder and gives what waits in it, oldest first. A file that is no event is left alone.
    pub(super) fn open(folder: PathBuf) -> io::Result<(Self, Vec<Entry>)> {
        garden_files::create_folder(&folder)?;
        let mut entries = Vec::new();
        for file in fs::read_dir(&folder)? {
            let path = file?.path();
            let entry = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Entry>(&bytes).ok());
            // An endpoint's id becomes part of a path again.
            let entry = entry.filter(|entry| Kind::WebhookEndpoint.names(&entry.endpoint));
            entries.extend(entry.map(|entry| {
                let age = now().saturating_sub(entry.queued_at);
                entry.aged(age)
            }));
        }
        entries.sort_by(|a, b| (a.queued_at, &a.event.id).cmp(&(b.queued_at, &b.event.id)));
        Ok((Self { folder, waiting: AtomicUsize::new(entries.len()) }, entries))
    }

    /// Puts an event for an endpoint on disk; `None` if it waits already.
    pub(super) fn add(&self, event: &Event, endpoint: &str) -> io::Result<Option<Entry>> {
        let (endpoint, event, given_up) = (endpoint.to_owned(), event.clone(), Instant::now());
        let entry = Entry { endpoint, queued_at: now(), event, given_up }.aged(0);
        let path = self.path(&entry);
        if path.try_exists()? {
            return Ok(None);
        }
        if self.waiting.load(Ordering::Relaxed) >= MAX_WAITING {
            return Err(io::Error::other(format!(
                "{}: {MAX_WAITING} webhook events wait for their receivers; this one is dropped",
                self.folder.display()
            )));
        }
        garden_files::write(&path, &serde_json::to_vec(&entry)?)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Some(entry))
    }

    /// Forgets an event that was received or given up.
    pub(super) fn remove(&self, entry: &Entry) {
        // A file that stays is delivered once more after a restart, under the same id.
        if fs::remove_file(self.path(entry)).is_ok() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn path(&self, entry: &Entry) -> PathBuf {
        Path::new(&self.folder).join(format!("{}.{}.json", entry.event.id, entry.endpoint))
    }
}
