//! The one thread that writes.
//!
//! Takes pieces of work and runs them in the order they came, each in a transaction. While the database is locked the
//! thread tries again, and a piece fails when its caller's patience ends; a piece that must not be lost waits as long
//! as it takes. An error rolls the transaction back, so nothing is half done.

use super::StoreError;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{
    collections::VecDeque,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Work>>>,
    thread: Option<thread::JoinHandle<()>>,
    patience: Duration,
}

/// How long a piece of work waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    Deadline(Instant),
    Done,
}

/// A piece of work, whatever it gives back.
trait Work: Send {
    fn attempt(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
    fn until(&self) -> Until;
    fn finish(self: Box<Self>, end: Result<(), StoreError>);
}

struct Piece<F, T> {
    work: F,
    got: Option<T>,
    until: Until,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send> Work for Piece<F, T> {
    fn attempt(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        self.got = Some((self.work)(transaction)?);
        Ok(())
    }

    fn until(&self) -> Until {
        self.until
    }

    fn finish(self: Box<Self>, end: Result<(), StoreError>) {
        let Self { got, reply, .. } = *self;
        // Who asked may have gone: what was written stays written.
        let _ = reply.send(end.and_then(|()| got.ok_or(StoreError::Ended)));
    }
}

impl Writer {
    pub(super) fn start(connection: Connection, patience: Duration) -> Result<Self, StoreError> {
        let (queue, works) = mpsc::channel();
        let begin = move || Line { connection, waiting: VecDeque::new() }.work(&works, patience);
        let started = thread::Builder::new().name("index".to_owned()).spawn(begin);
        let thread =
            started.map_err(|source| StoreError::Io { path: "the index's thread".into(), source })?;
        Ok(Self { queue: Some(queue), thread: Some(thread), patience })
    }

    /// Has `work` done within the usual patience.
    pub(super) fn send<T: Send + 'static>(
        &self,
        work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, StoreError>> {
        self.enqueue(work, Until::Deadline(Instant::now() + self.patience))
    }

    /// Has `work` done as soon as it can be, however long that takes.
    pub(super) fn send_later(
        &self,
        work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) -> oneshot::Receiver<Result<(), StoreError>> {
        self.enqueue(work, Until::Done)
    }

    fn enqueue<T: Send + 'static>(
        &self,
        work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
        until: Until,
    ) -> oneshot::Receiver<Result<T, StoreError>> {
        let (reply, answer) = oneshot::channel();
        if let Some(queue) = &self.queue {
            // Without a thread the reply is dropped with the piece, and the receiver told so.
            let _ = queue.send(Box::new(Piece { work, got: None, until, reply }));
        }
        answer
    }
}

impl Drop for Writer {
    /// Waits for what was asked to be written.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own: its connection, and the pieces that wait.
struct Line {
    connection: Connection,
    waiting: VecDeque<Box<dyn Work>>,
}

/// What keeps every piece from being written, for a while.
#[derive(Debug, Clone, Copy)]
enum Hindrance {
    Locked,
    Full,
}

impl From<Hindrance> for StoreError {
    fn from(hindrance: Hindrance) -> Self {
        match hindrance {
            Hindrance::Locked => Self::Locked,
            Hindrance::Full => Self::Full,
        }
    }
}

impl Line {
    fn work(mut self, works: &mpsc::Receiver<Box<dyn Work>>, patience: Duration) {
        let mut last_chance = None;
        loop {
            let Some(hindrance) = self.attempt_first() else {
                if self.waiting.is_empty() {
                    match works.recv() {
                        Ok(piece) => self.waiting.push_back(piece),
                        Err(_) => return,
                    }
                }
                continue;
            };
            match works.recv_timeout(PAUSE) {
                Ok(piece) => self.waiting.push_back(piece),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let end = *last_chance.get_or_insert_with(|| Instant::now() + patience);
                    if Instant::now() >= end {
                        return;
                    }
                    thread::sleep(PAUSE);
                }
            }
            self.give_up(hindrance);
        }
    }

    /// Tries the first piece; what hinders it, where it must be tried again.
    fn attempt_first(&mut self) -> Option<Hindrance> {
        let mut piece = self.waiting.pop_front()?;
        let end = attempt(&mut self.connection, piece.as_mut());
        let hindrance = match (&end, piece.until()) {
            (Err(StoreError::Locked), _) => Hindrance::Locked,
            (Err(StoreError::Full), Until::Done) => Hindrance::Full,
            _ => {
                piece.finish(end);
                return None;
            }
        };
        self.waiting.push_front(piece);
        Some(hindrance)
    }

    /// Tells those whose patience has ended.
    fn give_up(&mut self, hindrance: Hindrance) {
        let now = Instant::now();
        for piece in std::mem::take(&mut self.waiting) {
            match piece.until() {
                Until::Deadline(deadline) if deadline <= now => piece.finish(Err(hindrance.into())),
                _ => self.waiting.push_back(piece),
            }
        }
    }
}

fn attempt(connection: &mut Connection, piece: &mut dyn Work) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    piece.attempt(&transaction)?;
    Ok(transaction.commit()?)
}
