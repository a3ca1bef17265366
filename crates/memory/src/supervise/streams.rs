//! A command's standard streams: passed through byte for byte, and read along for steps.
//!
//! In come the places our own streams lead to; out come the ends that the command gets. Where ours is a terminal the
//! command gets a pseudo-terminal, so that it prints as if we were not there; otherwise a pipe. Two streams that lead
//! to the same place share one, so that their order is kept.

use crate::steps::{OutputParser, StepBoard, StepPatterns};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::getpgrp,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{OptionalActions, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize},
};
use std::{
    fs::{self, File},
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
    process::{ChildStdin, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// A pipe holds 64 KiB: what it holds is taken at once.
const CHUNK: usize = 64 << 10;
/// After the last process of the tree its output is at its end; only a stranger that inherited it could hold it open.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// How often a reader of our terminal looks whether we are in the foreground.
const FOREGROUND_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// What shows output on a screen.
pub type Screen = Arc<Mutex<dyn Write + Send>>;

/// Where the command's output goes.
pub enum Passage {
    /// To our own standard output and error.
    Through,
    /// Where it would go to the terminal, to this instead, because a screen is drawn there.
    Shown(Screen),
    /// Nowhere: it is only read along for steps.
    Swallowed,
}

/// One of our two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Output,
    Errors,
}

impl Stream {
    fn of_ours(self) -> io::Result<OwnedFd> {
        match self {
            Self::Output => io::stdout().as_fd().try_clone_to_owned(),
            Self::Errors => io::stderr().as_fd().try_clone_to_owned(),
        }
    }

    /// The file behind it; two streams with the same one lead to the same place.
    fn place(self) -> Option<(u64, u64)> {
        let number = if self == Self::Output { 1 } else { 2 };
        let file = fs::metadata(format!("/proc/self/fd/{number}")).ok()?;
        Some((file.dev(), file.ino()))
    }
}

/// The reading end of what the command writes.
enum Source {
    Pipe(PipeReader),
    Terminal(File),
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.read(buffer),
            // A pseudo-terminal that nobody writes to any more reads as an I/O error.
            Self::Terminal(terminal) => terminal.read(buffer).or_else(|error| {
                let ended = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
                if ended { Ok(0) } else { Err(error) }
            }),
        }
    }
}

/// The writing end, for the command.
enum Sink {
    Pipe(PipeWriter),
    Terminal(File),
}

impl Sink {
    fn stdio(&self) -> io::Result<Stdio> {
        Ok(match self {
            Self::Pipe(pipe) => Stdio::from(pipe.try_clone()?),
            Self::Terminal(terminal) => Stdio::from(terminal.try_clone()?),
        })
    }
}

/// One way from the command to us.
struct Channel {
    source: Source,
    sink: Sink,
    stream: Stream,
}

impl Channel {
    fn open(stream: Stream) -> io::Result<Self> {
        let ours = stream.of_ours()?;
        let (source, sink) = if isatty(&ours) { open_terminal(&ours)? } else { open_pipe()? };
        Ok(Self { source, sink, stream })
    }
}

fn open_pipe() -> io::Result<(Source, Sink)> {
    let (reader, writer) = io::pipe()?;
    Ok((Source::Pipe(reader), Sink::Pipe(writer)))
}

/// A pseudo-terminal of the size of `ours` that changes no byte: ours does that already.
fn open_terminal(ours: &OwnedFd) -> io::Result<(Source, Sink)> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let name = ptsname(&controller, Vec::new())?;
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let terminal = File::options().read(true).write(true).open(path)?;
    let mut mode = tcgetattr(&terminal)?;
    mode.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &mode)?;
    if let Ok(size) = tcgetwinsize(ours) {
        tcsetwinsize(&terminal, size)?;
    }
    Ok((Source::Terminal(File::from(controller)), Sink::Terminal(terminal)))
}

/// The streams of one command, before it starts.
pub(super) struct Streams {
    channels: Vec<Channel>,
    feeds_input: bool,
}

impl Streams {
    pub fn open(passage: &Passage) -> io::Result<Self> {
        let same = Stream::Output.place().is_some() && Stream::Output.place() == Stream::Errors.place();
        let streams: &[Stream] = if same { &[Stream::Output] } else { &[Stream::Output, Stream::Errors] };
        let channels = streams.iter().map(|stream| Channel::open(*stream)).collect::<io::Result<_>>()?;
        let feeds_input = isatty(io::stdin()) && matches!(passage, Passage::Through);
        Ok(Self { channels, feeds_input })
    }

    /// Input, output and errors for the command. A command in a group of its own may not read our terminal, so there
    /// it gets a pipe that we fill; anything else is handed on as it is.
    pub fn for_command(&self, passage: &Passage) -> io::Result<[Stdio; 3]> {
        let input = match passage {
            _ if self.feeds_input => Stdio::piped(),
            Passage::Shown(_) | Passage::Swallowed if isatty(io::stdin()) => Stdio::null(),
            _ => Stdio::inherit(),
        };
        let [output, errors] = [self.channels.first(), self.channels.last()];
        let stdio =
            |channel: Option<&Channel>| channel.map_or(Ok(Stdio::inherit()), |channel| channel.sink.stdio());
        Ok([input, stdio(output)?, stdio(errors)?])
    }

    /// Starts passing through, after the command has its ends.
    pub fn flow(self, passage: &Passage, board: &StepBoard, patterns: &StepPatterns) -> Flow {
        let (done, ended) = channel();
        let mut terminals = Vec::new();
        for Channel { source, sink, stream } in self.channels {
            let parser = OutputParser::new(board.clone(), patterns);
            let target: Box<dyn Write + Send> = match (passage, &sink) {
                (Passage::Shown(screen), Sink::Terminal(_)) => Box::new(ToScreen(screen.clone())),
                (Passage::Swallowed, _) => Box::new(io::sink()),
                _ => match stream.of_ours() {
                    Ok(ours) => Box::new(File::from(ours)),
                    Err(_) => Box::new(io::sink()),
                },
            };
            if let Source::Terminal(terminal) = &source {
                terminals.extend(terminal.try_clone().ok().map(|terminal| (terminal, stream)));
            }
            // The command must be the only writer, or the end would never be seen.
            drop(sink);
            let done: Sender<()> = done.clone();
            thread::spawn(move || {
                pass(source, target, parser);
                let _ = done.send(());
            });
        }
        Flow { ended, terminals }
    }
}

/// Output under way.
pub(super) struct Flow {
    ended: Receiver<()>,
    terminals: Vec<(File, Stream)>,
}

impl Flow {
    /// Our terminal has another size.
    pub fn resize(&self) {
        for (terminal, stream) in &self.terminals {
            if let Some(size) = stream.of_ours().ok().and_then(|ours| tcgetwinsize(ours).ok()) {
                let _ = tcsetwinsize(terminal, size);
            }
        }
    }

    /// Waits until everything that was written has been passed on.
    pub fn drain(self) {
        let deadline = Instant::now() + DRAIN_PATIENCE;
        drop(self.terminals);
        // Each thread sends once and then hangs up; an error is either the last hanging up or the patience.
        while self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

/// Passes bytes on until either side ends. If our reader is gone, so is the command's: its next write fails as it
/// would have without us.
fn pass(mut source: Source, mut target: Box<dyn Write + Send>, mut parser: OutputParser) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                if target.write_all(&buffer[..length]).and_then(|()| target.flush()).is_err() {
                    return;
                }
                parser.feed(&buffer[..length]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

struct ToScreen(Screen);

impl Write for ToScreen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hands lines typed at our terminal to the command. It ends with the process: nothing interrupts a read of a terminal.
pub(super) fn feed_input(mut command: ChildStdin) {
    thread::spawn(move || {
        let stdin = io::stdin();
        let mut buffer = [0; 4096];
        loop {
            let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
            if poll(&mut ready, Some(&FOREGROUND_LOOK)).is_ok_and(|ready| ready == 0) {
                continue;
            }
            // Reading from the background would stop us.
            if tcgetpgrp(&stdin).is_ok_and(|foreground| foreground != getpgrp()) {
                thread::sleep(Duration::from_millis(200));
                continue;
            }
            match rustix::io::read(&stdin, &mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(length) if command.write_all(&buffer[..length]).is_err() => return,
                Ok(_) => {}
            }
        }
    });
}
