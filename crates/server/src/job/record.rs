//! What was asked of a job, and what became of it.
//!
//! A [`JobRecord`] is written once, when the job is created. A [`JobState`] is written at every change, by the
//! server alone. Together with the keeper's [`AttemptRecord`]s they are the truth about a job; everything else
//! can be made from them again.

use garden_memory::{Assessment, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A number, or `"auto"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum OrAuto<T> {
    /// What was asked for.
    Number(T),
    /// The server's choice.
    Auto(Auto),
}

impl<T> OrAuto<T> {
    pub(crate) const AUTO: Self = Self::Auto(Auto::Auto);
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Auto {
    Auto,
}

/// OpenAI's three settings of a job, as they were asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Hyperparameters {
    pub batch_size: OrAuto<u64>,
    pub learning_rate_multiplier: OrAuto<f64>,
    pub n_epochs: OrAuto<u64>,
}

/// A checkpoint of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct CheckpointOf {
    /// The job.
    pub job: String,
    /// The steps in it.
    pub step: u64,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub id: String,
    /// Jobs are counted as they come: a clock may jump.
    pub number: u64,
    /// Seconds since 1970.
    pub created_at: u64,
    /// The model by its name on this server.
    pub model: String,
    /// The name of the base model behind it.
    pub base: String,
    pub suffix: Option<String>,
    pub training_file: String,
    pub validation_file: Option<String>,
    pub hyperparameters: Hyperparameters,
    pub seed: u64,
    pub metadata: BTreeMap<String, String>,
    /// The settings of the trainer that were asked for, in snake case.
    pub settings: Map<String, Value>,
    /// How often the job may be started again after it was killed or stopped at its memory limit.
    pub max_restarts: u32,
    pub rerun_of: Option<String>,
    pub resumed_from: Option<CheckpointOf>,
    /// The request that made it, if that had a key: the same key makes no second job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<KeyedRequest>,
}

/// A request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyedRequest {
    pub key: String,
    /// What it asked for.
    pub hash: String,
}

impl JobRecord {
    /// The name of the tuned model.
    pub(crate) fn tuned_model(&self) -> String {
        let end = &self.id[self.id.len().saturating_sub(8)..];
        format!("ft:{}:{}:{end}", self.base, self.suffix.as_deref().unwrap_or("job"))
    }

    /// Whether a model of this name is the job's result or one of its checkpoints.
    pub(crate) fn made(&self, model: &str) -> bool {
        let rest = model.strip_prefix(&self.tuned_model());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(":ckpt-step-"))
    }
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Its rows are read and its memory is planned.
    Validating,
    /// It waits for its turn.
    Queued,
    /// A process works on it.
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl Phase {
    /// Whether nothing more will happen to the job.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// OpenAI's name for it.
    pub(crate) fn status(self) -> &'static str {
        match self {
            Self::Validating => "validating_files",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a running job was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    /// End at once.
    Cancel,
    /// Write a checkpoint, which is the result, and end.
    Stop,
    /// Write a checkpoint and wait until somebody resumes it.
    Pause,
    /// Write a checkpoint and go back to the queue: the server ends, or the disk is full.
    Requeue,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub code: String,
    pub message: String,
    pub param: Option<String>,
}

/// What the server decided about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobState {
    pub phase: Phase,
    pub paused: bool,
    /// Higher goes first.
    pub priority: i64,
    /// The number of the attempt that runs or ran last; 0 before the first.
    pub attempt: u32,
    /// What the runner calls it.
    pub handle: Option<String>,
    pub wanted: Option<Wanted>,
    /// Whether the process was told what is wanted.
    pub told: bool,
    /// Restarts after a kill or a memory limit.
    pub restarts: u32,
    /// Attempts in a row that vanished before they made a step.
    pub vanished: u32,
    /// The furthest step of any attempt.
    pub step: u64,
    pub started_at: Option<u64>,
    pub finished_at: Option<u64>,
    pub fault: Option<Fault>,
    /// The checkpoint that is the result of a job that was stopped.
    pub result_step: Option<u64>,
    /// The files with its numbers.
    #[serde(default)]
    pub result_files: Vec<String>,
    pub trained_tokens: Option<u64>,
    /// Why it waits, where that is not for its turn.
    pub waiting_for: Option<String>,
    /// How the last attempt ended.
    pub last_end: Option<AttemptEnd>,
    /// Whether those who wait for the job's end were told of it.
    #[serde(default)]
    pub announced: bool,
    /// Energy of all attempts, where the machine counts it.
    pub energy_joules: Option<f64>,
}

impl JobState {
    pub(crate) fn new(phase: Phase, priority: i64) -> Self {
        Self {
            phase,
            paused: false,
            priority,
            attempt: 0,
            handle: None,
            wanted: None,
            told: false,
            restarts: 0,
            vanished: 0,
            step: 0,
            started_at: None,
            finished_at: None,
            fault: None,
            result_step: None,
            result_files: Vec::new(),
            trained_tokens: None,
            waiting_for: None,
            last_end: None,
            announced: false,
            energy_joules: None,
        }
    }

    /// The state in one word, finer than OpenAI's.
    pub(crate) fn word(&self) -> &'static str {
        match self.phase {
            Phase::Validating => "validating",
            Phase::Queued if self.paused => "paused",
            Phase::Running if self.wanted.is_some() => "stopping",
            other => other.status(),
        }
    }
}

/// One reading of a job's memory near its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastReading {
    /// Seconds since the attempt began.
    pub t: f64,
    pub step: Option<u64>,
    pub resident_bytes: u64,
    pub owned_bytes: u64,
}

/// How an attempt ended, as its keeper saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AttemptEnd {
    /// Seconds since 1970.
    pub at: u64,
    pub how: How,
    /// The same in words, with what the supervisor did.
    pub words: Vec<String>,
    pub verdict: Option<Verdict>,
    /// The verdict's evidence in sentences.
    pub judgement: Vec<String>,
    pub peak_bytes: u64,
    pub last_readings: Vec<LastReading>,
    /// Energy that the machine took meanwhile, where it counts it.
    pub energy_joules: Option<f64>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    Exited(i32),
    Signaled(i32),
    StoppedAtLimit,
    /// The kernel killed it at the limit of its control group.
    KilledAtLimit,
    NotStarted,
}

/// The keeper's record of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AttemptRecord {
    /// The keeper's process: its PID and when it started.
    pub process: String,
    pub host: String,
    pub started_at: u64,
    /// Bytes that the job may take.
    pub limit_bytes: u64,
    pub end: Option<AttemptEnd>,
}

/// The evidence of a judgement in sentences. Its advice is about a run that goes on, so a record of an end leaves it out.
pub(crate) fn sentences(assessment: &Assessment) -> Vec<String> {
    assessment.evidence.iter().map(ToString::to_string).collect()
}
