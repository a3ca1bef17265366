//! How slowly a body may come.
//!
//! Wraps the body of a request. A client may be silent for a while and must then send at a low pace at least:
//! one that sends a byte now and then would hold its connection, and whatever its request has taken, for
//! ever. Only the time counts in which the server waits for the client.

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::time::{Sleep, sleep};

/// What a body is waited for, however small it is. A body of 2 MiB has two minutes in all.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that earn another second: less than any line that could send a dataset.
const BYTES_A_SECOND: u64 = 32 << 10;

/// The client sends too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the body came too slowly")]
pub(crate) struct TooSlow;

/// A body that must come at a pace.
pub(super) struct Paced {
    inner: Body,
    patience: Duration,
    received: u64,
    /// Time that the client has taken so far.
    waited: Duration,
    waiting: Option<Waiting>,
}

/// The server waits for the client.
struct Waiting {
    since: Instant,
    end: Pin<Box<Sleep>>,
}

impl Paced {
    pub(super) fn new(inner: Body) -> Self {
        Self::with_patience(inner, PATIENCE)
    }

    fn with_patience(inner: Body, patience: Duration) -> Self {
        Self { inner, patience, received: 0, waited: Duration::ZERO, waiting: None }
    }

    fn left(&self) -> Duration {
        let earned = Duration::from_secs(self.received / BYTES_A_SECOND);
        (self.patience + earned).saturating_sub(self.waited)
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            if let Some(waiting) = self.waiting.take() {
                self.waited += waiting.since.elapsed();
            }
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.received += bytes.map_or(0, |bytes| bytes.len() as u64);
            return Poll::Ready(frame);
        }
        let left = self.left();
        let waiting =
            self.waiting.get_or_insert_with(|| Waiting { since: Instant::now(), end: Box::pin(sleep(left)) });
        ready!(waiting.end.as_mut().poll(context));
        Poll::Ready(Some(Err(axum::Error::new(TooSlow))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{StreamExt, stream};
    use http_body_util::BodyExt;

    /// A piece of so many bytes every ten milliseconds.
    fn dripping(bytes: usize, pieces: usize) -> Body {
        Body::from_stream(stream::iter(0..pieces).then(move |_| async move {
            sleep(Duration::from_millis(10)).await;
            Ok::<_, std::io::Error>(vec![b' '; bytes])
        }))
    }

    #[tokio::test]
    async fn a_body_that_drips_is_given_up_and_one_that_flows_is_not() {
        let patience = Duration::from_millis(100);
        let slow = Paced::with_patience(dripping(1, 1000), patience).collect().await;
        let error = crate::api::extract::unreadable(&slow.unwrap_err());
        assert_eq!((error.status.as_u16(), &*error.message), (408, "the body came too slowly"));
        let fast = Paced::with_patience(dripping(BYTES_A_SECOND as usize, 30), patience).collect().await;
        assert_eq!(fast.unwrap().to_bytes().len(), 30 * BYTES_A_SECOND as usize);
    }
}
