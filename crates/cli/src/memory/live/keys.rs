//! The keys of a live screen, as wakes.
//!
//! Reads the terminal in a thread of its own, which ends when it is told to or when the terminal has gone.
//! The thread checks the terminal before the event library reads it: the library would read a closed one for
//! ever.

use super::{Place, scroll::Scroll};
use garden_memory::Wake;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fs::File,
    io::{self, IsTerminal},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often the reader looks whether the screen was closed.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How long closing waits for the reader. After that the reader is left alone: nobody needs it any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// A reader of keys under way.
pub struct Keys {
    closed: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// What a look at the terminal found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Nothing,
    Keys,
    Gone,
}

impl Keys {
    /// Sends what is typed to `wakes` from now on; keys that scroll move `scroll` first.
    pub fn read(place: Place, scroll: Arc<Mutex<Scroll>>, wakes: Sender<Wake>) -> io::Result<Self> {
        let terminal = terminal()?;
        let closed = Arc::new(AtomicBool::new(false));
        let reader = thread::spawn({
            let closed = Arc::clone(&closed);
            move || read(&terminal, place, &scroll, &closed, &wakes)
        });
        Ok(Self { closed, reader: Some(reader) })
    }

    /// Ends the reader; true the first time.
    pub fn close(&mut self) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        let Some(reader) = self.reader.take() else { return false };
        let deadline = Instant::now() + PATIENCE;
        while !reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// The terminal that the event library reads.
fn terminal() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        stdin.as_fd().try_clone_to_owned()
    } else {
        Ok(File::options().read(true).write(true).open("/dev/tty")?.into())
    }
}

fn read(terminal: &OwnedFd, place: Place, scroll: &Mutex<Scroll>, closed: &AtomicBool, wakes: &Sender<Wake>) {
    while !closed.load(Ordering::Relaxed) {
        match look(terminal) {
            Look::Nothing => {}
            // Nobody sees a watch any more. A command gets the hangup signal itself, and may carry on.
            Look::Gone if place == Place::Watch => drop(wakes.send(Wake::Quit)),
            Look::Gone => return,
            Look::Keys => {
                while event::poll(Duration::ZERO).unwrap_or(false) {
                    let Ok(event) = event::read() else { return };
                    if let Event::Key(KeyEvent { code, modifiers, .. }) = event
                        && !modifiers.contains(KeyModifiers::CONTROL)
                    {
                        scroll.lock().unwrap_or_else(PoisonError::into_inner).key(code);
                    }
                    if wake(&event).is_some_and(|wake| wakes.send(wake).is_err()) {
                        return;
                    }
                }
            }
        }
    }
}

fn look(terminal: &OwnedFd) -> Look {
    let mut ready = [PollFd::new(terminal, PollFlags::IN)];
    match poll(&mut ready, Some(&LOOK)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Look::Nothing,
        Ok(_) if !ready[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
            Look::Keys
        }
        _ => Look::Gone,
    }
}

fn wake(event: &Event) -> Option<Wake> {
    match event {
        Event::Key(KeyEvent { code, modifiers, .. }) => {
            let control = modifiers.contains(KeyModifiers::CONTROL);
            Some(match code {
                KeyCode::Char('c') if control => Wake::Quit,
                KeyCode::Char('z') if control => Wake::Pause,
                KeyCode::Char('q') | KeyCode::Esc => Wake::Quit,
                _ => Wake::Redraw,
            })
        }
        Event::Resize(..) => Some(Wake::Redraw),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

    #[test]
    fn a_terminal_that_is_closed_is_gone_and_not_read() {
        // Other tests start processes, which must not keep the terminal open.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let terminal = ioctl_tiocgptpeer(&controller, flags).unwrap();
        assert_eq!(look(&terminal), Look::Nothing);
        rustix::io::write(&controller, b"q\n").unwrap();
        assert_eq!(look(&terminal), Look::Keys);
        drop(controller);
        assert_eq!(look(&terminal), Look::Gone);
    }

    #[test]
    fn control_c_ends_control_z_pauses_and_other_keys_draw() {
        let key = |code, modifiers| wake(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wake::Quit));
        assert_eq!(key(KeyCode::Char('z'), KeyModifiers::CONTROL), Some(Wake::Pause));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(Wake::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Some(Wake::Redraw));
    }
}
