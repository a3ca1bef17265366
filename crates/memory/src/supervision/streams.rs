//! A command's standard streams: passed through byte for byte, and read along for steps.
//!
//! Where our output is a terminal the command gets a pseudo-terminal, so that it prints as it would without
//! us; elsewhere it gets a pipe. Two streams that lead to the same place share one, which keeps their order.
//! Input is our own, terminal or not. Output that can no longer be written is dropped, which is said once;
//! the command runs on.

use super::mirror::Look;
use crate::{
    steps::{OutputParser, StepBoard, StepPatterns},
    wake::{Stream, Wake},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::ioctl_fionread,
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{OptionalActions, OutputModes, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize},
};
use std::{
    fs::{self, File},
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// A pipe holds 64 KiB: what it holds is taken at once.
const CHUNK: usize = 64 << 10;
/// After the last process of the tree its output is at its end; only a stranger that inherited it could hold
/// it open.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// What a command printed before it was stopped is shown before we stop too, unless our own reader is slower
/// than this.
const SETTLE_PATIENCE: Duration = Duration::from_millis(200);

/// What shows output on a screen.
pub type Screen = Arc<Mutex<dyn Write + Send>>;

/// Where the command's output goes.
pub enum Passage {
    /// To our own standard output and error.
    Through,
    /// To a screen that is drawn on the terminal, for what would have gone to the terminal.
    Shown(Screen),
    /// Nowhere: it is only read for steps.
    Swallowed,
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

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Pipe(pipe) => pipe.as_fd(),
            Self::Terminal(terminal) => terminal.as_fd(),
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

/// A pseudo-terminal with the size and settings of `ours`, except that it changes no byte: ours does that
/// already.
fn open_terminal(ours: &OwnedFd) -> io::Result<(Source, Sink)> {
    // So that it does not become our controlling terminal.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = openpt(flags)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let terminal = File::from(ioctl_tiocgptpeer(&controller, flags)?);
    let mut settings = tcgetattr(ours)?;
    settings.output_modes.remove(OutputModes::OPOST);
    tcsetattr(&terminal, OptionalActions::Now, &settings)?;
    if let Ok(size) = tcgetwinsize(ours) {
        tcsetwinsize(&terminal, size)?;
    }
    Ok((Source::Terminal(File::from(controller)), Sink::Terminal(terminal)))
}

/// What the output is read for.
pub(super) struct Along<'a> {
    pub board: &'a StepBoard,
    pub patterns: &'a StepPatterns,
    pub wakes: &'a Sender<Wake>,
}

/// The streams of one command, before it starts.
pub(super) struct Streams {
    channels: Vec<Channel>,
}

impl Streams {
    pub fn open() -> io::Result<Self> {
        let same = Stream::Output.place().is_some() && Stream::Output.place() == Stream::Errors.place();
        let streams: &[Stream] = if same { &[Stream::Output] } else { &[Stream::Output, Stream::Errors] };
        let channels = streams.iter().map(|stream| Channel::open(*stream)).collect::<io::Result<_>>()?;
        Ok(Self { channels })
    }

    /// Input, output and errors for the command. The keys of a terminal that shows a screen are the screen's.
    pub fn for_command(&self, passage: &Passage) -> io::Result<[Stdio; 3]> {
        let input = match passage {
            Passage::Shown(_) | Passage::Swallowed if isatty(io::stdin()) => Stdio::null(),
            _ => Stdio::inherit(),
        };
        let [output, errors] = [self.channels.first(), self.channels.last()];
        let stdio =
            |channel: Option<&Channel>| channel.map_or(Ok(Stdio::inherit()), |channel| channel.sink.stdio());
        Ok([input, stdio(output)?, stdio(errors)?])
    }

    /// Our end of the terminal that the command prints to, if it has one.
    pub fn terminal(&self) -> Option<OwnedFd> {
        let terminal = self.channels.iter().find(|channel| matches!(channel.source, Source::Terminal(_)));
        terminal.and_then(|channel| channel.source.as_fd().try_clone_to_owned().ok())
    }

    /// Starts passing through, after the command has its ends.
    pub fn flow(self, passage: &Passage, along: &Along<'_>, look: Option<Look>) -> Flow {
        let (done, ended) = channel();
        let mut sources = Vec::new();
        for Channel { source, sink, stream } in self.channels {
            let parser = OutputParser::new(along.board.clone(), along.patterns);
            let target: Box<dyn Target> = match (passage, &sink) {
                (Passage::Shown(screen), Sink::Terminal(_)) => Box::new(ToScreen(screen.clone())),
                (Passage::Swallowed, _) => Box::new(io::sink()),
                _ => match stream.of_ours() {
                    Ok(ours) => Box::new(File::from(ours)),
                    Err(_) => Box::new(io::sink()),
                },
            };
            sources.extend(source.as_fd().try_clone_to_owned().ok().map(|source| (source, stream)));
            // The command must be the only writer, or the end would never be seen.
            drop(sink);
            let done: Sender<()> = done.clone();
            let (wakes, look) = (along.wakes.clone(), look.clone());
            thread::spawn(move || {
                pass(source, target, parser, look, |error| {
                    let _ = wakes.send(Wake::OutputLost { stream, error: error.to_string() });
                });
                let _ = done.send(());
            });
        }
        Flow { ended, sources }
    }
}

/// Output under way.
pub(super) struct Flow {
    ended: Receiver<()>,
    /// Our ends of what the command writes to, pipes and terminals alike.
    sources: Vec<(OwnedFd, Stream)>,
}

impl Flow {
    /// Gives the command's terminals the size of ours; true if one changed.
    pub fn resize(&self) -> bool {
        let resized = self.sources.iter().filter(|(source, stream)| {
            let ours = stream.of_ours().ok().and_then(|ours| tcgetwinsize(ours).ok());
            let theirs = tcgetwinsize(source).ok();
            match (ours, theirs) {
                (Some(ours), Some(theirs)) if ours != theirs => tcsetwinsize(source, ours).is_ok(),
                _ => false,
            }
        });
        resized.count() > 0
    }

    /// Waits until everything that was written so far has been read.
    pub fn settle(&self) {
        let deadline = Instant::now() + SETTLE_PATIENCE;
        let waits = |source: &OwnedFd| ioctl_fionread(source).is_ok_and(|waiting| waiting > 0);
        while self.sources.iter().any(|(source, _)| waits(source)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until everything that was written has been passed on.
    pub fn drain(self) {
        let deadline = Instant::now() + DRAIN_PATIENCE;
        drop(self.sources);
        // Each thread sends once and then hangs up; an error is either the last hanging up or the patience.
        while self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

/// Where output is written to.
trait Target: Write + Send {
    /// What to wait on where a write would block.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Writes all of it, however slow the reader.
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Somebody who shares our output made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let Some(descriptor) = self.descriptor() else { return Err(error) };
                    poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
        self.flush()
    }
}

impl Target for File {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl Target for io::Sink {}

/// Passes bytes on until the command has closed its end. What cannot be written is dropped, and `lost` is
/// told of the first failure: a full disk or a reader that has gone must not end hours of work. Each piece is
/// tried anew, since a disk can have room again.
fn pass(
    mut source: impl Read,
    mut target: Box<dyn Target>,
    mut parser: OutputParser,
    look: Option<Look>,
    lost: impl FnOnce(io::Error),
) {
    let mut buffer = vec![0; CHUNK];
    let mut lost = Some(lost);
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                look.iter().for_each(Look::now);
                if let Err(error) = target.put(&buffer[..length])
                    && let Some(lost) = lost.take()
                {
                    lost(error);
                }
                parser.feed(&buffer[..length]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

struct ToScreen(Screen);

impl Target for ToScreen {}

impl Write for ToScreen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunFacts;

    #[test]
    fn output_that_cannot_be_written_is_said_once_and_still_read_for_steps() {
        let board = StepBoard::default();
        let parser = OutputParser::new(board.clone(), &StepPatterns::default());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut failures = Vec::new();
        let output = b"step 1\n".chain(&b"step 2\n"[..]).chain(&b"step 3\n"[..]);
        pass(output, Box::new(full), parser, None, |error| failures.push(error.to_string()));
        assert_eq!(board.now(&RunFacts::default()).step, Some(3), "all of it was read");
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].contains("No space left"), "{failures:?}");
    }

    #[test]
    fn a_reader_that_is_slow_on_a_non_blocking_pipe_gets_every_byte() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let sent = vec![b'x'; 1 << 20];
        let read = thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let parser = OutputParser::new(StepBoard::default(), &StepPatterns::default());
        pass(&sent[..], Box::new(File::from(OwnedFd::from(writer))), parser, None, |error| panic!("{error}"));
        assert_eq!(read.join().unwrap().unwrap().len(), sent.len());
    }
}
