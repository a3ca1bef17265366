//! All points of a job's curves.

use super::folder_of;
use crate::{
    api::{
        error::ApiError,
        extract::{Json, Path},
    },
    app::App,
    job::{
        folder::JobFolder,
        journal::{Cursor, Journal, Said},
    },
};
use axum::extract::State;
use garden_memory::TraceReader;
use garden_train::events::Event;
use serde::Serialize;
use std::io;
use utoipa::ToSchema;

/// The curves of a job. The lists of a group have the same length.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = JobCurves)]
pub(super) struct Curves {
    train: Train,
    eval: Eval,
    memory: Memory,
    /// What the job did when, in seconds since its first event.
    phases: Vec<PhaseSpan>,
    /// Seconds since 1970 of the first event: the second 0 of memory and phases.
    begun: Option<f64>,
    /// Where the stream goes on from these points: its `after`.
    cursor: Option<String>,
    /// Bytes that were planned.
    plan_bytes: Option<u64>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = TrainCurves)]
struct Train {
    step: Vec<u64>,
    loss: Vec<f64>,
    learning_rate: Vec<f64>,
    grad_norm: Vec<f64>,
    seconds: Vec<f64>,
    tokens_per_second: Vec<f64>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = EvalCurves)]
struct Eval {
    step: Vec<u64>,
    loss: Vec<f64>,
    token_accuracy: Vec<f64>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = MemoryCurves)]
struct Memory {
    /// Seconds since the job's first event.
    time: Vec<f64>,
    bytes: Vec<u64>,
    step: Vec<Option<u64>>,
}

/// A stretch of a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct PhaseSpan {
    name: &'static str,
    from: f64,
    to: f64,
}

/// All points of a job's curves: loss, learning rate, throughput, evaluation, memory.
#[utoipa::path(get, path = "/v1/fine_tuning/jobs/{id}/curves", tag = "Jobs", params(("id" = String, Path)),
    responses((status = 200, body = Curves)))]
pub(super) async fn curves(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Curves>, ApiError> {
    let folder = folder_of(&app, &id)?;
    crate::api::blocking(move || read(&folder).map_err(|error| ApiError::disk(&error))).await.map(Json)
}

fn read(folder: &JobFolder) -> io::Result<Curves> {
    let mut curves = Curves::default();
    let mut journal = Journal::new(folder, Cursor::default());
    let mut begun = None;
    while let Some(entry) = journal.next()? {
        let time = entry.time();
        curves.cursor = Some(entry.after.to_string());
        let Said::Trainer(said) = entry.said else { continue };
        if said.version == 0 {
            continue;
        }
        let t = time - *begun.get_or_insert(time);
        match said.event {
            Event::Progress(work) => {
                let name = if work.what.starts_with("Loading") { "loading" } else { "reading rows" };
                curves.enter(name, t);
            }
            Event::Plan(plan) => curves.plan_bytes = Some(plan.total_bytes),
            Event::Started(started) => {
                curves.forget_after(started.step);
                curves.enter("training", t);
            }
            Event::Step(step) => {
                curves.enter("training", t);
                let Train { step: steps, loss, learning_rate, grad_norm, seconds, tokens_per_second } =
                    &mut curves.train;
                steps.push(step.step);
                loss.push(step.loss);
                learning_rate.push(step.learning_rate);
                grad_norm.push(step.grad_norm);
                seconds.push(step.seconds);
                tokens_per_second.push(if step.seconds > 0.0 {
                    step.tokens as f64 / step.seconds
                } else {
                    0.0
                });
            }
            Event::Evaluation(evaluation) => {
                curves.enter("evaluating", t - evaluation.seconds);
                curves.enter("training", t);
                curves.eval.step.push(evaluation.step);
                curves.eval.loss.push(evaluation.loss);
                curves.eval.token_accuracy.push(evaluation.token_accuracy);
            }
            Event::End(_) => curves.enter("ending", t),
            _ => {}
        }
    }
    curves.begun = begun;
    for attempt in 1.. {
        let Ok(Some(record)) = folder.read_attempt(attempt) else { break };
        let offset = begun.map_or(0.0, |begun| record.started_at as f64 - begun).max(0.0);
        curves.memory.add(folder, attempt, offset);
    }
    Ok(curves)
}

impl Curves {
    /// A run that goes on from a checkpoint repeats what came after it.
    fn forget_after(&mut self, step: u64) {
        let keep = self.train.step.iter().take_while(|at| **at <= step).count();
        let Train { step: steps, loss, learning_rate, grad_norm, seconds, tokens_per_second } =
            &mut self.train;
        steps.truncate(keep);
        for list in [loss, learning_rate, grad_norm, seconds, tokens_per_second] {
            list.truncate(keep);
        }
        let keep = self.eval.step.iter().take_while(|at| **at <= step).count();
        self.eval.step.truncate(keep);
        self.eval.loss.truncate(keep);
        self.eval.token_accuracy.truncate(keep);
    }

    /// The job is in this phase from `t` on, or still.
    fn enter(&mut self, name: &'static str, t: f64) {
        match self.phases.last_mut() {
            Some(last) if last.name == name => last.to = t.max(last.to),
            last => {
                if let Some(last) = last {
                    last.to = t.max(last.from);
                }
                self.phases.push(PhaseSpan { name, from: t, to: t });
            }
        }
    }
}

impl Memory {
    /// Adds the trace of an attempt; one that is broken or missing adds what can be read.
    fn add(&mut self, folder: &JobFolder, attempt: u32, offset: f64) {
        let Ok(mut trace) = TraceReader::open(folder.trace(attempt)) else { return };
        for sample in (&mut trace).map_while(Result::ok) {
            self.time.push(sample.t + offset);
            self.bytes.push(sample.rss);
            self.step.push(sample.step);
        }
    }
}
