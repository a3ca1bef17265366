//! What happens during a watch or a supervised run, as sentences for people and as JSON for programs.

use crate::{ByteSize, sample::Moment, units::counted};
use serde::Serialize;
use std::{fmt, time::Duration};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The command runs.
    Started {
        /// Its PID.
        pid: i32,
        /// Whether it has a control group of its own.
        in_group: bool,
    },
    /// The limit is near, and nothing is done about it.
    LimitNear {
        /// How near.
        why: String,
        /// Who holds what.
        held: Moment,
    },
    /// The command was told to stop.
    Stopping {
        /// Why.
        why: String,
        /// Who holds what.
        held: Moment,
        /// How long it may take.
        #[serde(rename = "grace_seconds", serialize_with = "seconds")]
        grace: Duration,
    },
    /// What was left of the tree was ended.
    EndedTree {
        /// Why.
        why: String,
        /// Processes that would not end.
        stuck: Vec<i32>,
    },
    /// The kernel killed processes of the command at the limit of its control group.
    KilledAtLimit {
        /// How many.
        kills: u64,
    },
    /// The command is about to be started again.
    Restarting {
        /// Which restart this is.
        restart: u32,
        /// How many there may be.
        of: u32,
        /// After this pause.
        #[serde(rename = "pause_seconds", serialize_with = "seconds")]
        pause: Duration,
    },
    /// The command was started again as often as allowed.
    GaveUp {
        /// How often that was.
        restarts: u32,
    },
    /// The tree could not be read; said once.
    LookFailed {
        /// Why.
        error: String,
    },
    /// The command's output cannot be passed on; said once per stream.
    OutputLost {
        /// Which stream of this process.
        stream: String,
        /// Why.
        error: String,
    },
    /// The trace can no longer be written.
    TraceLost {
        /// Why.
        error: String,
    },
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl Event {
    /// Whether a person should hear of it at once; the others are for the record.
    pub fn matters(&self) -> bool {
        !matches!(self, Self::Started { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { pid, in_group: true } => {
                write!(f, "started process {pid} in a control group of its own")
            }
            Self::Started { pid, in_group: false } => write!(f, "started process {pid}"),
            Self::LimitNear { why, held } => write!(f, "the limit is near: {why}{}", holders(held)),
            Self::Stopping { why, held, grace } => {
                let seconds = grace.as_secs_f64();
                write!(f, "telling the command to stop: {why}{}; it has {seconds:.0} s", holders(held))
            }
            Self::KilledAtLimit { kills } => {
                let them = counted(*kills, "process");
                write!(f, "the kernel killed {them} of the command at the limit of its control group")
            }
            Self::EndedTree { why, stuck } if stuck.is_empty() => {
                write!(f, "ended what was left of the command: {why}")
            }
            Self::EndedTree { why, stuck } => {
                write!(f, "ended the command ({why}), but these processes do not end: {stuck:?}")
            }
            Self::Restarting { restart, of, pause } => {
                write!(
                    f,
                    "starting again in {:.0} s (restart {restart} of at most {of})",
                    pause.as_secs_f64()
                )
            }
            Self::GaveUp { restarts } => {
                let times = if *restarts == 1 { "once".to_owned() } else { format!("{restarts} times") };
                write!(f, "not starting again: it was started again {times} already")
            }
            Self::LookFailed { error } => {
                write!(f, "the memory cannot be read for now, the watch goes on: {error}")
            }
            Self::OutputLost { stream, error } => {
                write!(f, "{stream} cannot be written ({error}); the command runs on, its output is dropped")
            }
            Self::TraceLost { error } => write!(f, "the trace ends here, the watch goes on: {error}"),
        }
    }
}

/// ` (120 MB in python3 train.py, process 12; 67 MB in others)`, or nothing where one process holds it all.
fn holders(held: &Moment) -> String {
    let Some((largest, others)) = held.held.split_first().filter(|(_, others)| !others.is_empty()) else {
        return String::new();
    };
    let rest = others.iter().map(|holder| holder.owned).sum::<u64>() + held.others();
    let command: String = largest.command.chars().take(40).collect();
    format!(
        " ({} in {}, process {}; {} in others)",
        ByteSize(largest.owned),
        command.trim_end(),
        largest.pid,
        ByteSize(rest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Holder;

    #[test]
    fn a_stop_names_who_held_the_most() {
        let holder = |pid, owned| Holder { pid, command: format!("python3 part{pid}.py"), owned };
        let mut held = Moment { t: 3.0, owned: 187_000_000, held: vec![holder(12, 120_000_000)] };
        let stopping = |held: &Moment| {
            let why = "using 187 MB of 200 MB".to_owned();
            Event::Stopping { why, held: held.clone(), grace: Duration::from_secs(60) }.to_string()
        };
        assert_eq!(stopping(&held), "telling the command to stop: using 187 MB of 200 MB; it has 60 s");
        held.held.push(holder(13, 60_000_000));
        assert_eq!(
            stopping(&held),
            "telling the command to stop: using 187 MB of 200 MB (120 MB in python3 part12.py, process 12; 67 MB in others); \
             it has 60 s"
        );
    }
}
