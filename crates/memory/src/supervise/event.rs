//! What happens to a supervised command, as sentences for people and as JSON for programs.

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
    },
    /// The command was told to stop.
    Stopping {
        /// Why.
        why: String,
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
    /// The tree could not be looked at; told once.
    LookFailed {
        /// Why.
        error: String,
    },
    /// What the command prints cannot be passed on; told once a stream.
    OutputLost {
        /// Which stream of ours.
        stream: String,
        /// Why.
        error: String,
    },
    /// The trace cannot be written on.
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
            Self::LimitNear { why } => write!(f, "the limit is near: {why}"),
            Self::Stopping { why, grace } => {
                write!(f, "telling the command to stop: {why}; it has {:.0} s", grace.as_secs_f64())
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
                write!(f, "not starting again: it was done {restarts} times already")
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
