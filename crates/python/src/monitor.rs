//! A monitor of a living process tree, at the steps of a training loop.
//!
//! Takes steps, epochs and what is known of the run; gives readings as JSON, writes the trace, and says why
//! to stop when a limit is near. The interpreter's lock is released while it looks. In a forked child, such
//! as a DataLoader's worker, an inherited monitor does nothing.

use crate::{
    analysis::{Judged, facts_of, json, to_json},
    errors::Exception,
    memory_words::{name_parameters, probe_error, trace_error},
};
use garden_memory::{
    LogFollower, Progress, Reading, Recorder, RunFacts, StepBoard, StepPatterns, StepSource, SupervisorLink,
    TraceHeader, TraceWriter, may_replace_trace,
    probe::{Probe, ProbeError},
    report::Run,
    supervise::OwnLimit,
};
use pyo3::{prelude::*, types::PyDict};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Watches one process tree.
#[pyclass(frozen, module = "model_garden._native")]
pub(crate) struct Monitor {
    /// The process that made it.
    owner: u32,
    /// `None` only while it is dropped.
    state: Option<Mutex<State>>,
}

struct State {
    name: String,
    recorder: Recorder,
    board: StepBoard,
    /// Set where the program is to stop before a limit.
    limit: Option<OwnLimit>,
    /// To a supervisor of this process, where there is one.
    link: SupervisorLink,
    last: Option<Reading>,
    /// Time spent on readings and looks.
    cost: Duration,
}

/// One reading, as Python takes it.
#[derive(Serialize)]
struct Told {
    t: f64,
    step: Option<u64>,
    epoch: Option<f64>,
    owned: u64,
    resident: u64,
    processes: u32,
    gpu: Option<u64>,
    /// Why to stop, where it is time.
    stop: Option<String>,
    /// Why the trace ends here.
    lost_trace: Option<String>,
    verdict: &'static str,
    /// Seconds that the reading took.
    cost: f64,
}

#[pymethods]
impl Monitor {
    /// Watches `pid`, or this process. `facts` holds what is known of the run; `stop` says that its limit is one
    /// to stop before.
    #[new]
    #[pyo3(signature = (pid, facts, *, name, stop, grace, trace=None))]
    fn new(
        py: Python<'_>,
        pid: Option<i32>,
        facts: &Bound<'_, PyDict>,
        name: String,
        stop: bool,
        grace: f64,
        trace: Option<PathBuf>,
    ) -> PyResult<Self> {
        let facts = facts_of(facts)?;
        let grace = Duration::try_from_secs_f64(grace)
            .map_err(|error| Exception::Config.saying(format!("grace={grace}: {error}")))?;
        let trace = trace.map(|path| create_trace(&path, &name, &facts)).transpose()?;
        let state = py.detach(|| State::new(pid, facts, name, stop.then_some(grace), trace));
        let state = state.map_err(|error| probe_error(&error))?;
        Ok(Self { owner: process::id(), state: Some(Mutex::new(state)) })
    }

    /// Whether this process is a fork of the one that made it.
    #[getter]
    fn is_inherited(&self) -> bool {
        self.owner != process::id()
    }

    /// Takes in what was learned of the run.
    fn learn(&self, py: Python<'_>, facts: &Bound<'_, PyDict>) -> PyResult<()> {
        let facts = facts_of(facts)?;
        self.with(py, |state| {
            state.board.report(
                StepSource::Socket,
                Progress {
                    dataset_size: facts.dataset_size,
                    samples_per_step: facts.samples_per_step,
                    steps_per_epoch: facts.steps_per_epoch,
                    ..Progress::default()
                },
            );
            state.link.tell_facts(&facts);
        });
        Ok(())
    }

    /// Takes in that a step is done. Gives the supervisor's reason to stop, where it has one.
    #[pyo3(signature = (step, epoch=None))]
    fn tell(&self, py: Python<'_>, step: u64, epoch: Option<f64>) -> Option<String> {
        self.with(py, |state| {
            state
                .board
                .report(StepSource::Socket, Progress { step: Some(step), epoch, ..Progress::default() });
            state.link.tell_step(step, epoch);
            state.link.limit_notice()
        })
        .flatten()
    }

    /// Takes a reading: `None` once the tree has ended, JSON otherwise.
    fn sample(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let Some(told) = self.with(py, State::sample) else { return Ok(None) };
        told.map_err(|error| probe_error(&error))?.map(|told| json(&told)).transpose()
    }

    /// Looks without a reading: why to stop, where it is time.
    fn look(&self, py: Python<'_>) -> Option<String> {
        self.with(py, State::look).flatten()
    }

    /// The last assessment as JSON.
    fn assessment(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |state| state.last.as_ref().map(|reading| state.json(reading))).flatten().transpose()
    }

    /// The run so far, with its curve.
    fn run(&self, py: Python<'_>) -> Option<Judged> {
        self.with(py, |state| {
            let analyst = state.recorder.analyst().clone();
            Judged::new(Run { name: state.name.clone(), assessment: analyst.assessment(), analyst })
        })
    }

    /// Seconds spent on readings and looks.
    #[getter]
    fn cost(&self, py: Python<'_>) -> f64 {
        self.with(py, |state| state.cost.as_secs_f64()).unwrap_or(0.0)
    }

    /// Reads steps from the output of the watched processes, where that goes to a file; gives the files.
    fn read_steps(&self, py: Python<'_>) -> Vec<PathBuf> {
        self.with(py, State::read_steps).unwrap_or_default()
    }
}

impl Monitor {
    /// Works on the state without the interpreter's lock; `None` in a forked child, whose copy of our lock nobody
    /// may ever open.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut State) -> T + Send) -> Option<T> {
        let state = self.state.as_ref().filter(|_| !self.is_inherited())?;
        Some(py.detach(|| work(&mut lock(state))))
    }
}

impl Drop for Monitor {
    /// A forked child gives nothing back: the folder of a socket and the driver's handles belong to its
    /// parent.
    fn drop(&mut self) {
        if self.is_inherited() {
            std::mem::forget(self.state.take());
        }
    }
}

/// A panic elsewhere leaves numbers of an earlier reading, which do no harm.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a trace; it replaces an older one, but no other file.
fn create_trace(path: &Path, name: &str, facts: &RunFacts) -> PyResult<TraceWriter> {
    if path.exists() && !may_replace_trace(path)? {
        let path = path.display();
        return Err(Exception::Config.saying(format!(
            "{path} is not a trace of Model Garden and is not replaced: give another path"
        )));
    }
    TraceWriter::create(path, &TraceHeader::new(name, facts.clone())).map_err(|error| trace_error(&error))
}

impl State {
    fn new(
        pid: Option<i32>,
        facts: RunFacts,
        name: String,
        stop: Option<Duration>,
        trace: Option<TraceWriter>,
    ) -> Result<Self, ProbeError> {
        let board = StepBoard::default();
        let probe = Probe::attach(pid.unwrap_or_else(|| process::id().cast_signed()))?;
        let link = if pid.is_none() { SupervisorLink::from_environment() } else { SupervisorLink::default() };
        link.tell_facts(&facts);
        let limit = stop.map(|grace| OwnLimit::new(facts.limit, grace));
        let recorder = Recorder::new(probe, board.clone(), facts, trace);
        Ok(Self { name, recorder, board, limit, link, last: None, cost: Duration::ZERO })
    }

    fn sample(&mut self) -> Result<Option<Told>, ProbeError> {
        let began = Instant::now();
        let Some(reading) = self.recorder.tick()? else { return Ok(None) };
        let stop = self.limit.as_mut().and_then(|limit| limit.judge(&mut self.recorder, &reading));
        let sample = &reading.snapshot.sample;
        let cost = began.elapsed();
        self.cost += cost;
        let told = Told {
            t: sample.t,
            step: sample.step,
            epoch: sample.epoch,
            owned: sample.owned(),
            resident: sample.rss,
            processes: sample.procs.unwrap_or(1),
            gpu: sample.gpu,
            stop,
            lost_trace: self.recorder.take_lost_trace().map(|error| error.to_string()),
            verdict: reading.assessment.verdict.name(),
            cost: cost.as_secs_f64(),
        };
        self.last = Some(reading);
        Ok(Some(told))
    }

    fn look(&mut self) -> Option<String> {
        let began = Instant::now();
        let stop = self.limit.as_mut()?.look(&mut self.recorder);
        self.cost += began.elapsed();
        stop
    }

    fn json(&self, reading: &Reading) -> PyResult<String> {
        let mut assessment = reading.assessment.clone();
        name_parameters(&mut assessment);
        to_json(&self.name, self.recorder.analyst().samples(), &reading.facts, &assessment)
    }

    fn read_steps(&mut self) -> Vec<PathBuf> {
        let Some(reading) = &self.last else { return Vec::new() };
        let processes: Vec<i32> = reading.snapshot.processes.iter().map(|row| row.pid).collect();
        // Without a file that was named, none that cannot be read is an error.
        let Ok(log) = LogFollower::open(&processes, None, self.board.clone(), &StepPatterns::default())
        else {
            return Vec::new();
        };
        let files = log.files().map(Path::to_owned).collect();
        self.recorder.follow_log(log);
        files
    }
}
