//! Passes keys and terminal modes on to programs that read them from the terminal they print to.
//!
//! The command prints to a pseudo-terminal and reads from our own terminal. Most programs set up and read
//! their standard input, but `less` opens the terminal behind its standard error by name and reads keys
//! there, and curses sets the modes of the one behind its standard output. So modes that are set on the
//! pseudo-terminal are set on ours too, and keys are handed on while somebody has it open for reading. At the
//! end our terminal gets its own modes back.

use super::end::descendants;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::getpgrp,
    pty::ptsname,
    termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// How often the modes are checked: immediate for a person, cheap for a processor.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The modes by which a program takes keys.
type Modes = (LocalModes, InputModes);

fn modes(settings: &Termios) -> Modes {
    (settings.local_modes, settings.input_modes)
}

/// The mirror of a command's terminal, until it is dropped.
pub(super) struct Mirror {
    shared: Arc<Mutex<Mirrored>>,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Checks the modes before output is shown, so that nobody can answer a prompt before the terminal is set for
/// it.
#[derive(Clone)]
pub(super) struct Look(Arc<Mutex<Mirrored>>);

impl Look {
    /// Sets our terminal as the command has set its own.
    pub fn now(&self) {
        lock(&self.0).keep();
    }
}

fn lock(shared: &Mutex<Mirrored>) -> MutexGuard<'_, Mirrored> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mirror {
    /// Keeps the modes of `theirs`, our end of the command's terminal, on the one that controls us; `keeper`
    /// is the process that the command runs below.
    pub fn start(theirs: OwnedFd, keeper: i32) -> Option<Self> {
        let keys = Keys::open(&theirs, keeper)?;
        let shared = Arc::new(Mutex::new(Mirrored::open(theirs)?));
        let closed = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (shared, closed) = (Arc::clone(&shared), Arc::clone(&closed));
            move || follow(&shared, &keys, &closed)
        });
        Some(Self { shared, closed, thread: Some(thread) })
    }

    /// For those who show what the command prints.
    pub fn look(&self) -> Look {
        Look(Arc::clone(&self.shared))
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // What is still shown of an ended command must not set the terminal again.
        let mut mirrored = lock(&self.shared);
        mirrored.ended = true;
        mirrored.give_back();
    }
}

fn follow(shared: &Mutex<Mirrored>, keys: &Keys, closed: &AtomicBool) {
    while !closed.load(Ordering::Relaxed) {
        // The guard of the lock must not live through the wait.
        let takes_keys = lock(shared).keep();
        if takes_keys && keys.are_read() {
            keys.hand_on();
        } else {
            thread::sleep(LOOK);
        }
    }
}

/// Both terminals.
struct Mirrored {
    theirs: OwnedFd,
    ours: File,
    /// What ours is set to when nobody asks for anything else.
    settings: Termios,
    /// The modes of theirs that ask for nothing.
    usual: Modes,
    /// Ours has been set to theirs.
    applied: bool,
    /// The command has ended.
    ended: bool,
}

impl Mirrored {
    fn open(theirs: OwnedFd) -> Option<Self> {
        let ours = our_terminal()?;
        let (settings, usual) = (tcgetattr(&ours).ok()?, modes(&tcgetattr(&theirs).ok()?));
        Some(Self { theirs, ours, settings, usual, applied: false, ended: false })
    }

    /// Sets our terminal as the command has set its own, or back; true if the command reads keys there. Reads
    /// our modes each time: a shell that had the terminal while we were stopped has changed them.
    fn keep(&mut self) -> bool {
        // From the background, setting or reading the terminal would stop us.
        if self.ended || !is_in_foreground(&self.ours) {
            return false;
        }
        let (Ok(asked), Ok(mut ours)) = (tcgetattr(&self.theirs), tcgetattr(&self.ours)) else {
            return false;
        };
        let takes_keys = modes(&asked) != self.usual;
        if takes_keys && modes(&ours) != modes(&asked) {
            (ours.local_modes, ours.input_modes) = modes(&asked);
            ours.special_codes = asked.special_codes;
            self.applied = tcsetattr(&self.ours, OptionalActions::Now, &ours).is_ok() || self.applied;
        } else if !takes_keys {
            self.give_back();
        }
        takes_keys
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.applied) && is_in_foreground(&self.ours) {
            let _ = tcsetattr(&self.ours, OptionalActions::Now, &self.settings);
        }
    }
}

/// The keys of our terminal, for the one who reads them on the command's.
struct Keys {
    theirs: OwnedFd,
    ours: File,
    /// The name under which a program would open theirs.
    name: PathBuf,
    keeper: i32,
}

impl Keys {
    fn open(theirs: &OwnedFd, keeper: i32) -> Option<Self> {
        let name = ptsname(theirs, Vec::new()).ok()?;
        let name = Path::new(OsStr::from_bytes(name.as_bytes())).to_owned();
        Some(Self { theirs: theirs.try_clone().ok()?, ours: our_terminal()?, name, keeper })
    }

    /// Whether a process of the command has opened its terminal to read. What it was given can also be
    /// written to.
    fn are_read(&self) -> bool {
        descendants(self.keeper).iter().any(|process| opened_to_read(process.pid, &self.name))
    }

    fn hand_on(&self) {
        let mut ready = [PollFd::new(&self.ours, PollFlags::IN)];
        let typed = poll(&mut ready, Some(&LOOK_TIME)).is_ok_and(|count| count > 0);
        if !typed || !is_in_foreground(&self.ours) {
            return;
        }
        let mut buffer = [0; 256];
        let length = rustix::io::read(&self.ours, &mut buffer).unwrap_or(0);
        if length == 0 {
            // A terminal that has gone is ready for ever.
            thread::sleep(LOOK);
        }
        // A program that has stopped reading must not block us; its terminal holds a page of keys.
        let mut room = [PollFd::new(&self.theirs, PollFlags::OUT)];
        if poll(&mut room, Some(&LOOK_TIME)).is_ok_and(|count| count > 0) {
            let _ = rustix::io::write(&self.theirs, &buffer[..length]);
        }
    }
}

fn our_terminal() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

fn is_in_foreground(terminal: &File) -> bool {
    tcgetpgrp(terminal).is_ok_and(|foreground| foreground == getpgrp())
}

/// Whether a process has opened the terminal called `name` for reading alone.
fn opened_to_read(pid: i32, name: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let is_read_only = |descriptor: &OsStr| {
        let info = fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(descriptor));
        let info = info.unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        // In octal; the last two bits say read, write or both.
        flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 == 0)
    };
    files
        .flatten()
        .filter(|file| fs::read_link(file.path()).is_ok_and(|target| target == name))
        .any(|file| is_read_only(&file.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};

    #[test]
    fn a_terminal_that_was_opened_to_read_is_told_from_one_that_was_given() {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let name = Path::new(OsStr::from_bytes(name.as_bytes()));
        let own = std::process::id().cast_signed();
        // Not to become the terminal that controls the tests.
        let open = |flags| rustix::pty::ioctl_tiocgptpeer(&controller, flags | OpenptFlags::NOCTTY).unwrap();
        let given = open(OpenptFlags::RDWR);
        assert!(!opened_to_read(own, name));
        let read = open(OpenptFlags::empty());
        assert!(opened_to_read(own, name));
        drop((given, read));
    }
}
