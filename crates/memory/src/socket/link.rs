//! The trainer's end of the socket: tells facts and steps, and hears of limits.
//!
//! A [`SupervisorLink`] sends to the address in [`SOCKET_VARIABLE`] and gives the reason when the supervisor
//! asks for a checkpoint and the end. A supervisor that is gone or does not listen never disturbs the
//! training.

use super::{
    LimitAction, LimitNotice, SOCKET_VARIABLE, SupervisorMessage,
    protocol::{LONGEST_MESSAGE, TrainerMessage},
};
use crate::RunFacts;
use std::{os::unix::net::UnixDatagram, path::PathBuf, time::Duration};
use tempfile::TempDir;

/// How long the last step may wait for a supervisor that does not get to read: a queue holds ten messages,
/// and a busy machine can leave it full for some time. A step before the last need not wait: the next one
/// says as much.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// The trainer's end of the socket; without a supervisor every call does nothing.
#[derive(Debug, Default)]
pub struct SupervisorLink {
    line: Option<Line>,
}

#[derive(Debug)]
struct Line {
    socket: UnixDatagram,
    supervisor: PathBuf,
    /// Holds our own address; removed with it.
    _folder: TempDir,
}

impl SupervisorLink {
    /// The link to the socket that the environment names, if it names one.
    pub fn from_environment() -> Self {
        let supervisor = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        Self { line: supervisor.and_then(|path| Line::open(path.into())) }
    }

    #[cfg(test)]
    fn to(supervisor: PathBuf) -> Self {
        Self { line: Line::open(supervisor) }
    }

    /// Tells how large the dataset and a step are.
    pub fn tell_facts(&self, facts: &RunFacts) {
        self.send(TrainerMessage::Facts {
            dataset_size: facts.dataset_size,
            samples_per_step: facts.samples_per_step,
            steps_per_epoch: facts.steps_per_epoch,
        });
    }

    /// Tells which step is done, and how many epochs, where that is known.
    pub fn tell_step(&self, step: u64, epoch: impl Into<Option<f64>>) {
        self.send(TrainerMessage::Step { epoch: epoch.into(), step });
    }

    /// Tells the last step, and waits a moment for a busy supervisor: no later message repeats it.
    pub fn tell_last_step(&self, step: u64, epoch: impl Into<Option<f64>>) {
        if let Some(line) = &self.line {
            let _ = line.socket.set_write_timeout(Some(LAST_PATIENCE));
            let _ = line.socket.set_nonblocking(false);
            self.tell_step(step, epoch);
            let _ = line.socket.set_nonblocking(true);
        }
    }

    fn send(&self, message: TrainerMessage) {
        if let Some(line) = &self.line {
            let _ = line.socket.send_to(&message.to_bytes(), &line.supervisor);
        }
    }

    /// Why the supervisor wants a checkpoint and the end, if it does.
    pub fn limit_notice(&self) -> Option<String> {
        let line = self.line.as_ref()?;
        let mut buffer = [0; LONGEST_MESSAGE];
        let mut wanted = None;
        while let Ok(length) = line.socket.recv(&mut buffer) {
            if let Some(SupervisorMessage::MemoryLimit(LimitNotice {
                action: LimitAction::Checkpoint,
                reason,
                ..
            })) = SupervisorMessage::read(&buffer[..length])
            {
                wanted = Some(reason);
            }
        }
        wanted
    }
}

impl Line {
    fn open(supervisor: PathBuf) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("garden-").tempdir().ok()?;
        let socket = UnixDatagram::bind(folder.path().join("steps")).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, supervisor, _folder: folder })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_out_and_a_notice_comes_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("supervisor");
        let supervisor = UnixDatagram::bind(&path).unwrap();
        let link = SupervisorLink::to(path);
        link.tell_step(7, 0.5);
        let mut buffer = [0; 1024];
        let (length, sender) = supervisor.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], br#"{"epoch":0.5,"step":7}"#);
        assert_eq!(link.limit_notice(), None);

        let tell = |text: &str| supervisor.send_to_addr(text.as_bytes(), &sender).unwrap();
        tell(r#"{"event":"memory-limit","action":"warn","reason":"soon"}"#);
        tell("not a notice");
        assert_eq!(link.limit_notice(), None, "a warning is no order");
        tell(
            r#"{"event":"memory-limit","action":"checkpoint","reason":"9.5 GB of 10 GB","grace_seconds":60}"#,
        );
        assert_eq!(link.limit_notice().as_deref(), Some("9.5 GB of 10 GB"));
    }

    #[test]
    fn the_last_step_waits_for_a_supervisor_that_is_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("supervisor");
        let supervisor = UnixDatagram::bind(&path).unwrap();
        let link = SupervisorLink::to(path);
        // More than a queue holds: what does not fit is dropped, for a training does not wait.
        (0..1000).for_each(|step| link.tell_step(step, 0.0));
        supervisor.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let (sending, sent) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            sent.recv().unwrap();
            let mut buffer = [0; 1024];
            let read = || supervisor.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec());
            std::iter::from_fn(read).last().unwrap()
        });
        sending.send(()).unwrap();
        link.tell_last_step(1000, 3.0);
        assert_eq!(reader.join().unwrap(), br#"{"epoch":3.0,"step":1000}"#);
    }

    #[test]
    fn nobody_there_is_no_trouble() {
        let link = SupervisorLink::to("/nonexistent/socket".into());
        link.tell_step(1, 0.0);
        assert_eq!(link.limit_notice(), None);
        assert_eq!(SupervisorLink::default().limit_notice(), None);
    }
}
