//! What a run reports: one tagged, versioned enum.
//!
//! A run tells an [`Observer`] everything that happens as an [`Event`]. The terminal draws events,
//! `events.jsonl` and the JSON log hold them as [`Record`]s, and other programs read them back. Sizes are in
//! bytes, times in seconds; docs/events.md describes every field, and a test holds what runs emit against
//! that page.

use crate::{checkpoint::Checkpoint, config::Method, run::Longest};
use garden_memory::{ByteSize, Verdict};
use serde::{Deserialize, Serialize, Serializer};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Version of [`Record`]. It grows when a field changes its meaning or is removed, not when one is added.
pub const EVENT_VERSION: u32 = 2;

/// The journal's file name in the output folder.
pub const EVENTS: &str = "events.jsonl";

/// Receives what happens in a run, in order, on the thread that trains.
pub trait Observer: Send {
    /// Something happened. The run waits until this returns.
    fn on_event(&mut self, event: &Event);
}

impl<F: FnMut(&Event) + Send> Observer for F {
    fn on_event(&mut self, event: &Event) {
        self(event);
    }
}

/// An event as a file or a stream holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`EVENT_VERSION`] of whoever wrote it.
    pub version: u32,
    /// Seconds since 1970, UTC.
    pub time: f64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Record {
    /// A record of this moment.
    pub fn now(event: Event) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self { version: EVENT_VERSION, time, event }
    }

    /// The record as one line of JSON, without the line's end.
    pub fn to_json(&self) -> String {
        // Every field is a number, a text or a list of these: nothing that JSON cannot hold.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A path as text. JSON has no other bytes, and an event must not be lost for the name of a folder.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

fn lossy_if_any<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(serializer)
}

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Work before the first step made progress: reading, fetching or loading.
    Progress(Progress),
    /// The run goes on from a checkpoint.
    Resumed(CheckpointPlace),
    /// All rows were looked at.
    RowsSurveyed(Box<RowsSurveyed>),
    /// The model is in memory.
    ModelLoaded(ModelLoaded),
    /// What the run needs at its peak.
    Plan(Plan),
    /// The first step begins.
    Started(Started),
    /// An optimizer step is done.
    Step(Step),
    /// The numbers that go into the history: means since the previous log.
    Log(Log),
    /// An evaluation is done.
    Evaluation(Evaluation),
    /// A checkpoint is on disk.
    Checkpoint(CheckpointPlace),
    /// The run's memory was sampled and judged.
    Memory(MemoryReading),
    /// Something worth knowing that does not end the run.
    Note(Note),
    /// The run is over: always the last event.
    End(Box<End>),
    /// An event of a newer version; never told by this one.
    #[serde(other)]
    Unknown,
}

/// How far a piece of work is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done, for people.
    pub what: String,
    /// What is counted.
    pub unit: ProgressUnit,
    /// How much is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// Whether the work is over. Work that failed may end before its total.
    pub ended: bool,
}

/// What the progress of work is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Rows of a dataset.
    Rows,
    /// Thousandths of the work.
    Thousandths,
}

/// What all rows of a run are like.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsSurveyed {
    /// Rows that were looked at.
    pub rows: u64,
    /// Rows that can be used.
    pub usable: u64,
    /// Rows with more tokens than `max_tokens`.
    pub too_long: u64,
    /// Rows without a token to learn.
    pub no_label: u64,
    /// Rows that cannot be read.
    pub bad: u64,
    /// Rows to train on.
    pub training_rows: u64,
    /// Rows to evaluate on, where there are any.
    pub evaluation_rows: Option<u64>,
    /// Mean tokens of a usable row.
    pub mean_tokens: f64,
    /// Tokens of the longest usable row.
    pub longest_tokens: usize,
    /// The most tokens that a row may have.
    pub max_tokens: usize,
    /// The longest row of all.
    pub longest: Longest,
    /// Image sizes, the most frequent first; a bounded number of them.
    pub image_sizes: Vec<ImageSize>,
    /// How many sizes there are.
    pub image_size_count: u64,
    /// Fields that no dataset shape reads.
    pub ignored_fields: Vec<String>,
    /// What lies beside the rows and is not read, in sentences.
    pub not_read: Vec<String>,
    /// Keys that selective loss masks.
    pub selective_loss_keys: Vec<String>,
    /// Epochs before selective loss begins.
    pub selective_loss_from_epoch: u64,
    /// One row as the model reads it.
    pub example: Option<ExampleRow>,
}

/// Images of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSize {
    /// Images that have it.
    pub images: u64,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Width after resizing.
    pub resized_width: u32,
    /// Height after resizing.
    pub resized_height: u32,
    /// Tokens that an image takes.
    pub tokens: u64,
}

/// A row as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleRow {
    /// Its text, shortened, with marks around what is learned.
    pub text: String,
    /// Stands before what is learned.
    pub learned_from: String,
    /// Stands after what is learned.
    pub learned_to: String,
}

/// A model in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelLoaded {
    /// Folder or hub id of the model.
    pub base_model: String,
    /// What is trained.
    pub method: Method,
    /// All parameters.
    pub parameters: u64,
    /// Those that are trained.
    pub trained_parameters: u64,
    /// Seconds that loading took.
    pub seconds: f64,
}

/// What a run needs at its peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Bytes at the peak.
    pub total_bytes: u64,
    /// Bytes of each part.
    pub parts: Vec<PlanPart>,
    /// Blocks of the model.
    pub blocks: u64,
    /// Blocks whose activations are recomputed.
    pub recomputed_blocks: u64,
}

/// One part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPart {
    /// What it is.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// The beginning of the steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Steps done before: zero, or those of the checkpoint.
    pub step: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Rows of a batch.
    pub batch_size: u64,
    /// Batches of a step.
    pub accumulation: u64,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number, from 1.
    pub step: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Epochs done, with the part of the current one.
    pub epoch: f64,
    /// Mean loss of its label tokens.
    pub loss: f64,
    /// Norm of its gradient before clipping.
    pub grad_norm: f64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Rows it was made of.
    pub rows: u64,
    /// Tokens of these rows.
    pub tokens: u64,
    /// Tokens with a label.
    pub label_tokens: u64,
    /// Images of these rows.
    pub images: u64,
    /// Seconds it took, waiting for data included.
    pub seconds: f64,
    /// Seconds of these spent waiting for data.
    pub data_seconds: f64,
}

/// Numbers of the history, as `metrics.jsonl` and `trainer_state.json` hold them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Epochs done, with the part of the current one.
    pub epoch: f64,
    /// The numbers by name.
    pub values: BTreeMap<String, f64>,
}

/// An evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps done before it.
    pub step: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Epochs done, with the part of the current one.
    pub epoch: f64,
    /// Mean loss of its label tokens.
    pub loss: f64,
    /// Share of label tokens that the model predicted.
    pub token_accuracy: f64,
    /// Seconds it took.
    pub seconds: f64,
    /// Rows evaluated a second.
    pub rows_per_second: f64,
    /// Whether it is the best so far.
    pub improved: bool,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointPlace {
    /// Steps that are in it.
    pub step: u64,
    /// Its folder.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
}

/// A sample of the run's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryReading {
    /// Steps done.
    pub step: u64,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// Bytes in use in the model's buffers at the fullest moment of the last step.
    pub tensor_bytes: u64,
    /// Bytes laid out for the model's buffers.
    pub tensor_peak_bytes: u64,
    /// Buffers in use at that moment.
    pub tensor_buffers: u64,
    /// The verdict so far.
    pub verdict: Verdict,
}

/// Something to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What it is about.
    pub topic: Topic,
    /// What there is to know, in a sentence.
    pub text: String,
}

/// What a note is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Topic {
    /// A checkpoint that was skipped, could not be removed, or is missing where it is needed.
    Checkpoint,
    /// Settings that changed since the checkpoint.
    Settings,
    /// Rows that are both trained and evaluated on.
    SharedRows,
    /// A row that was left out.
    SkippedRow,
    /// An evaluation that cannot be compared with the ones before.
    Evaluation,
    /// A memory limit that is near while the run goes on.
    MemoryLimit,
    /// The memory trace, or what clean-ups cost.
    Memory,
    /// A service that numbers are sent to.
    Logging,
    /// What the engine says about itself.
    Engine,
    /// What the demo does.
    Demo,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Why it ended.
    pub reason: EndReason,
    /// The reason in words, where there is more to say: the limit that was near, or the error.
    pub message: Option<String>,
    /// Steps done.
    pub step: u64,
    /// The last checkpoint, where there is one.
    #[serde(serialize_with = "lossy_if_any")]
    pub checkpoint: Option<PathBuf>,
    /// The step with the best evaluation, where there was one.
    pub best_step: Option<u64>,
    /// The verdict on its memory, if it began to train.
    pub memory: Option<MemoryVerdict>,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndReason {
    /// All steps were taken.
    Finished,
    /// Evaluations did not improve any more.
    EarlyStopping,
    /// All steps had been taken before: nothing was done.
    AlreadyFinished,
    /// Early stopping had ended it before: nothing was done.
    AlreadyStopped,
    /// A memory limit was near; a checkpoint was written.
    MemoryLimit,
    /// It was cancelled; a checkpoint was written if it had begun to train.
    Cancelled,
    /// It failed.
    Failed,
}

impl From<&Checkpoint> for CheckpointPlace {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self { step: checkpoint.step, path: checkpoint.path.clone() }
    }
}

/// The verdict on a run's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryVerdict {
    /// The verdict.
    pub verdict: Verdict,
    /// Bytes resident at the last sample.
    pub resident_bytes: u64,
    /// The most bytes resident, in all processes of the run.
    pub peak_bytes: u64,
    /// Bytes planned for the peak, where the engine plans.
    pub plan_bytes: Option<u64>,
    /// The step since which memory is level, where it is.
    pub level_since_step: Option<u64>,
    /// Bytes that each step adds, where it grows.
    pub growth_bytes_per_step: Option<f64>,
    /// The step at which an undecided verdict can be decided, where that is known.
    pub decidable_at_step: Option<u64>,
}

/// The verdict in one line, with the plan beside it.
impl fmt::Display for MemoryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, since) = (ByteSize(self.resident_bytes), self.level_since_step.unwrap_or(0));
        match self.verdict {
            Verdict::Steady => write!(f, "memory: steady at {now} since step {since}")?,
            Verdict::WarmUp => write!(f, "memory: steady at {now} since step {since}, after a warm-up")?,
            Verdict::Fill => write!(f, "memory: fill, {now} since every row was seen once")?,
            Verdict::Leak => {
                let rate = ByteSize(self.growth_bytes_per_step.unwrap_or(0.0).max(0.0) as u64);
                write!(f, "memory: leak, {now} and {rate} more each step")?;
            }
            Verdict::Undecided => {
                write!(f, "memory: {now}; too short a run for a verdict, undecided")?;
                self.decidable_at_step.map_or(Ok(()), |step| write!(f, " until step {step}"))?;
            }
        }
        self.plan_bytes.map_or(Ok(()), |plan| write!(f, " (plan {})", ByteSize(plan)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    #[test]
    fn a_folder_whose_name_is_not_utf_8_loses_no_event() {
        let path = PathBuf::from(OsStr::from_bytes(b"out\xff/checkpoint-3"));
        let line = Record::now(Event::Checkpoint(CheckpointPlace { step: 3, path })).to_json();
        assert!(line.contains("\"event\":\"checkpoint\"") && line.contains("/checkpoint-3"), "{line}");
    }

    #[test]
    fn an_event_of_a_newer_version_can_be_passed_over() {
        let line = r#"{"version":2,"time":1.5,"event":"coffee","cups":3}"#;
        assert_eq!(serde_json::from_str::<Record>(line).unwrap().event, Event::Unknown);
    }
}
