//! A job as clients see it: OpenAI's object, and what is ours beside it under `garden`.

use crate::job::{
    manager::Indexed,
    planner::JobPlan,
    progress::Doing,
    record::{AttemptEnd, CheckpointOf, Hyperparameters, LastReading, Phase},
};
use garden_memory::Verdict;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A fine-tuning job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FineTuningJob)]
pub(crate) struct JobObject {
    #[schema(pattern = "^ftjob-[a-z0-9]{1,64}$")]
    pub id: String,
    object: JobName,
    /// Seconds since 1970.
    created_at: u64,
    /// Seconds since 1970.
    finished_at: Option<u64>,
    /// The model that is tuned.
    model: String,
    /// The tuned model, once there is one.
    fine_tuned_model: Option<String>,
    organization_id: &'static str,
    status: Status,
    hyperparameters: Hyperparameters,
    method: Method,
    training_file: String,
    validation_file: Option<String>,
    result_files: Vec<String>,
    trained_tokens: Option<u64>,
    error: Option<JobError>,
    seed: u64,
    /// Seconds since 1970 at which it will be done, while it runs.
    estimated_finish: Option<u64>,
    integrations: Vec<String>,
    metadata: BTreeMap<String, String>,
    garden: Garden,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
enum JobName {
    #[serde(rename = "fine_tuning.job")]
    Job,
}

/// OpenAI's states.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    ValidatingFiles,
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FineTuningMethod)]
struct Method {
    #[serde(rename = "type")]
    kind: &'static str,
    supervised: SupervisedMethod,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
struct SupervisedMethod {
    hyperparameters: Hyperparameters,
}

/// Why a job failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
struct JobError {
    code: String,
    message: String,
    param: Option<String>,
}

/// What is ours.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = GardenJob)]
struct Garden {
    /// The word in the tuned model's name.
    name: Option<String>,
    /// The state in one word: as OpenAI's, and `validating`, `paused`, `stopping`.
    state: String,
    priority: i64,
    /// From 1, while it waits.
    queue_position: Option<usize>,
    /// Why it waits, where that is not for its turn.
    waiting_for: Option<String>,
    /// How often its process was started.
    attempt: u32,
    max_restarts: u32,
    rerun_of: Option<String>,
    resumed_from: Option<CheckpointOf>,
    /// The settings that were asked for.
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
    started_at: Option<u64>,
    /// The checkpoint that is the result of a job that was stopped.
    result_step: Option<u64>,
    progress: ProgressObject,
    plan: Option<JobPlan>,
    memory: Option<MemoryObject>,
    /// How the last attempt ended.
    last_end: Option<EndObject>,
    /// Energy of the machine while it ran, where the machine counts it.
    energy_joules: Option<f64>,
}

/// How far it is.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = JobProgress)]
struct ProgressObject {
    phase: Doing,
    step: u64,
    max_steps: u64,
    epoch: f64,
    loss: Option<f64>,
    eval_loss: Option<f64>,
    tokens_per_second: Option<f64>,
    seconds_left: Option<f64>,
}

/// Its memory.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = JobMemory)]
struct MemoryObject {
    resident_bytes: u64,
    peak_bytes: u64,
    #[schema(value_type = Option<String>)]
    verdict: Option<Verdict>,
    /// The verdict in words, at the end.
    words: Option<String>,
    /// Resident bytes over the run, up to 61 of them.
    sparkline: Vec<u64>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = JobAttemptEnd)]
struct EndObject {
    /// Seconds since 1970.
    at: u64,
    /// What the supervisor did, in words.
    words: Vec<String>,
    #[schema(value_type = Option<String>)]
    verdict: Option<Verdict>,
    /// The verdict's evidence.
    judgement: Vec<String>,
    peak_bytes: u64,
    #[schema(value_type = Vec<Object>)]
    last_readings: Vec<LastReading>,
}

impl From<&AttemptEnd> for EndObject {
    fn from(end: &AttemptEnd) -> Self {
        Self {
            at: end.at,
            words: end.words.clone(),
            verdict: end.verdict,
            judgement: end.judgement.clone(),
            peak_bytes: end.peak_bytes,
            last_readings: end.last_readings.clone(),
        }
    }
}

impl JobObject {
    /// Whether nothing more will happen to it.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.status, Status::Succeeded | Status::Failed | Status::Cancelled)
    }

    /// The job, with its place in the queue.
    pub(crate) fn new(job: Indexed, queue_position: Option<usize>, now: u64) -> Self {
        let Indexed { record, state, progress, plan } = job;
        let succeeded = state.phase == Phase::Succeeded || state.result_step.is_some();
        let running = state.phase == Phase::Running;
        let left = progress.seconds_left.filter(|_| running);
        let memory = progress.resident_bytes.map(|resident_bytes| MemoryObject {
            resident_bytes,
            peak_bytes: progress.peak_bytes,
            verdict: progress.verdict,
            words: progress.words.clone(),
            sparkline: progress.sparkline.clone(),
        });
        Self {
            object: JobName::Job,
            created_at: record.created_at,
            finished_at: state.finished_at,
            fine_tuned_model: succeeded.then(|| record.tuned_model()),
            organization_id: "model-garden",
            status: status(state.phase),
            method: Method {
                kind: "supervised",
                supervised: SupervisedMethod { hyperparameters: record.hyperparameters.clone() },
            },
            result_files: state.result_files.clone(),
            trained_tokens: state
                .phase
                .is_final()
                .then_some(progress.trained_tokens)
                .filter(|tokens| *tokens > 0),
            error: state.fault.as_ref().map(|fault| JobError {
                code: fault.code.clone(),
                message: fault.message.clone(),
                param: fault.param.clone(),
            }),
            seed: record.seed,
            estimated_finish: left.map(|left| now.saturating_add(left as u64)),
            integrations: Vec::new(),
            garden: Garden {
                name: record.suffix.clone(),
                state: state.word().to_owned(),
                priority: state.priority,
                queue_position,
                waiting_for: state.waiting_for.clone().filter(|_| state.phase == Phase::Queued),
                attempt: state.attempt,
                max_restarts: record.max_restarts,
                rerun_of: record.rerun_of,
                resumed_from: record.resumed_from,
                settings: record.settings,
                started_at: state.started_at,
                result_step: state.result_step,
                progress: ProgressObject {
                    phase: progress.doing,
                    step: progress.step,
                    max_steps: progress.max_steps,
                    epoch: progress.epoch,
                    loss: progress.loss,
                    eval_loss: progress.eval_loss,
                    tokens_per_second: progress.tokens_per_second,
                    seconds_left: left,
                },
                plan,
                memory,
                last_end: state.last_end.as_ref().map(EndObject::from),
                energy_joules: state.energy_joules,
            },
            id: record.id,
            model: record.model,
            hyperparameters: record.hyperparameters,
            training_file: record.training_file,
            validation_file: record.validation_file,
            metadata: record.metadata,
        }
    }
}

fn status(phase: Phase) -> Status {
    match phase {
        Phase::Validating => Status::ValidatingFiles,
        Phase::Queued => Status::Queued,
        Phase::Running => Status::Running,
        Phase::Succeeded => Status::Succeeded,
        Phase::Failed => Status::Failed,
        Phase::Cancelled => Status::Cancelled,
    }
}
