//! One process that answers, as the server sees it.
//!
//! Takes questions by number and gives their replies to whoever waits for them. One task reads what the process
//! says, another writes to it; when the process ends, for whatever reason, every question that is left is told why.

use super::key::HostKey;
use crate::{budget::Reservation, job::runner::ChildProgram};
use garden_chat::{
    ChatRequest, Fault, HostPlan, Reply,
    host::{FromHost, ToHost},
};
use garden_model::Precision;
use std::{
    collections::HashMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::{Child, Command},
    sync::{Notify, mpsc, watch},
    time,
};

/// Time in which a new process connects.
const CONNECT: Duration = Duration::from_secs(30);
/// Time in which a process ends after it was told, before it is killed.
const END: Duration = Duration::from_secs(3);
/// Time between two looks at whether a process is idle.
const IDLE_CHECK: Duration = Duration::from_millis(500);
/// Bytes of the log that an error repeats.
const LAST_WORDS: usize = 600;

/// A process, and the questions that it has.
pub(super) struct Host {
    /// What the model was first asked by.
    pub name: String,
    pub key: HostKey,
    pub plan: HostPlan,
    /// Bytes that come back when it is gone.
    pub reserved: u64,
    /// Cleans its words of paths.
    program: ChildProgram,
    /// Wakes who decides whether it ends.
    wake: Notify,
    to: mpsc::UnboundedSender<ToHost>,
    questions: Mutex<Questions>,
    /// Whether the process is gone.
    gone: watch::Sender<bool>,
}

struct Questions {
    open: HashMap<u64, mpsc::UnboundedSender<Reply>>,
    next: u64,
    used: Instant,
}

/// What a new process is started with.
pub(super) struct Start<'a> {
    pub name: String,
    pub key: HostKey,
    pub plan: HostPlan,
    pub program: &'a ChildProgram,
    pub log: PathBuf,
    pub reservation: Reservation,
}

/// A process whose tasks have not begun.
pub(super) struct Started {
    child: Child,
    line: UnixStream,
    writes: mpsc::UnboundedReceiver<ToHost>,
    log: PathBuf,
    reservation: Reservation,
}

/// Starts a process and waits until it connects.
pub(super) async fn start(start: Start<'_>) -> io::Result<(Host, Started)> {
    // Not in the data folder: a socket's path is short.
    let folder = tempfile::Builder::new().prefix("garden-host-").tempdir()?;
    let socket = folder.path().join("line");
    let listener = UnixListener::bind(&socket)?;
    let mut child = spawn(&start, &socket)?;
    let line = tokio::select! {
        accepted = listener.accept() => accepted?.0,
        ended = child.wait() => {
            let words = start.program.without_folders(&last_words(&start.log));
            return Err(io::Error::other(format!("it ended: {}{words}", ended?)));
        }
        () = time::sleep(CONNECT) => {
            child.kill().await?;
            return Err(io::Error::other("it did not connect"));
        }
    };
    Ok(connected(start, child, line))
}

fn connected(start: Start<'_>, child: Child, line: UnixStream) -> (Host, Started) {
    let Start { name, key, plan, program, log, reservation } = start;
    let (to, writes) = mpsc::unbounded_channel();
    let questions = Questions { open: HashMap::new(), next: 0, used: Instant::now() };
    let host = Host {
        name,
        key,
        plan,
        reserved: reservation.bytes(),
        program: program.clone(),
        wake: Notify::new(),
        to,
        questions: Mutex::new(questions),
        gone: watch::Sender::new(false),
    };
    (host, Started { child, line, writes, log, reservation })
}

fn spawn(start: &Start<'_>, socket: &Path) -> io::Result<Child> {
    let Start { key, plan, program, log, reservation, .. } = start;
    let mut command = program.command();
    command.arg("serve-host").arg("--socket").arg(socket).arg("--model").arg(&key.base);
    if let Some(adapter) = &key.adapter {
        command.arg("--adapter").arg(adapter);
    }
    match key.precision {
        Precision::Bits4 => command.arg("--load-in-4bit"),
        Precision::Bits8 => command.arg("--load-in-8bit"),
        Precision::Bits16 => command.arg("--load-in-16bit"),
        _ => &mut command,
    };
    command.arg("--limit").arg(reservation.bytes().to_string());
    command.arg("--settings").arg(serde_json::to_string(&plan.settings)?);
    command.stdout(Stdio::null()).stderr(File::create(log)?);
    let mut command = Command::from(command);
    command.process_group(0).kill_on_drop(true).spawn()
}

/// The end of a log, for an error.
fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LAST_WORDS)..]).trim().to_owned();
    if text.is_empty() { text } else { format!(" ({text})") }
}

impl Host {
    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Questions that it has, and since when it has had none.
    pub fn load(&self) -> (usize, Instant) {
        let questions = self.questions();
        (questions.open.len(), questions.used)
    }

    /// Hands a question over; its number, and where its replies come.
    pub fn ask(&self, request: ChatRequest) -> (u64, mpsc::UnboundedReceiver<Reply>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut questions = self.questions();
        let id = questions.next;
        (questions.next, questions.used) = (id + 1, Instant::now());
        if self.to.send(ToHost::Ask { id, request }).is_ok() {
            questions.open.insert(id, sender);
        } else {
            let _ = sender.send(Reply::Fault(Fault::model("the model's process has just ended; ask again")));
        }
        (id, receiver)
    }

    /// Nobody waits for the answer any more.
    pub fn forget(&self, id: u64) {
        let mut questions = self.questions();
        questions.used = Instant::now();
        if questions.open.remove(&id).is_some() {
            let _ = self.to.send(ToHost::Cancel { id });
            self.wake();
        }
    }

    /// Has it looked at whether the process should end.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until the process is gone.
    pub async fn wait_gone(&self) {
        // The sender lives as long as `self`.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    fn hear(&self, message: FromHost) -> Option<String> {
        match message {
            FromHost::Loading(_) | FromHost::Ready(_) => None,
            FromHost::Malformed(words) => {
                // Our own fault; what was asked is not known.
                Some(format!("the model's process did not understand a message: {words}"))
            }
            FromHost::Failed(words) => Some(words),
            FromHost::Reply { id, mut reply } => {
                if let Reply::Fault(fault) = &mut reply {
                    fault.message = self.program.without_folders(&fault.message);
                }
                let mut questions = self.questions();
                let last = reply.is_last();
                if let Some(sender) = questions.open.get(&id) {
                    // A receiver that is gone cancels by itself.
                    let _ = sender.send(reply);
                }
                if last {
                    questions.open.remove(&id);
                    questions.used = Instant::now();
                    self.wake();
                }
                None
            }
        }
    }
}

impl Started {
    /// Reads and writes until the process is gone; `over` is given its memory before its questions are told. `retire`
    /// tells whether it should end now, and that it gets no more questions then. A process that does not end when it is
    /// told is killed.
    pub async fn attend(self, host: Arc<Host>, retire: impl Fn() -> bool, over: impl FnOnce(Reservation)) {
        let Self { mut child, line, writes, log, reservation } = self;
        let (read, write) = line.into_split();
        let writer = tokio::spawn(write_all(write, writes));
        let mut why = None;
        let listening = listen(read, &host, &mut why);
        let ended = tokio::select! {
            () = listening => None,
            status = child.wait() => status.ok(),
            () = watch_idle(&host, retire) => None,
        };
        let _ = host.to.send(ToHost::End);
        let ended = match ended {
            Some(status) => Some(status),
            None => match time::timeout(END, child.wait()).await {
                Ok(status) => status.ok(),
                Err(_) => {
                    let _ = child.kill().await;
                    None
                }
            },
        };
        writer.abort();
        over(reservation);
        let words = why.unwrap_or_else(|| {
            let status = ended.map_or(String::new(), |status| format!(": {status}"));
            format!("the model's process ended{status}{}", last_words(&log))
        });
        let words = host.program.without_folders(&words);
        let open = std::mem::take(&mut host.questions().open);
        for sender in open.into_values() {
            let _ = sender.send(Reply::Fault(Fault::model(&words)));
        }
        host.gone.send_replace(true);
    }
}

/// Reads until the line breaks or the process says that it cannot go on.
async fn listen(read: OwnedReadHalf, host: &Host, why: &mut Option<String>) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(message) = serde_json::from_str(&line) else { continue };
        if let Some(words) = host.hear(message) {
            *why = Some(words);
            return;
        }
    }
}

async fn write_all(mut write: OwnedWriteHalf, mut messages: mpsc::UnboundedReceiver<ToHost>) {
    while let Some(message) = messages.recv().await {
        let Ok(mut line) = serde_json::to_vec(&message) else { continue };
        drop(message);
        line.push(b'\n');
        if write.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Returns when the process should end.
async fn watch_idle(host: &Host, retire: impl Fn() -> bool) {
    while !retire() {
        // Whether it was woken or not: it is looked at again.
        let _ = time::timeout(IDLE_CHECK, host.wake.notified()).await;
    }
}

/// A process that connects and then does nothing, not even end, and the other end of its line.
#[cfg(test)]
pub(super) fn hung(
    name: &str,
    key: HostKey,
    plan: HostPlan,
    reservation: Reservation,
) -> (Host, Started, UnixStream) {
    let child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
    let (line, other) = UnixStream::pair().unwrap();
    let (name, program, log) = (name.to_owned(), &ChildProgram::default(), "/dev/null".into());
    let (host, started) = connected(Start { name, key, plan, program, log, reservation }, child, line);
    (host, started, other)
}
