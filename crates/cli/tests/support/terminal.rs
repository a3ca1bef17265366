//! A terminal for tests: what a person types and sees, and a session whose terminal it is.

use super::{from_terminal, until};
use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// A pseudo-terminal and the program that was started on it.
pub struct Terminal {
    controller: Option<File>,
    seen: Arc<Mutex<Vec<u8>>>,
    /// How much of what was seen was waited for already.
    read: usize,
    pub child: Child,
}

impl Terminal {
    /// Starts a command as the first process of a new session, with this terminal as its own.
    pub fn start(command: &Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let terminal = File::from(ioctl_tiocgptpeer(&controller, flags).unwrap());
        let controller = File::from(controller);
        resize(&controller, ROWS, COLUMNS);
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let mut started = Command::new("setsid");
        // Set last: a shell that starts another program on the way (a wrapper of python3) unsets the prompt.
        let mut set = Command::new("env");
        set.args(["TERM=xterm", "LESS=", "PS1=prompt> "]).arg(command.get_program()).args(command.get_args());
        let heeding = from_terminal(&set);
        started.arg("--ctty").arg(heeding.get_program()).args(heeding.get_args());
        let child = started.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let reader = controller.try_clone().unwrap();
        thread::spawn({
            let seen = Arc::downgrade(&seen);
            move || collect(reader, &seen)
        });
        Self { controller: Some(controller), seen, read: 0, child }
    }

    /// An interactive shell without anybody's settings.
    pub fn shell() -> Self {
        let mut terminal = Self::start(Command::new("bash").args(["--norc", "--noprofile", "-i"]));
        terminal.await_text("prompt> ");
        terminal
    }

    fn controller(&self) -> &File {
        self.controller.as_ref().expect("the terminal is open")
    }

    /// Types.
    pub fn keys(&mut self, text: &str) {
        self.controller().write_all(text.as_bytes()).unwrap();
    }

    /// Presses a key until this is seen. `less` by itself forgets a signal that comes just before it waits
    /// for a key, and keys that come while it sets up the terminal again; a person presses again.
    pub fn press_until(&mut self, key: &str, text: &str) {
        let mut pressed: Option<Instant> = None;
        let controller = self.controller().try_clone().unwrap();
        self.await_text_while(text, || {
            if pressed.is_none_or(|when| when.elapsed() > Duration::from_secs(2)) {
                (&controller).write_all(key.as_bytes()).unwrap();
                pressed = Some(Instant::now());
            }
        });
    }

    /// Waits until this is seen after what was waited for last.
    pub fn await_text(&mut self, text: &str) {
        self.await_text_while(text, || ());
    }

    fn await_text_while(&mut self, text: &str, mut do_meanwhile: impl FnMut()) {
        let mut end = None;
        let (seen, from) = (Arc::clone(&self.seen), self.read);
        until(&format!("'{}' on the terminal", text.escape_debug()), || {
            do_meanwhile();
            let seen = seen.lock().unwrap();
            end = seen[from..].windows(text.len()).position(|window| window == text.as_bytes());
            // What stands there instead is what a failure is about.
            if end.is_none() && std::env::var_os("SHOW_TERMINAL").is_some() {
                eprintln!("{}", String::from_utf8_lossy(&seen[from..]).escape_debug());
            }
            end.is_some()
        });
        self.read += end.expect("it was found") + text.len();
    }

    /// Everything that was seen so far.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Changes the size.
    pub fn resize(&self, rows: u16, columns: u16) {
        resize(self.controller(), rows, columns);
    }

    /// Its settings: echo, lines and the like.
    pub fn settings(&self) -> Termios {
        tcgetattr(self.controller()).unwrap()
    }

    /// Closes the terminal, as a window is closed.
    pub fn close(&mut self) {
        // The reading thread holds a copy; a hangup comes with the last one.
        self.controller = None;
        self.seen = Arc::default();
        self.read = 0;
    }

    /// How the program ended.
    pub fn await_end(&mut self) -> ExitStatus {
        let mut status = None;
        let child = &mut self.child;
        until("the program ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &File, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// Reads until the terminal is closed from either side.
fn collect(reader: File, seen: &std::sync::Weak<Mutex<Vec<u8>>>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let look = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut buffer = [0; 4096];
    // A thread that waits in a read would keep the terminal open for ever.
    while let Some(seen) = seen.upgrade() {
        let ready = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&look)).unwrap_or(0);
        if ready == 0 {
            continue;
        }
        match (&reader).read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => seen.lock().unwrap().extend_from_slice(&buffer[..length]),
        }
    }
}
