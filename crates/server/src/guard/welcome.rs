//! Ends answers that go on for long when their client may not have them any more.
//!
//! Wraps the body of an answer. A stream to a key that was revoked ends within seconds, and so does one that
//! began before the server had keys.

use super::keys::{Key, Keys};
use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often an answer asks whether its client is still welcome.
const EVERY: Duration = Duration::from_secs(2);
/// Answers up to this size are gone before anybody could revoke a key.
const SHORT: u64 = 256 << 10;

/// Who an answer goes to.
#[derive(Clone)]
pub(super) struct Welcome {
    pub keys: Arc<Keys>,
    /// The key that the request came with, where keys were needed.
    pub key: Option<Key>,
}

impl Welcome {
    fn lasts(&self) -> bool {
        match &self.key {
            Some(key) => self.keys.has(key),
            None => !self.keys.are_needed(),
        }
    }

    /// An answer's body, as long as its client is welcome.
    pub(super) fn guard(self, body: Body) -> Body {
        match body.size_hint().upper() {
            Some(bytes) if bytes <= SHORT => body,
            _ => Body::new(Guarded::new(body, self, EVERY)),
        }
    }
}

struct Guarded {
    inner: Body,
    welcome: Welcome,
    looks: Interval,
}

impl Guarded {
    fn new(inner: Body, welcome: Welcome, every: Duration) -> Self {
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { inner, welcome, looks }
    }
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.looks.poll_tick(context).is_ready() {
            if !self.welcome.lasts() {
                self.inner = Body::empty();
                return Poll::Ready(None);
            }
        }
        Pin::new(&mut self.inner).poll_frame(context)
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
    use crate::{data_dir::DataDir, guard::keys};
    use futures_util::{StreamExt, stream};
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_stream_ends_with_the_key_it_was_asked_with() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::beside(folder.path()).unwrap();
        let keys = Arc::new(Keys::open(&data, None, true).unwrap());
        let endless = || {
            let first = stream::iter([Ok::<_, std::io::Error>("first")]);
            Body::from_stream(first.chain(stream::pending()))
        };
        let guarded = |key: Option<Key>| {
            let welcome = Welcome { keys: keys.clone(), key };
            Guarded::new(endless(), welcome, Duration::from_millis(5))
        };
        let mut nobody = guarded(None);
        assert!(nobody.frame().await.unwrap().is_ok());
        let token = keys::add(folder.path(), "anna").unwrap();
        assert!(nobody.frame().await.is_none(), "a key is needed from now on");
        let mut anna = guarded(keys.find(&token));
        assert!(anna.frame().await.unwrap().is_ok());
        keys::revoke(folder.path(), "anna").unwrap();
        assert!(anna.frame().await.is_none());
    }
}
