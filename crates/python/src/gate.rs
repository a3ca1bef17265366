//! The readings of a test that asks for flat memory.
//!
//! Takes readings at the steps of a test, cheaply and in bounded memory: when there are too many, every
//! second is dropped, so that the rest stay evenly spaced. Judges them when the test is over.

use crate::{
    analysis::{Judged, facts_of},
    memory_words::probe_error,
};
use garden_memory::{Analyst, Sample, probe::Probe, report::Run};
use pyo3::{prelude::*, types::PyDict};
use std::{
    process,
    sync::{Mutex, PoisonError},
};

/// As many readings as a curve has points; beyond them every second is dropped.
const MOST: usize = 320;
/// Readings that a level is read from, at each end: a tenth of them, and this many at most. More of a short test
/// would hide its growth.
const AT_END: usize = 5;

/// The readings of this process tree.
#[pyclass(frozen, module = "model_garden._native")]
pub(crate) struct Readings {
    state: Mutex<State>,
}

struct State {
    probe: Probe,
    samples: Vec<Sample>,
    /// Steps between two readings.
    every: u64,
}

#[pymethods]
impl Readings {
    /// Watches this process and what it starts, from now on.
    #[new]
    fn new(every: u64) -> PyResult<Self> {
        let probe = Probe::attach(process::id().cast_signed()).map_err(|error| probe_error(&error))?;
        Ok(Self { state: Mutex::new(State { probe, samples: Vec::new(), every: every.max(1) }) })
    }

    /// Takes a reading at a step, if it is one of those that are read.
    fn step(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if step.is_multiple_of(state.every) { state.read(step) } else { Ok(()) }
        })
    }

    /// The memory of this moment, in bytes that only the process can give back. It is not kept.
    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let snapshot = state.probe.snapshot().map_err(|error| probe_error(&error))?;
            Ok(snapshot.map_or(0, |snapshot| snapshot.sample.owned()))
        })
    }

    /// The levels at the beginning and at the end; `None` without a reading.
    fn levels(&self) -> Option<(u64, u64)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = state.samples.len();
        let at_end = (count / 10).clamp(1, AT_END).min(count);
        let median = |samples: &[Sample]| {
            let mut owned: Vec<u64> = samples.iter().map(Sample::owned).collect();
            owned.sort_unstable();
            owned.get(owned.len() / 2).copied()
        };
        let samples = &state.samples;
        median(&samples[..at_end]).zip(median(&samples[samples.len() - at_end..]))
    }

    /// The judgement of all readings.
    fn judge(&self, py: Python<'_>, name: String, facts: &Bound<'_, PyDict>) -> PyResult<Judged> {
        let facts = facts_of(facts)?;
        Ok(py.detach(|| {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let mut analyst = Analyst::new(facts);
            state.samples.iter().for_each(|sample| analyst.push(sample));
            Judged::new(Run { name, assessment: analyst.assessment(), analyst })
        }))
    }
}

impl State {
    fn read(&mut self, step: u64) -> PyResult<()> {
        let snapshot = self.probe.snapshot().map_err(|error| probe_error(&error))?;
        let Some(snapshot) = snapshot else { return Ok(()) };
        self.samples.push(Sample { step: Some(step), ..snapshot.sample });
        if self.samples.len() > MOST {
            self.every *= 2;
            let every = self.every;
            self.samples.retain(|sample| sample.step.is_some_and(|step| step.is_multiple_of(every)));
        }
        Ok(())
    }
}
