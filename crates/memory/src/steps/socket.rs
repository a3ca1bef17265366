//! The datagram socket named in `MODEL_GARDEN_SOCKET`: a training callback writes its step, and may hear of limits.
//!
//! In come datagrams, one JSON object each; out come reports on the [`StepBoard`], and notices to every sender that
//! bound an address of its own. A message that cannot be read is counted and otherwise ignored, and a receiver that
//! does not listen never holds us up.

use super::{Progress, Source, StepBoard};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::Shutdown,
    os::unix::net::{SocketAddr, UnixDatagram},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// The environment variable that tells a command where to write.
pub const SOCKET_VARIABLE: &str = "MODEL_GARDEN_SOCKET";
/// The version of the messages in both directions. It grows when a key changes its meaning or goes away, not when one is added.
pub const SOCKET_VERSION: u32 = 1;
/// A longer message is no progress report.
const LONGEST_MESSAGE: usize = 8192;
/// Ranks of one job that may listen for notices; the oldest is forgotten beyond that.
const MOST_LISTENERS: usize = 64;
/// A listener whose queue is full misses the notice after this long; the signal still reaches it.
const SEND_PATIENCE: Duration = Duration::from_millis(100);

/// A message from a callback; unknown keys are ignored.
#[derive(Debug, Deserialize)]
struct Message {
    /// Not told means the first.
    version: Option<u32>,
    step: Option<u64>,
    epoch: Option<f64>,
    dataset_size: Option<u64>,
    samples_per_step: Option<u64>,
    steps_per_epoch: Option<f64>,
}

/// A message to the callbacks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Notice {
    /// What happened: `memory-limit`.
    pub event: &'static str,
    /// What to do: `checkpoint` (write one and exit) or `warn`.
    pub action: &'static str,
    /// Memory of the tree, in bytes.
    pub owned: u64,
    /// The limit, in bytes.
    pub limit: u64,
    /// Seconds until the tree is ended.
    pub grace_seconds: f64,
    /// Why, as a sentence.
    pub reason: String,
}

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
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells every listener; returns how many took it.
    pub fn tell(&self, notice: &Notice) -> usize {
        #[derive(Serialize)]
        struct Versioned<'a> {
            version: u32,
            #[serde(flatten)]
            notice: &'a Notice,
        }
        let Ok(text) = serde_json::to_vec(&Versioned { version: SOCKET_VERSION, notice }) else { return 0 };
        let listeners = lock(&self.shared).listeners.clone();
        listeners.iter().filter(|listener| self.socket.send_to_addr(&text, listener).is_ok()).count()
    }

    /// Messages that could not be read so far.
    pub fn unreadable(&self) -> u64 {
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
    let Ok(message) = serde_json::from_slice::<Message>(bytes) else { return false };
    let Message { version, step, epoch, dataset_size, samples_per_step, steps_per_epoch } = message;
    if version.is_some_and(|version| version > SOCKET_VERSION) {
        return false;
    }
    board.report(
        Source::Socket,
        Progress { step, epoch, epoch_number: None, dataset_size, samples_per_step, steps_per_epoch },
    );
    true
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
    use crate::RunFacts;
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
        until(|| board.now(&RunFacts::default()) == (Some(12), Some(0.5)));
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
        until(|| board.now(&RunFacts::default()).0 == Some(3) && !lock(&socket.shared).listeners.is_empty());
        let notice = Notice {
            event: "memory-limit",
            action: "checkpoint",
            owned: 95,
            limit: 100,
            grace_seconds: 60.0,
            reason: "near".into(),
        };
        assert_eq!(socket.tell(&notice), 1);
        let mut buffer = [0; 512];
        let length = callback.recv(&mut buffer).unwrap();
        let heard: serde_json::Value = serde_json::from_slice(&buffer[..length]).unwrap();
        assert_eq!((heard["action"].as_str(), heard["owned"].as_u64()), (Some("checkpoint"), Some(95)));
        assert_eq!(heard["version"], SOCKET_VERSION);
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
