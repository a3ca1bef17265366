//! The memory monitor of a run: it samples at exact steps, judges while the run goes on, and stops it in
//! time.
//!
//! Takes the steps of a run. Writes a memory trace, adds numbers to the logs, announces each reading, asks
//! for the end before a limit is reached, and gives the verdict at the end. It is always on: a sample every
//! ten steps costs about a millisecond.

use crate::{
    announce::Announcer,
    config::{MemoryConfig, OnMemoryLimit},
    event::{Event, MemoryReading, MemoryVerdict, Topic},
    trainer::{BoxError, Callback, Control, LogEntry, StepFacts, StopReason, TrainerState},
};
use garden_memory::{
    Assessment, Progress, Reading, Recorder, RunFacts, StepBoard, StepSource, SupervisorLink, TraceHeader,
    TraceWriter, probe::Probe, supervise::OwnLimit,
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The trace's file name.
pub const MEMORY_TRACE: &str = "memory.jsonl";
/// Where the trace of a process goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace<'a> {
    /// The run's folder.
    pub folder: &'a Path,
    /// The process among those that train together.
    pub rank: usize,
}

impl Trace<'_> {
    /// The name without its ending.
    fn stem(&self) -> String {
        match self.rank {
            0 => "memory".to_owned(),
            rank => format!("memory-rank-{rank}"),
        }
    }
}

/// The time to allow for writing a checkpoint: a limit that is nearer than this is acted upon.
const GRACE: Duration = Duration::from_secs(60);

/// What the model's buffers held at the fullest moment of the last step, as their owner counts it. Between
/// steps, when the monitor asks, none is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TensorMemory {
    /// Bytes in use at that moment.
    pub live: u64,
    /// The most that can be in use.
    pub peak: u64,
    /// Buffers in use at that moment.
    pub buffers: u64,
}

/// Where the owner of the buffers writes [`TensorMemory`] for the monitor to read.
#[derive(Debug, Clone, Default)]
pub struct TensorUsage(Arc<Mutex<TensorMemory>>);

impl TensorUsage {
    fn get(&self) -> TensorMemory {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, memory: TensorMemory) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }
}

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySummary {
    /// Everything the analyst says.
    pub assessment: Assessment,
    /// The same in short, beside the plan.
    pub verdict: MemoryVerdict,
    /// Steps and resident bytes.
    pub curve: Vec<(f64, f64)>,
    /// The limit, where one was given.
    pub limit: Option<u64>,
    /// The largest resident size seen, in all processes of the run.
    pub peak: u64,
    /// Seconds of training, in all processes of the run.
    pub seconds: f64,
    /// Processes that worked on the run.
    pub processes: u64,
    /// Seconds spent on sampling and judging.
    pub cost_seconds: f64,
}

/// What earlier processes of the run took, kept in each checkpoint. What a killed process did after its last
/// checkpoint is done again, and counted then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Effort {
    seconds: f64,
    peak: u64,
    processes: u64,
}

/// Watches the memory of its own process and of those that it started.
pub struct MemoryMonitor<'a, 'o> {
    settings: MemoryConfig,
    plan: Option<u64>,
    folder: PathBuf,
    stem: String,
    facts: RunFacts,
    earlier: Effort,
    announcer: &'a Announcer<'o>,
    board: StepBoard,
    recorder: Recorder,
    limit: OwnLimit,
    link: SupervisorLink,
    tensors: TensorUsage,
    last: Option<Reading>,
    warned: bool,
    first_step: Option<u64>,
    curve: Vec<(f64, f64)>,
    peak: u64,
    start: Instant,
    cost: Duration,
    cleanup: Duration,
    cleanups: u64,
}

impl<'a, 'o> MemoryMonitor<'a, 'o> {
    /// Begins to watch. The trace goes to the run's folder once the run begins. `plan` is the expected peak,
    /// where there is one; `tensors` tells what the buffers hold.
    pub fn start(
        settings: MemoryConfig,
        facts: RunFacts,
        plan: Option<u64>,
        trace: Trace<'_>,
        announcer: &'a Announcer<'o>,
        tensors: TensorUsage,
    ) -> Result<Self, BoxError> {
        let given = RunFacts { limit: settings.limit, ..facts };
        let limit = OwnLimit::new(settings.limit, GRACE);
        let board = StepBoard::default();
        let probe = Probe::attach(std::process::id().cast_signed())?;
        // A supervisor hears of the run once, from the first process.
        let link =
            if trace.rank == 0 { SupervisorLink::from_environment() } else { SupervisorLink::default() };
        link.tell_facts(&given);
        Ok(Self {
            settings,
            plan,
            folder: trace.folder.to_owned(),
            stem: trace.stem(),
            facts: given.clone(),
            earlier: Effort::default(),
            announcer,
            recorder: Recorder::new(probe, board.clone(), given, None),
            board,
            limit,
            link,
            tensors,
            last: None,
            warned: false,
            first_step: None,
            curve: Vec::new(),
            peak: 0,
            start: Instant::now(),
            cost: Duration::ZERO,
            cleanup: Duration::ZERO,
            cleanups: 0,
        })
    }

    /// Resident bytes at the last sample.
    pub fn resident(&self) -> Option<u64> {
        self.last.as_ref().map(|reading| reading.snapshot.sample.rss)
    }

    /// The verdict so far.
    pub fn summary(&mut self) -> Result<MemorySummary, BoxError> {
        // The last step was sampled while it trained; what is held afterwards is another matter.
        if self.last.is_none() {
            self.sample()?;
        }
        let reading = self.last.as_ref().ok_or("the process has no memory to look at")?;
        let effort = self.effort();
        Ok(MemorySummary {
            assessment: reading.assessment.clone(),
            verdict: self.verdict(reading, effort.peak),
            curve: self.curve.clone(),
            limit: self.settings.limit,
            peak: effort.peak,
            seconds: effort.seconds,
            processes: effort.processes,
            cost_seconds: self.cost.as_secs_f64(),
        })
    }

    fn verdict(&self, reading: &Reading, peak: u64) -> MemoryVerdict {
        let assessment = &reading.assessment;
        MemoryVerdict {
            verdict: assessment.verdict,
            resident_bytes: reading.snapshot.sample.rss,
            peak_bytes: peak,
            plan_bytes: self.plan,
            level_since_step: assessment.plateau.and_then(|plateau| plateau.step).or(self.first_step),
            growth_bytes_per_step: assessment.growth_per_step,
            decidable_at_step: assessment.decidable_at_step,
        }
    }

    /// Announces the last sample.
    fn announce(&self, step: u64) {
        let Some(reading) = &self.last else { return };
        let tensors = self.tensors.get();
        self.announcer.tell(Event::Memory(MemoryReading {
            step,
            resident_bytes: reading.snapshot.sample.rss,
            tensor_bytes: tensors.live,
            tensor_peak_bytes: tensors.peak,
            tensor_buffers: tensors.buffers,
            verdict: reading.assessment.verdict,
        }));
    }

    /// What the run took so far, in all its processes.
    fn effort(&self) -> Effort {
        Effort {
            seconds: self.earlier.seconds + self.start.elapsed().as_secs_f64(),
            peak: self.earlier.peak.max(self.peak),
            processes: self.earlier.processes + 1,
        }
    }

    /// Takes a sample for the trace, the verdict and the limit. Gives the reason to stop, if there is one.
    fn sample(&mut self) -> Result<Option<String>, BoxError> {
        let began = Instant::now();
        let Some(reading) = self.recorder.tick()? else { return Ok(None) };
        if let Some(error) = self.recorder.take_lost_trace() {
            self.announcer.note(Topic::Memory, format!("the memory trace ends here: {error}"));
        }
        let sample = &reading.snapshot.sample;
        self.peak = self.peak.max(sample.rss);
        if let Some(step) = sample.step {
            self.first_step.get_or_insert(step);
            self.curve.push((step as f64, sample.rss as f64));
            thin_out(&mut self.curve);
        }
        let call = self.limit.judge(&mut self.recorder, &reading);
        self.last = Some(reading);
        self.cost += began.elapsed();
        Ok(call)
    }

    fn clean_up(&mut self) {
        let began = Instant::now();
        garden_engine::trim_heap();
        self.cleanup += began.elapsed();
        self.cleanups += 1;
    }

    fn act(&mut self, reason: String, control: &mut Control) {
        if self.settings.on_limit == OnMemoryLimit::CheckpointAndStop {
            control.stop = Some(StopReason::MemoryLimit(reason));
        } else if !self.warned {
            self.warned = true;
            self.announcer.note(Topic::MemoryLimit, format!("memory: {reason}; going on"));
        }
    }
}

impl Callback for MemoryMonitor<'_, '_> {
    fn on_start(&mut self, state: &TrainerState, _: &mut Control) -> Result<(), BoxError> {
        keep_old_trace(&self.folder, &self.stem)?;
        let header = TraceHeader::new("train-vision", self.facts.clone());
        self.recorder
            .write_to(TraceWriter::create(self.folder.join(format!("{}.jsonl", self.stem)), &header)?);
        self.start = Instant::now();
        if state.global_step > 0 {
            self.board.report(
                StepSource::Socket,
                Progress { step: Some(state.global_step), ..Progress::default() },
            );
        }
        self.sample()?;
        self.announce(state.global_step);
        Ok(())
    }

    fn on_step_end(
        &mut self,
        state: &TrainerState,
        _: &StepFacts,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        let progress =
            Progress { step: Some(state.global_step), epoch: Some(state.epoch), ..Progress::default() };
        self.board.report(StepSource::Socket, progress);
        self.link.tell_step(state.global_step, state.epoch);
        if let Some(reason) = self.link.limit_notice() {
            self.act(reason, control);
        }
        if self.settings.cleanup_every > 0 && state.global_step.is_multiple_of(self.settings.cleanup_every) {
            self.clean_up();
        }
        // The first steps show the level; after them the chosen interval is enough, and the last step.
        let early_or_last = self.curve.len() < 4 || state.global_step >= state.max_steps;
        if early_or_last || state.global_step.is_multiple_of(self.settings.every) {
            let reason = self.sample()?;
            self.announce(state.global_step);
            reason.into_iter().for_each(|reason| self.act(reason, control));
        }
        Ok(())
    }

    fn on_evaluation_batch(&mut self, control: &mut Control) -> Result<(), BoxError> {
        if let Some(reason) = self.link.limit_notice() {
            self.act(reason, control);
        }
        Ok(())
    }

    fn on_log(&mut self, _: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        let tensors = self.tensors.get();
        if let Some(rss) = self.resident() {
            entry.values.insert("memory_rss_bytes".into(), rss as f64);
        }
        entry.values.insert("memory_tensors_bytes".into(), tensors.live as f64);
        entry.values.insert("memory_tensors_peak_bytes".into(), tensors.peak as f64);
        entry.values.insert("memory_tensor_buffers".into(), tensors.buffers as f64);
        Ok(())
    }

    fn keep(&self) -> Option<(&'static str, serde_json::Value)> {
        Some(("MemoryMonitor", serde_json::to_value(self.effort()).ok()?))
    }

    fn restore(&mut self, kept: &serde_json::Value) -> Result<(), BoxError> {
        self.earlier = serde_json::from_value(kept.clone())?;
        Ok(())
    }

    fn on_end(&mut self, state: &TrainerState, _: Option<&StopReason>) -> Result<(), BoxError> {
        self.link.tell_last_step(state.global_step, state.epoch);
        if self.cleanups > 0 {
            let milliseconds = 1e3 * self.cleanup.as_secs_f64();
            let text = format!("memory: {} clean-ups took {milliseconds:.0} ms in all", self.cleanups);
            self.announcer.note(Topic::Memory, text);
        }
        Ok(())
    }
}

/// Renames the trace of an earlier process by a number: it may show how that process died.
fn keep_old_trace(folder: &Path, stem: &str) -> io::Result<()> {
    let trace = folder.join(format!("{stem}.jsonl"));
    if !trace.exists() {
        return Ok(());
    }
    let mut numbered = (1..).map(|number: u32| folder.join(format!("{stem}-{number}.jsonl")));
    let free = numbered.find(|path| !path.exists());
    free.map_or(Ok(()), |path| garden_files::rename(&trace, &path))
}

/// The most points that a chart can show. Beyond it every second one is dropped, so a run of any length takes
/// bounded memory.
const MOST_POINTS: usize = 4096;

fn thin_out(curve: &mut Vec<(f64, f64)>) {
    if curve.len() > MOST_POINTS {
        let mut keep = false;
        curve.retain(|_| {
            keep = !keep;
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_traces_of_earlier_processes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        keep_old_trace(folder.path(), "memory").unwrap();
        for process in ["first", "second"] {
            fs::write(folder.path().join(MEMORY_TRACE), process).unwrap();
            keep_old_trace(folder.path(), "memory").unwrap();
        }
        assert_eq!((read("memory-1.jsonl"), read("memory-2.jsonl")), ("first".into(), "second".into()));
        assert!(!folder.path().join(MEMORY_TRACE).exists());
    }
}
