//! The line to `memory run`, where there is one: steps go out, notices of a limit come in.
//!
//! In comes the address in `MODEL_GARDEN_SOCKET`; out go datagrams with exact steps, and a notice becomes a reason to write a
//! checkpoint and stop. A supervisor that is gone or does not listen never disturbs the training.

use garden_memory::{RunFacts, steps::SOCKET_VARIABLE};
use serde::Deserialize;
use std::{os::unix::net::UnixDatagram, path::PathBuf, time::Duration};
use tempfile::TempDir;

/// How long the last step may wait for a supervisor that does not get to read: a queue holds ten messages, and a busy machine can
/// leave it full for some time. Steps before the last are told by the next one.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// A longer message is no notice.
const LONGEST_NOTICE: usize = 8192;

#[derive(Deserialize)]
struct Notice {
    event: String,
    action: String,
    #[serde(default)]
    reason: String,
}

/// The trainer's end of the line.
#[derive(Debug, Default)]
pub(crate) struct SupervisorLink {
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
    /// The line that the environment names, if any.
    pub fn from_environment() -> Self {
        let supervisor = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        Self { line: supervisor.and_then(|path| Line::open(path.into())) }
    }

    #[cfg(test)]
    pub fn to(supervisor: PathBuf) -> Self {
        Self { line: Line::open(supervisor) }
    }

    /// Says how large the dataset and a step are.
    pub fn tell_facts(&self, facts: &RunFacts) {
        self.send(serde_json::json!({
            "dataset_size": facts.dataset_size,
            "samples_per_step": facts.samples_per_step,
            "steps_per_epoch": facts.steps_per_epoch,
        }));
    }

    /// Says which step is done.
    pub fn tell_step(&self, step: u64, epoch: f64) {
        self.send(serde_json::json!({ "step": step, "epoch": epoch }));
    }

    /// Says which step was the last; no other will make up for this message.
    pub fn tell_last_step(&self, step: u64, epoch: f64) {
        if let Some(line) = &self.line {
            let _ = line.socket.set_write_timeout(Some(LAST_PATIENCE));
            let _ = line.socket.set_nonblocking(false);
            self.tell_step(step, epoch);
            let _ = line.socket.set_nonblocking(true);
        }
    }

    fn send(&self, message: serde_json::Value) {
        if let Some(line) = &self.line {
            let _ = line.socket.send_to(message.to_string().as_bytes(), &line.supervisor);
        }
    }

    /// Why the supervisor wants a checkpoint and the end, if it does.
    pub fn limit_notice(&self) -> Option<String> {
        let line = self.line.as_ref()?;
        let mut buffer = [0; LONGEST_NOTICE];
        let mut reason = None;
        while let Ok(length) = line.socket.recv(&mut buffer) {
            let notice = serde_json::from_slice::<Notice>(&buffer[..length]).ok();
            let wanted =
                notice.filter(|notice| notice.event == "memory-limit" && notice.action == "checkpoint");
            reason = wanted.map(|notice| notice.reason).or(reason);
        }
        reason
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
