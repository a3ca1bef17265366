//! How far a job is, from its journal.
//!
//! Takes the entries of a journal one by one and keeps the numbers that a list of jobs shows. A run that goes on from
//! a checkpoint repeats steps, and what it repeats supersedes what was there. The size of a [`Progress`] does not
//! depend on the length of the job.

use super::journal::{Entry, Said};
use garden_memory::Verdict;
use garden_train::events::{End, Event, MemoryVerdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Readings in the small chart of a list.
const SPARKS: usize = 60;

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doing {
    /// No process has begun.
    #[default]
    Waiting,
    /// Rows are read.
    ReadingRows,
    /// The model is loaded.
    Loading,
    Training,
    Done,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub doing: Doing,
    pub step: u64,
    pub max_steps: u64,
    pub epoch: f64,
    pub loss: Option<f64>,
    pub eval_loss: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub seconds_left: Option<f64>,
    pub trained_tokens: u64,
    pub resident_bytes: Option<u64>,
    pub peak_bytes: u64,
    pub verdict: Option<Verdict>,
    /// The verdict at the end, in words.
    pub words: Option<String>,
    /// Resident bytes over the whole run, evenly spread.
    pub sparkline: Vec<u64>,
    /// The last thing that the trainer said of itself.
    pub last_error: Option<String>,
    /// Readings that one point of the small chart stands for, and those of the last point.
    every: u64,
    pending: u64,
    /// Seconds of a step, smoothed.
    pace: Option<f64>,
    /// Tokens up to each checkpoint, to go back to.
    tokens_at: BTreeMap<u64, u64>,
}

impl Progress {
    /// Takes the next entry.
    pub(crate) fn take(&mut self, entry: &Entry) {
        let Said::Trainer(record) = &entry.said else { return };
        match &record.event {
            Event::Progress(work) if work.what.starts_with("Loading") => self.doing = Doing::Loading,
            Event::Progress(_) if self.doing == Doing::Waiting => self.doing = Doing::ReadingRows,
            Event::Started(started) => {
                self.doing = Doing::Training;
                (self.step, self.max_steps) = (started.step, started.max_steps);
                self.trained_tokens = self.tokens_at.get(&started.step).copied().unwrap_or(0);
            }
            Event::Step(step) => {
                (self.step, self.max_steps, self.epoch) = (step.step, step.max_steps, step.epoch);
                self.loss = Some(step.loss);
                self.trained_tokens += step.tokens;
                let pace = self.pace.map_or(step.seconds, |pace| 0.9 * pace + 0.1 * step.seconds);
                self.pace = Some(pace);
                self.tokens_per_second = (pace > 0.0).then(|| step.tokens as f64 / pace);
                self.seconds_left = Some(pace * step.max_steps.saturating_sub(step.step) as f64);
            }
            Event::Evaluation(evaluation) => self.eval_loss = Some(evaluation.loss),
            Event::Checkpoint(place) => {
                self.tokens_at.insert(place.step, self.trained_tokens);
                while self.tokens_at.len() > SPARKS {
                    self.tokens_at.pop_first();
                }
            }
            Event::Memory(reading) => {
                self.resident_bytes = Some(reading.resident_bytes);
                self.peak_bytes = self.peak_bytes.max(reading.resident_bytes);
                self.verdict = Some(reading.verdict);
                self.spark(reading.resident_bytes);
            }
            Event::Note(note) => self.last_error = error_in(&note.text).or(self.last_error.take()),
            Event::End(end) => self.end(end),
            _ => {}
        }
    }

    /// A new attempt begins: the trainer reads its rows again.
    pub(crate) fn begin(&mut self) {
        self.doing = Doing::Waiting;
        self.last_error = None;
        self.seconds_left = None;
    }

    fn end(&mut self, end: &End) {
        self.doing = Doing::Done;
        self.seconds_left = None;
        if let Some(memory) = &end.memory {
            self.verdict = Some(memory.verdict);
            self.words = Some(MemoryVerdict::to_string(memory));
            self.peak_bytes = self.peak_bytes.max(memory.peak_bytes);
        }
        if end.reason == garden_train::events::EndReason::Failed {
            self.last_error = end.message.clone().or(self.last_error.take());
        }
    }

    /// Keeps one reading in so many, and twice as few once the chart is full.
    fn spark(&mut self, bytes: u64) {
        self.every = self.every.max(1);
        self.pending += 1;
        if self.pending < self.every {
            return;
        }
        self.pending = 0;
        self.sparkline.push(bytes);
        if self.sparkline.len() > SPARKS {
            let mut keep = false;
            self.sparkline.retain(|_| {
                keep = !keep;
                keep
            });
            self.every *= 2;
        }
    }
}

/// What a program that prints its errors as JSON says is wrong.
fn error_in(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let error = value.get("error").or_else(|| value.get("message"))?;
    Some(error.as_str().map_or_else(|| error.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{
        folder::JobFolder,
        journal::{Cursor, Journal},
    };
    use serde_json::json;

    fn after(events: &[serde_json::Value]) -> Progress {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(root.path());
        let lines: String = events
            .iter()
            .enumerate()
            .map(|(time, event)| {
                let mut event = event.clone();
                event["version"] = 2.into();
                event["time"] = time.into();
                format!("{event}\n")
            })
            .collect();
        std::fs::write(folder.events(), lines).unwrap();
        let mut journal = Journal::new(&folder, Cursor::default());
        let mut progress = Progress::default();
        while let Some(entry) = journal.next().unwrap() {
            progress.take(&entry);
        }
        progress
    }

    fn step(step: u64) -> serde_json::Value {
        json!({"event": "step", "step": step, "max_steps": 9, "epoch": 0.1, "loss": 2.0, "grad_norm": 1.0,
            "learning_rate": 0.1, "rows": 1, "tokens": 10, "label_tokens": 1, "images": 0, "seconds": 2.0, "data_seconds": 0.0})
    }

    fn started(step: u64) -> serde_json::Value {
        json!({"event": "started", "step": step, "max_steps": 9, "steps_per_epoch": 3, "batch_size": 1, "accumulation": 1})
    }

    #[test]
    fn steps_that_are_repeated_count_once() {
        let checkpoint = json!({"event": "checkpoint", "step": 1, "path": "c"});
        let events = [started(0), step(1), checkpoint, step(2), step(3), started(1), step(2)];
        let progress = after(&events);
        assert_eq!((progress.step, progress.trained_tokens, progress.doing), (2, 20, Doing::Training));
        assert_eq!((progress.tokens_per_second, progress.seconds_left), (Some(5.0), Some(14.0)));
    }

    #[test]
    fn the_small_chart_spans_the_run_and_stays_small() {
        let reading = |bytes: u64| {
            json!({"event": "memory", "step": 1, "resident_bytes": bytes, "tensor_bytes": 0,
            "tensor_peak_bytes": 0, "tensor_buffers": 0, "verdict": "steady"})
        };
        let readings: Vec<_> = (0..1000).map(reading).collect();
        let sparks = after(&readings).sparkline;
        assert!(sparks.len() <= SPARKS + 1 && sparks[0] < 40 && *sparks.last().unwrap() > 900, "{sparks:?}");
    }

    #[test]
    fn an_error_that_comes_before_the_first_event_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(root.path());
        std::fs::write(folder.events(), "{\"error\": \"no such dataset\"}\n").unwrap();
        let entry = Journal::new(&folder, Cursor::default()).next().unwrap().unwrap();
        let mut progress = Progress::default();
        progress.take(&entry);
        assert_eq!(progress.last_error.as_deref(), Some("no such dataset"));
    }
}
