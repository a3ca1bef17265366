//! Words to the service manager, as systemd's `Type=notify` and `WatchdogSec=` expect them.
//!
//! Reads `NOTIFY_SOCKET` and `WATCHDOG_USEC` once. Without them, or if the manager does not listen, nothing happens.

use std::{
    env,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// The way to the service manager.
#[derive(Debug)]
pub(crate) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that the server lives.
    pub watchdog: Option<Duration>,
}

impl Manager {
    pub(crate) fn from_environment() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(hidden) => SocketAddr::from_abstract_name(hidden),
                None => SocketAddr::from_pathname(&name),
            };
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        });
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| ours && *micros > 0);
        // Twice within the time, so that one late word does no harm.
        Self { socket, watchdog: watchdog.map(|micros| Duration::from_micros(micros / 2)) }
    }

    /// Whether a service manager started this process.
    pub(crate) fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    pub(crate) fn tell(&self, words: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(words.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_and_its_absence_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_pathname(&path).unwrap();
        let manager = Manager { socket: Some((UnixDatagram::unbound().unwrap(), address)), watchdog: None };
        manager.tell("READY=1");
        let mut heard = [0; 16];
        let length = listener.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1");
        drop(listener);
        manager.tell("STOPPING=1");
        Manager { socket: None, watchdog: None }.tell("READY=1");
    }
}
