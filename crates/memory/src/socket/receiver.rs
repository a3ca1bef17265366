//! The watcher's end of the socket: collects steps and facts, and tells of limits.
//!
//! A [`StepSocket`] reports every message to its [`StepBoard`] and remembers each sender that bound an
//! address of its own, so that it can be told of a limit. A message that cannot be read is counted and
//! otherwise ignored. A receiver that does not listen never holds us up.

use super::protocol::{LONGEST_MESSAGE, SupervisorMessage, progress};
use crate::steps::{StepBoard, StepSource};
use std::{
    io,
    net::Shutdown,
    os::unix::net::{SocketAddr, UnixDatagram},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Ranks of one job that may listen for notices; the oldest is forgotten beyond that.
const MOST_LISTENERS: usize = 64;
/// A listener whose queue is full misses the notice after this long; the signal still reaches it.
const SEND_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Shared {
    listeners: Vec<SocketAddr>,
    unreadable: u64,
    closing: bool,
}

/// The receiving end; it stops listening and removes its file when dropped.
#[derive(Debug)]
pub struct StepSocket {
    path: PathBuf,
    socket: UnixDatagram,
    shared: Arc<Mutex<Shared>>,
    reader: Option<JoinHandle<()>>,
}

impl StepSocket {
    /// Binds `path` and reports what comes to `board`.
    pub fn bind(path: &Path, board: StepBoard) -> io::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_write_timeout(Some(SEND_PATIENCE))?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        // A sender waits while our queue is full, so a thread of its own empties it at once.
        let reader = thread::spawn({
            let (socket, shared) = (socket.try_clone()?, Arc::clone(&shared));
            move || listen(&socket, &board, &shared)
        });
        Ok(Self { path: path.to_owned(), socket, shared, reader: Some(reader) })
    }

    /// Where callbacks write to.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells every listener; returns how many took it.
    pub(crate) fn tell(&self, message: &SupervisorMessage) -> usize {
        let bytes = message.to_bytes();
        let listeners = lock(&self.shared).listeners.clone();
        listeners.iter().filter(|listener| self.socket.send_to_addr(&bytes, listener).is_ok()).count()
    }

    /// Messages that could not be read so far.
    #[cfg(test)]
    fn unreadable(&self) -> u64 {
        lock(&self.shared).unreadable
    }
}

impl Drop for StepSocket {
    fn drop(&mut self) {
        lock(&self.shared).closing = true;
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = std::fs::remove_file(&self.path);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(socket: &UnixDatagram, board: &StepBoard, shared: &Mutex<Shared>) {
    // One byte more than allowed, so that a message that was cut is not taken for a whole one.
    let mut buffer = [0; LONGEST_MESSAGE + 1];
    loop {
        let received = socket.recv_from(&mut buffer);
        // A socket that was shut down reads as an endless row of empty messages.
        if lock(shared).closing {
            return;
        }
        match received {
            Ok((length, sender)) => {
                if length > LONGEST_MESSAGE || !take_in(&buffer[..length], board) {
                    lock(shared).unreadable += 1;
                }
                remember(&mut lock(shared).listeners, sender);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn take_in(bytes: &[u8], board: &StepBoard) -> bool {
    let progress = progress(bytes);
    progress.map(|progress| board.report(StepSource::Socket, progress)).is_some()
}

fn remember(listeners: &mut Vec<SocketAddr>, sender: SocketAddr) {
    let same = |known: &SocketAddr| format!("{known:?}") == format!("{sender:?}");
    if sender.is_unnamed() || listeners.iter().any(same) {
        return;
    }
    if listeners.len() == MOST_LISTENERS {
        listeners.remove(0);
    }
    listeners.push(sender);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        RunFacts,
        socket::{LimitAction, LimitNotice},
        steps::Position,
    };
    use std::time::Instant;

    /// Waits for another thread to do its part; the deadline only turns a hang into a failure.
    fn until(mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "it never came to hold");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn steps_come_in_and_wrong_messages_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let board = StepBoard::default();
        let socket = StepSocket::bind(&folder.path().join("steps"), board.clone()).unwrap();
        let callback = UnixDatagram::unbound().unwrap();
        let wrong: [&[u8]; 7] = [
            b"",
            b"hello",
            b"[1,2]",
            b"{\"step\": -3}",
            b"{\"version\": 2, \"step\": 9}",
            b"\xff\xff",
            &[b' '; 2 * LONGEST_MESSAGE],
        ];
        for message in wrong {
            callback.send_to(message, socket.path()).unwrap();
        }
        callback
            .send_to(
                br#"{"version": 1, "step": 12, "epoch": 0.5, "dataset_size": 663, "note": "x"}"#,
                socket.path(),
            )
            .unwrap();
        until(|| board.now(&RunFacts::default()) == Position { step: Some(12), epoch: Some(0.5) });
        assert_eq!(board.facts(&RunFacts::default()).dataset_size, Some(663));
        assert_eq!(socket.unreadable(), 7);
    }

    #[test]
    fn a_sender_with_an_address_hears_of_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let board = StepBoard::default();
        let socket = StepSocket::bind(&folder.path().join("steps"), board.clone()).unwrap();
        let callback = UnixDatagram::bind(folder.path().join("callback")).unwrap();
        for step in 1..=3 {
            callback.send_to(format!("{{\"step\": {step}}}").as_bytes(), socket.path()).unwrap();
        }
        until(|| {
            board.now(&RunFacts::default()).step == Some(3) && !lock(&socket.shared).listeners.is_empty()
        });
        let notice = SupervisorMessage::MemoryLimit(LimitNotice {
            action: LimitAction::Checkpoint,
            owned: 95,
            limit: 100,
            grace_seconds: 60.0,
            reason: "near".into(),
        });
        assert_eq!(socket.tell(&notice), 1);
        let mut buffer = [0; 512];
        let length = callback.recv(&mut buffer).unwrap();
        assert_eq!(SupervisorMessage::read(&buffer[..length]), Some(notice));
    }

    #[test]
    fn dropping_it_ends_the_thread_and_removes_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps");
        drop(StepSocket::bind(&path, StepBoard::default()).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn listeners_are_few() {
        let mut listeners = Vec::new();
        for number in 0..(2 * MOST_LISTENERS) {
            let address = SocketAddr::from_pathname(format!("/tmp/{number}")).unwrap();
            remember(&mut listeners, address.clone());
            remember(&mut listeners, address);
        }
        assert_eq!(listeners.len(), MOST_LISTENERS);
    }
}
