//! The lines to the Python processes of a command.
//!
//! Each process calls once and says its PID, and again after a fork. Then it answers questions, one at a time, and asks in between which
//! step a moment belonged to. A process that does not answer in time is not asked again.

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A process says who it is as soon as it calls.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
/// A census waits for the interpreter's lock, which native code may hold for a while.
const ANSWER_PATIENCE: Duration = Duration::from_secs(90);
/// The longest answer that is read.
const LONGEST_ANSWER: u64 = 4 << 20;

type Streams = HashMap<i32, Arc<UnixStream>>;
type Lines = Arc<Mutex<Streams>>;

/// Accepts calls until it is dropped.
#[derive(Debug)]
pub(super) struct Switchboard {
    path: PathBuf,
    lines: Lines,
    closing: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Switchboard {
    pub fn open(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let lines = Lines::default();
        let closing = Arc::new(AtomicBool::new(false));
        let accepting = thread::spawn({
            let (lines, closing) = (Arc::clone(&lines), Arc::clone(&closing));
            move || accept(&listener, &lines, &closing)
        });
        Ok(Self { path: path.to_owned(), lines, closing, accepting: Some(accepting) })
    }

    /// The processes that can be asked.
    pub fn pids(&self) -> Vec<i32> {
        lock(&self.lines).keys().copied().collect()
    }

    /// Forgets processes that have ended.
    pub fn keep(&self, lives: impl Fn(i32) -> bool) {
        lock(&self.lines).retain(|pid, _| lives(*pid));
    }

    /// The line to a process, while it is asked.
    pub fn take(&self, pid: i32) -> Option<Line> {
        let stream = Arc::clone(lock(&self.lines).get(&pid)?);
        Some(Line { pid, stream, lines: Arc::clone(&self.lines) })
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = std::fs::remove_file(&self.path);
        lock(&self.lines).clear();
        if woken && let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// A line to one process.
pub(super) struct Line {
    pid: i32,
    stream: Arc<UnixStream>,
    lines: Lines,
}

impl Line {
    /// Asks and waits for the answer; a process that gives none is forgotten. `step_at` knows the step of a moment.
    pub fn ask(self, question: &Value, step_at: impl Fn(Instant) -> Option<u64>) -> Option<Value> {
        let answer = self.answer(question, step_at).ok();
        if answer.is_none() {
            // It may have called again meanwhile, after a fork.
            lock(&self.lines).retain(|pid, stream| *pid != self.pid || !Arc::ptr_eq(stream, &self.stream));
        }
        answer
    }

    fn answer(&self, question: &Value, step_at: impl Fn(Instant) -> Option<u64>) -> io::Result<Value> {
        self.stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        self.stream.set_write_timeout(Some(HELLO_PATIENCE))?;
        (&*self.stream).write_all(format!("{question}\n").as_bytes())?;
        loop {
            let said = read_object(&self.stream)?;
            let Some(moment) = said["step_at"].as_f64() else { return Ok(said) };
            let step = step_at(instant_of(moment));
            (&*self.stream).write_all(format!("{}\n", json!({ "step": step })).as_bytes())?;
        }
    }
}

/// The moment at which the monotonic clock, which all processes share, showed so many seconds.
fn instant_of(seconds: f64) -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    let ago = now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9 - seconds;
    let ago = Duration::try_from_secs_f64(ago).unwrap_or_default();
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}

fn lock(lines: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &UnixListener, lines: &Lines, closing: &AtomicBool) {
    for stream in listener.incoming() {
        if closing.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Too many open files, most likely.
            thread::sleep(HELLO_PATIENCE);
            continue;
        };
        let lines = Arc::clone(lines);
        // A process that calls and says nothing holds up nobody else.
        thread::spawn(move || {
            if let Ok(pid) = hello(&stream) {
                lock(&lines).insert(pid, Arc::new(stream));
            }
        });
    }
}

fn hello(stream: &UnixStream) -> io::Result<i32> {
    stream.set_read_timeout(Some(HELLO_PATIENCE))?;
    let hello = read_object(stream)?;
    let pid = hello["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_object(stream: &UnixStream) -> io::Result<Value> {
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
