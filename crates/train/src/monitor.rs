//! The memory monitor of a run: sampled with exact steps, judged as it goes, stopped in time.
//!
//! In come the steps of a run; out come a memory trace, numbers for the logs, a request to stop before a limit is reached, and
//! the verdict at the end. It is always on: a sample every ten steps costs about a millisecond.

use crate::{
    config::{MemoryConfig, OnMemoryLimit},
    screen::Screen,
    trainer::{BoxError, Callback, Control, LogEntry, StepFacts, StopReason, TrainerState},
};
use garden_memory::{
    Assessment, ByteSize, RunFacts, SupervisorLink, TraceHeader, TraceWriter, Verdict,
    probe::Probe,
    record::{Reading, Recorder, natural_limit},
    steps::{Progress, Source, StepBoard},
    supervise::{Call, LimitWatch},
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The trace's file name.
pub const MEMORY_TRACE: &str = "memory.jsonl";
/// Writing a checkpoint may take this long: a forecast that ends sooner is acted upon.
const GRACE: Duration = Duration::from_secs(60);

/// What the model's buffers held at the fullest moment of the last step, as their owner counts it: between steps, when it is
/// asked, none is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorMemory {
    /// Bytes in use at that moment.
    pub live: u64,
    /// The most that can be in use.
    pub peak: u64,
    /// Buffers in use at that moment.
    pub buffers: u64,
}

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySummary {
    /// Everything the analyst says.
    pub assessment: Assessment,
    /// The last line of the log.
    pub line: String,
    /// Steps and resident bytes.
    pub curve: Vec<(f64, f64)>,
    /// The peak that was planned.
    pub plan: Option<u64>,
    /// What must not be exceeded, where it was given.
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

/// What the processes before this one took, kept in each checkpoint. What a killed one did after its last checkpoint is done again
/// and counted then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Effort {
    seconds: f64,
    peak: u64,
    processes: u64,
}

/// Watches the memory of its own process.
pub struct MemoryMonitor<'a> {
    settings: MemoryConfig,
    plan: Option<u64>,
    folder: PathBuf,
    facts: RunFacts,
    earlier: Effort,
    screen: &'a Screen,
    board: StepBoard,
    recorder: Recorder,
    limit: Option<LimitWatch>,
    link: SupervisorLink,
    tensors: Box<dyn Fn() -> TensorMemory + 'a>,
    last: Option<Reading>,
    warned: bool,
    first_step: Option<u64>,
    curve: Vec<(f64, f64)>,
    peak: u64,
    start: Instant,
    last_look: Duration,
    cost: Duration,
    cleanup: Duration,
    cleanups: u64,
}

impl<'a> MemoryMonitor<'a> {
    /// Begins to watch; the trace goes to the run's folder once the run begins. `plan` is the expected peak, `tensors` tells
    /// what buffers hold.
    pub fn start(
        settings: MemoryConfig,
        facts: RunFacts,
        plan: Option<u64>,
        folder: &Path,
        screen: &'a Screen,
        tensors: Box<dyn Fn() -> TensorMemory + 'a>,
    ) -> Result<Self, BoxError> {
        let given = RunFacts { limit: settings.limit, ..facts };
        let board = StepBoard::default();
        let probe = Probe::attach(std::process::id().cast_signed())?;
        let link = SupervisorLink::from_environment();
        link.tell_facts(&given);
        Ok(Self {
            settings,
            plan,
            folder: folder.to_owned(),
            facts: given.clone(),
            earlier: Effort::default(),
            screen,
            recorder: Recorder::new(probe, board.clone(), given, None),
            board,
            limit: None,
            link,
            tensors,
            last: None,
            warned: false,
            first_step: None,
            curve: Vec::new(),
            peak: 0,
            start: Instant::now(),
            last_look: Duration::ZERO,
            cost: Duration::ZERO,
            cleanup: Duration::ZERO,
            cleanups: 0,
        })
    }

    /// Resident bytes at the last sample.
    pub fn resident(&self) -> Option<u64> {
        self.last.as_ref().map(|reading| reading.snapshot.sample.rss)
    }

    /// The verdict by now.
    pub fn summary(&mut self) -> Result<MemorySummary, BoxError> {
        // The last step was looked at while it trained; what is held afterwards is another matter.
        if self.last.is_none() {
            self.sample()?;
        }
        let reading = self.last.as_ref().ok_or("the process has no memory to look at")?;
        let first_step = self.first_step.unwrap_or(0);
        let line = last_line(&reading.assessment, reading.snapshot.sample.rss, first_step, self.plan);
        Ok(MemorySummary {
            assessment: reading.assessment.clone(),
            line,
            curve: self.curve.clone(),
            plan: self.plan,
            limit: self.settings.limit,
            peak: self.effort().peak,
            seconds: self.effort().seconds,
            processes: self.effort().processes,
            cost_seconds: self.cost.as_secs_f64(),
        })
    }

    /// What the run took up to now, in all its processes.
    fn effort(&self) -> Effort {
        Effort {
            seconds: self.earlier.seconds + self.start.elapsed().as_secs_f64(),
            peak: self.earlier.peak.max(self.peak),
            processes: self.earlier.processes + 1,
        }
    }

    /// Looks once: trace, verdict, limit. Gives the reason to stop, if there is one.
    fn sample(&mut self) -> Result<Option<String>, BoxError> {
        let began = Instant::now();
        let Some(reading) = self.recorder.tick()? else { return Ok(None) };
        if let Some(error) = self.recorder.take_lost_trace() {
            self.screen.note(&format!("the memory trace ends here: {error}"));
        }
        let sample = &reading.snapshot.sample;
        self.peak = self.peak.max(sample.rss);
        if let Some(step) = sample.step {
            self.first_step.get_or_insert(step);
            self.curve.push((step as f64, sample.rss as f64));
            thin_out(&mut self.curve);
        }
        let call = self.look(&reading);
        self.last = Some(reading);
        self.cost += began.elapsed();
        Ok(call)
    }

    fn look(&mut self, reading: &Reading) -> Option<String> {
        let nearest = natural_limit(&reading.snapshot).into_iter().chain(self.settings.limit).min()?;
        let watch = self.limit.get_or_insert_with(|| LimitWatch::new(nearest, GRACE));
        watch.set_limit(nearest);
        watch.judge(reading);
        let now = self.start.elapsed();
        let until_next = now.saturating_sub(std::mem::replace(&mut self.last_look, now));
        let mut call = watch.look(now, reading.snapshot.level, until_next);
        if let Call::Measure(need) = call {
            let measured = self.recorder.look(need).ok().flatten().filter(|snapshot| snapshot.measured);
            call = measured.map_or(Call::Fine, |found| watch.decide(found.level.owned, until_next));
        }
        match call {
            Call::Fine | Call::Measure(_) => None,
            Call::Tell(reason) | Call::End(reason) => Some(reason),
        }
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
            self.screen.note(&format!("memory: {reason}; going on, as --on-memory-limit warn says"));
        }
    }
}

impl Callback for MemoryMonitor<'_> {
    fn on_start(&mut self, state: &TrainerState, _: &mut Control) -> Result<(), BoxError> {
        keep_old_trace(&self.folder)?;
        let header = TraceHeader::new("train-vision", self.facts.clone());
        self.recorder.write_to(TraceWriter::create(self.folder.join(MEMORY_TRACE), &header)?);
        self.start = Instant::now();
        if state.global_step > 0 {
            self.board
                .report(Source::Socket, Progress { step: Some(state.global_step), ..Progress::default() });
        }
        let plan = self.plan.map_or("no plan".to_owned(), |plan| format!("plan {}", ByteSize(plan)));
        self.sample()?;
        let now = ByteSize(self.resident().unwrap_or(0));
        self.screen.line(&format!("memory: {plan}; {now} before the first step"));
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
        self.board.report(Source::Socket, progress);
        self.link.tell_step(state.global_step, state.epoch);
        if let Some(reason) = self.link.limit_notice() {
            self.act(reason, control);
        }
        if self.settings.cleanup_every > 0 && state.global_step.is_multiple_of(self.settings.cleanup_every) {
            self.clean_up();
        }
        // The first steps show the level; after them every tenth is enough, and the last.
        let early_or_last = self.curve.len() < 4 || state.global_step >= state.max_steps;
        if (early_or_last || state.global_step.is_multiple_of(self.settings.every))
            && let Some(reason) = self.sample()?
        {
            self.act(reason, control);
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
        let megabytes = |bytes: u64| (bytes as f64 / 1e6).round();
        let tensors = (self.tensors)();
        if let Some(rss) = self.resident() {
            entry.values.insert("memory_rss_mb".into(), megabytes(rss));
        }
        entry.values.insert("memory_tensors_mb".into(), megabytes(tensors.live));
        entry.values.insert("memory_tensors_peak_mb".into(), megabytes(tensors.peak));
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
            self.screen
                .line(&format!("memory: {} clean-ups took {milliseconds:.0} ms in all", self.cleanups));
        }
        Ok(())
    }
}

/// Gives the trace of a process before this one a number: it may show how that one died.
fn keep_old_trace(folder: &Path) -> io::Result<()> {
    let trace = folder.join(MEMORY_TRACE);
    if !trace.exists() {
        return Ok(());
    }
    let mut numbered = (1..).map(|number: u32| folder.join(format!("memory-{number}.jsonl")));
    let free = numbered.find(|path| !path.exists());
    free.map_or(Ok(()), |path| garden_files::rename(&trace, &path))
}

/// Points a chart can show; beyond that every second one goes, which keeps a run of any length in bounded memory.
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

/// The verdict in one line, with the plan beside it.
fn last_line(assessment: &Assessment, resident: u64, first_step: u64, plan: Option<u64>) -> String {
    let plan = plan.map(|plan| format!(" (plan {})", ByteSize(plan))).unwrap_or_default();
    let now = ByteSize(resident);
    let since = assessment.plateau.and_then(|plateau| plateau.step).unwrap_or(first_step);
    match assessment.verdict {
        Verdict::Steady => format!("memory: steady at {now} since step {since}{plan}"),
        Verdict::WarmUp => format!("memory: steady at {now} since step {since}, after a warm-up{plan}"),
        Verdict::Fill => format!("memory: fill, {now} since every row was seen once{plan}"),
        Verdict::Leak => {
            let rate = ByteSize(assessment.growth_per_step.unwrap_or(0.0).max(0.0) as u64);
            format!("memory: leak, {now} and {rate} more each step{plan}")
        }
        Verdict::Undecided => {
            let when =
                assessment.decidable_at_step.map(|step| format!(" until step {step}")).unwrap_or_default();
            format!("memory: {now}; too short a run for a verdict, undecided{when}{plan}")
        }
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
        keep_old_trace(folder.path()).unwrap();
        for process in ["first", "second"] {
            fs::write(folder.path().join(MEMORY_TRACE), process).unwrap();
            keep_old_trace(folder.path()).unwrap();
        }
        assert_eq!((read("memory-1.jsonl"), read("memory-2.jsonl")), ("first".into(), "second".into()));
        assert!(!folder.path().join(MEMORY_TRACE).exists());
    }
}
