//! Tells other programs that a job has ended.
//!
//! Takes the ends of jobs and posts each to the endpoints that asked for it, signed as OpenAI's SDK verifies it. An
//! event is a file of the data folder until it was received or a day has passed, so it survives a restart. A receiver
//! may get an event twice, under one id; it never misses one that was accepted here, unless it was away for a day.

mod delivery;
mod endpoint;
mod queue;
mod signature;

#[cfg(test)]
pub(crate) use delivery::Reach;
pub(crate) use delivery::ReachNow;
pub(crate) use endpoint::{Change, Endpoint, EndpointError};

use crate::{data_dir::DataDir, id::Kind};
use delivery::Postman;
use endpoint::Endpoints;
use queue::Queue;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    io,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, SystemTime},
};
use tokio::sync::Semaphore;

/// What happened to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = WebhookEventType)]
pub(crate) enum EventKind {
    #[serde(rename = "fine_tuning.job.succeeded")]
    Succeeded,
    #[serde(rename = "fine_tuning.job.failed")]
    Failed,
    #[serde(rename = "fine_tuning.job.cancelled")]
    Cancelled,
}

impl EventKind {
    pub(crate) const ALL: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Cancelled];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "fine_tuning.job.succeeded",
            Self::Failed => "fine_tuning.job.failed",
            Self::Cancelled => "fine_tuning.job.cancelled",
        }
    }
}

/// Tests of endpoints at once: each waits for somebody else's machine on a thread that others need.
const TESTS: usize = 4;

/// The endpoints of a server and the thread that posts to them. Clones share both.
#[derive(Debug, Clone)]
pub(crate) struct Webhooks {
    endpoints: Arc<Endpoints>,
    queue: Arc<Queue>,
    postman: Arc<Postman>,
    wake: mpsc::Sender<queue::Entry>,
    tests: Arc<Semaphore>,
}

impl Webhooks {
    /// Reads the endpoints and the events that wait, and starts to deliver. The thread ends with the last clone.
    pub(crate) fn open(data: &DataDir, reach: impl Into<ReachNow>) -> io::Result<Self> {
        Self::open_with(data, reach.into(), delivery::FIRST_PAUSE)
    }

    fn open_with(data: &DataDir, reach: ReachNow, first_pause: Duration) -> io::Result<Self> {
        let endpoints = Arc::new(Endpoints::open(data.webhooks(), reach.clone())?);
        let (queue, waiting) = Queue::open(data.undelivered())?;
        let (queue, postman) = (Arc::new(queue), Arc::new(Postman::new(reach)));
        let (wake, woken) = mpsc::channel();
        let round =
            delivery::Round::new(endpoints.clone(), queue.clone(), postman.clone(), first_pause, waiting);
        thread::Builder::new().name("webhooks".into()).spawn(move || round.run(&woken))?;
        Ok(Self { endpoints, queue, postman, wake, tests: Arc::new(Semaphore::new(TESTS)) })
    }

    /// Tells the endpoints that asked for it that a job has ended at `created_at` (seconds since 1970). Returns when
    /// the event is on disk. A job ends once: told again, its end has the same id.
    pub(crate) fn send(&self, kind: EventKind, job: &str, created_at: i64) -> io::Result<()> {
        let event = Event::new(kind, job, created_at);
        for endpoint in self.endpoints.list().iter().filter(|endpoint| endpoint.event_types.contains(&kind)) {
            if let Some(entry) = self.queue.add(&event, &endpoint.id)? {
                // The thread lives as long as this sender.
                let _ = self.wake.send(entry);
            }
        }
        Ok(())
    }

    /// Posts an event that did not happen, at once, and gives the status of the answer. Only a few are posted
    /// at a time. Blocks.
    pub(crate) fn test(&self, id: &str, kind: EventKind) -> Result<u16, EndpointError> {
        let _place = self.tests.try_acquire().map_err(|_| EndpointError::Busy)?;
        let endpoint = self.endpoints.get(id).ok_or(EndpointError::Unknown)?;
        let event = Event::new(kind, "ftjob-test", now());
        let posted = self.postman.post(&endpoint, &event);
        posted.map_err(|error| EndpointError::Unreachable(delivery::why_unreachable(&error)))
    }

    /// The endpoints, newest first.
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }
}

/// One event on its way: its id, and the text that is signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Event {
    id: String,
    body: String,
}

impl Event {
    fn new(kind: EventKind, job: &str, created_at: i64) -> Self {
        let id = Kind::Webhook.derived(&format!("{} {job}", kind.name()));
        let body = json!({
            "id": id, "object": "event", "created_at": created_at, "type": kind.name(), "data": {"id": job}
        });
        Self { id, body: body.to_string() }
    }
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
