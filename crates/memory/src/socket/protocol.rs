//! The messages of the socket, in both directions: one JSON object a datagram.
//!
//! A trainer sends a [`TrainerMessage`]; the watcher reads it, and what other trainers write, with
//! [`progress`]. The watcher sends a [`SupervisorMessage`]. Keys that are not known are ignored, so that a
//! later version may add some.

use crate::steps::Progress;
use serde::{Deserialize, Deserializer, Serialize};

/// The version of the messages. It grows when a key changes its meaning or goes away, not when one is added.
const VERSION: u32 = 1;
/// No message is longer than this, in bytes.
pub(super) const LONGEST_MESSAGE: usize = 8192;

/// What a trainer tells.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum TrainerMessage {
    /// How large the dataset and a step are.
    Facts {
        /// Rows in the dataset.
        dataset_size: Option<u64>,
        /// Rows that one step uses.
        samples_per_step: Option<u64>,
        /// Steps in an epoch, where the two above do not say it.
        steps_per_epoch: Option<f64>,
    },
    /// A step is done.
    Step {
        /// Epochs done, with the fraction, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        epoch: Option<f64>,
        /// Steps done.
        step: u64,
    },
}

impl TrainerMessage {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("a message of numbers is written without fail")
    }
}

/// Reads what a trainer wrote, which may be facts and a step in one; `None` if it is not a message of a
/// version we know.
pub(super) fn progress(bytes: &[u8]) -> Option<Progress> {
    #[derive(Deserialize)]
    struct Received {
        /// Missing in the first version's messages.
        version: Option<u32>,
        step: Option<u64>,
        epoch: Option<f64>,
        dataset_size: Option<u64>,
        samples_per_step: Option<u64>,
        steps_per_epoch: Option<f64>,
    }
    let received: Received = serde_json::from_slice(bytes).ok()?;
    let Received { version, step, epoch, dataset_size, samples_per_step, steps_per_epoch } = received;
    version.is_none_or(|version| version <= VERSION).then_some(Progress {
        step,
        epoch,
        epoch_number: None,
        dataset_size,
        samples_per_step,
        steps_per_epoch,
    })
}

/// What a watcher tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum SupervisorMessage {
    /// The memory limit is near.
    MemoryLimit(LimitNotice),
}

/// How near the limit is, and what the trainer should do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LimitNotice {
    /// What to do.
    pub action: LimitAction,
    /// Memory of the process tree, in bytes.
    #[serde(default, deserialize_with = "whole_number")]
    pub owned: u64,
    /// The limit, in bytes.
    #[serde(default, deserialize_with = "whole_number")]
    pub limit: u64,
    /// Seconds until the tree is ended.
    #[serde(default, deserialize_with = "number")]
    pub grace_seconds: f64,
    /// Why, in words.
    #[serde(default)]
    pub reason: String,
}

/// A number, however a watcher wrote it: an order to save must not be lost for a number that nobody acts on.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(serde_json::Value::deserialize(deserializer)?.as_f64().unwrap_or(0.0))
}

fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer).map(|number| number as u64)
}

/// What a trainer should do about a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LimitAction {
    /// Write a checkpoint and end.
    Checkpoint,
    /// Nothing: this is a warning.
    Warn,
}

impl SupervisorMessage {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Versioned<'a> {
            version: u32,
            #[serde(flatten)]
            message: &'a SupervisorMessage,
        }
        serde_json::to_vec(&Versioned { version: VERSION, message: self })
            .expect("a message of numbers and text is written without fail")
    }

    /// Reads what a watcher wrote; `None` if it is not a message we know.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_heard_whatever_its_numbers_look_like() {
        for numbers in [r#""owned":9.5e9,"limit":null"#, r#""grace_seconds":"60""#, r#""limit":-1"#] {
            let text =
                format!(r#"{{"event":"memory-limit","action":"checkpoint","reason":"near",{numbers}}}"#);
            let SupervisorMessage::MemoryLimit(notice) =
                SupervisorMessage::read(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((notice.action, notice.reason.as_str()), (LimitAction::Checkpoint, "near"));
        }
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_trainers_messages_keep_their_bytes_and_are_read_back() {
        let facts = TrainerMessage::Facts {
            dataset_size: Some(663),
            samples_per_step: Some(8),
            steps_per_epoch: None,
        };
        let bytes = facts.to_bytes();
        assert_eq!(text(&bytes), r#"{"dataset_size":663,"samples_per_step":8,"steps_per_epoch":null}"#);
        let read = progress(&bytes).unwrap();
        assert_eq!((read.dataset_size, read.samples_per_step), (Some(663), Some(8)));

        let bytes = TrainerMessage::Step { epoch: Some(0.5), step: 7 }.to_bytes();
        assert_eq!(text(&bytes), r#"{"epoch":0.5,"step":7}"#);
        assert_eq!(
            progress(&bytes),
            Some(Progress { step: Some(7), epoch: Some(0.5), ..Progress::default() })
        );
    }

    #[test]
    fn facts_and_a_step_may_come_in_one_message_with_keys_that_nobody_knows() {
        let message = br#"{"version": 1, "step": 12, "epoch": 0.5, "dataset_size": 663, "note": "x"}"#;
        let read = progress(message).unwrap();
        assert_eq!((read.step, read.epoch, read.dataset_size), (Some(12), Some(0.5), Some(663)));
        for wrong in ["", "hello", "[1,2]", r#"{"step": -3}"#, r#"{"version": 2, "step": 9}"#] {
            assert_eq!(progress(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_limit_notice_keeps_its_bytes_and_is_read_back() {
        let notice = SupervisorMessage::MemoryLimit(LimitNotice {
            action: LimitAction::Checkpoint,
            owned: 28_600_000_000,
            limit: 30_000_000_000,
            grace_seconds: 60.0,
            reason: "using 28.6 GB of 30.0 GB".to_owned(),
        });
        let bytes = notice.to_bytes();
        assert_eq!(
            text(&bytes),
            r#"{"version":1,"event":"memory-limit","action":"checkpoint","owned":28600000000,"limit":30000000000,"#
                .to_owned()
                + r#""grace_seconds":60.0,"reason":"using 28.6 GB of 30.0 GB"}"#
        );
        assert_eq!(SupervisorMessage::read(&bytes), Some(notice));
        let short = br#"{"event":"memory-limit","action":"warn","grace_seconds":60}"#;
        let Some(SupervisorMessage::MemoryLimit(read)) = SupervisorMessage::read(short) else {
            panic!("{short:?}")
        };
        assert_eq!((read.action, read.grace_seconds, read.reason.as_str()), (LimitAction::Warn, 60.0, ""));
        for unknown in ["", r#"{"event":"other"}"#, r#"{"event":"memory-limit","action":"dance"}"#] {
            assert_eq!(SupervisorMessage::read(unknown.as_bytes()), None, "{unknown}");
        }
    }
}
