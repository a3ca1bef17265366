//! The process that owns a model: answers what comes through a socket.
//!
//! Takes JSON lines ([`ToHost`]) and gives JSON lines ([`FromHost`]). A line that makes no sense is answered in
//! words and passed over. The process ends when the line breaks or when it is told to.

use crate::{
    Engine, Reply,
    plan::{HostSettings, LARGEST_QUESTION},
    request::{ChatRequest, Fault},
};
use garden_model::Precision;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::{Duration, Instant},
};

/// The longest line: the longest question, in the words of this protocol.
const LONGEST_LINE: u64 = 2 * LARGEST_QUESTION as u64;
/// Time between two words about loading.
const PROGRESS: Duration = Duration::from_millis(200);

/// What a host is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHost {
    /// A question.
    Ask {
        /// Its number, chosen by who asks.
        id: u64,
        /// The question.
        request: ChatRequest,
    },
    /// A question whose answer nobody wants any more.
    Cancel {
        /// Its number.
        id: u64,
    },
    /// End now.
    End,
}

/// What a host tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHost {
    /// The share of the weights that was read.
    Loading(f32),
    /// Questions are taken.
    Ready(HostSettings),
    /// The model cannot be loaded; the process ends.
    Failed(String),
    /// A part of an answer.
    Reply {
        /// The question's number.
        id: u64,
        /// The part.
        reply: Reply,
    },
    /// A line that made no sense.
    Malformed(String),
}

/// What a host owns.
#[derive(Debug, Clone)]
pub struct HostOrders {
    /// Where the server listens.
    pub socket: PathBuf,
    /// The model folder.
    pub model: PathBuf,
    /// The adapter's folder.
    pub adapter: Option<PathBuf>,
    /// How weights are held.
    pub precision: Precision,
    /// What to lay out; what suits the model where nothing is said.
    pub settings: Option<HostSettings>,
}

/// Has the system refuse this process more memory than so many bytes: it ends rather than take what others need.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    Ok(setrlimit(Resource::Data, limit)?)
}

/// Connects, loads, and answers until the line breaks.
pub fn run(orders: &HostOrders) -> io::Result<()> {
    let line = UnixStream::connect(&orders.socket)?;
    let mut out = line.try_clone()?;
    let mut broken = Ok(());
    let mut last = Instant::now();
    let loaded =
        Engine::load(&orders.model, orders.adapter.as_deref(), orders.precision, orders.settings, |share| {
            if broken.is_ok() && last.elapsed() >= PROGRESS {
                broken = tell(&mut out, &FromHost::Loading(share));
                last = Instant::now();
            }
        });
    broken?;
    match loaded {
        Ok(engine) => {
            tell(&mut out, &FromHost::Ready(engine.settings()))?;
            answer(engine, line, out)
        }
        Err(error) => tell(&mut out, &FromHost::Failed(chain(&error))),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| match text.contains(&cause.to_string()) {
        true => text,
        false => format!("{text}: {cause}"),
    })
}

fn tell(out: &mut UnixStream, message: &FromHost) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// A line from the server.
enum Heard {
    Message(Box<ToHost>),
    Malformed(String),
}

/// Answers until the line breaks, which is no fault.
fn answer(mut engine: Engine, line: UnixStream, mut out: UnixStream) -> io::Result<()> {
    // One line is read ahead of the engine, as the plan says.
    let (sender, heard) = mpsc::sync_channel(0);
    let reader = thread::Builder::new().name("reader".into());
    reader.spawn(move || {
        let mut line = BufReader::new(line);
        while let Ok(Some(message)) = hear(&mut line) {
            if sender.send(message).is_err() {
                return;
            }
        }
    })?;
    loop {
        let mut broken = Ok(());
        let mut say = |id, reply| {
            if broken.is_ok() {
                broken = tell(&mut out, &FromHost::Reply { id, reply });
            }
        };
        let busy = engine.step(&mut say);
        // Who asked is gone: so is the reason to go on.
        if broken.is_err() {
            return Ok(());
        }
        let mut wait = !busy;
        loop {
            let message = match listen(&heard, wait) {
                Listened::Message(message) => message,
                Listened::Nothing => break,
                Listened::Broken => return Ok(()),
            };
            wait = false;
            let told = match message {
                Heard::Malformed(words) => tell(&mut out, &FromHost::Malformed(words)),
                Heard::Message(message) => match *message {
                    ToHost::End => return Ok(()),
                    ToHost::Cancel { id } => {
                        engine.cancel(id);
                        Ok(())
                    }
                    ToHost::Ask { id, request } => match engine.ask(id, &request) {
                        Ok(()) => Ok(()),
                        Err(fault) => tell(&mut out, &refusal(id, fault)),
                    },
                },
            };
            if told.is_err() {
                return Ok(());
            }
        }
    }
}

fn refusal(id: u64, fault: Fault) -> FromHost {
    FromHost::Reply { id, reply: Reply::Fault(fault) }
}

/// What came from the server.
enum Listened {
    Message(Heard),
    Nothing,
    Broken,
}

/// The next message that came meanwhile, or that is waited for.
fn listen(heard: &Receiver<Heard>, wait: bool) -> Listened {
    if wait {
        return heard.recv().map_or(Listened::Broken, Listened::Message);
    }
    match heard.try_recv() {
        Ok(message) => Listened::Message(message),
        Err(TryRecvError::Empty) => Listened::Nothing,
        Err(TryRecvError::Disconnected) => Listened::Broken,
    }
}

/// The next line; nothing at the end.
fn hear(line: &mut impl BufRead) -> io::Result<Option<Heard>> {
    let mut text = Vec::new();
    if line.take(LONGEST_LINE).read_until(b'\n', &mut text)? == 0 {
        return Ok(None);
    }
    if text.last() != Some(&b'\n') {
        // Too long, or broken off at the end.
        line.skip_until(b'\n')?;
        return Ok(Some(Heard::Malformed(format!(
            "a line is longer than {LONGEST_LINE} bytes, or broken off"
        ))));
    }
    Ok(Some(match serde_json::from_slice(&text) {
        Ok(message) => Heard::Message(Box::new(message)),
        Err(error) => Heard::Malformed(format!("a line that is no message: {error}")),
    }))
}
