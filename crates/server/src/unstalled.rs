//! A connection that is given up when its client takes nothing of what is sent.
//!
//! Reads pass through. A write that finds no room waits for a bounded time: a client that never reads would
//! hold its connection, and the answer that streams over it, for ever.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// How long a client may take nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module's description.
pub(crate) struct Unstalled<T> {
    inner: T,
    patience: Duration,
    /// Ends when the client has taken nothing for too long.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Unstalled<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner, patience: PATIENCE, stalled: None }
    }

    /// Passes a write on that was done; one that waits has so much time.
    fn in_time(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Unstalled<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Unstalled<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.in_time(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let patience = Duration::from_millis(100);
        let (ours, theirs) = duplex(8);
        let mut silent = Unstalled { inner: ours, patience, stalled: None };
        let error = silent.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);

        let (ours, mut theirs) = duplex(8);
        let mut slow = Unstalled { inner: ours, patience, stalled: None };
        let reading = async {
            for _ in 0..20 {
                sleep(Duration::from_millis(20)).await;
                theirs.read_exact(&mut [0; 5]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(slow.write_all(&[0; 100]), reading);
        written.unwrap();
    }
}
