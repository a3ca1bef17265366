//! Recorded memory, judged: a trace of any tool, or numbers in arrays.
//!
//! Takes a path, or numpy arrays that are read where they lie, and gives a [`Judged`] run. That has the
//! assessment as JSON and the run as text, picture and page.

use crate::{
    errors::Exception,
    memory_words::{name_parameters, trace_error},
};
use garden_memory::{
    Analyst, Assessment, ByteSize, RunFacts, Sample, TraceOptions,
    probe::memory_ceiling,
    report::{self, Chart, Run, Style},
};
use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::{
    prelude::*,
    types::{PyDict, PyDictMethods},
};
use serde::Serialize;
use std::{path::PathBuf, str::FromStr};

/// A run that was judged, with its curve.
#[pyclass(frozen, module = "model_garden._native")]
pub(crate) struct Judged(Run);

impl Judged {
    pub(crate) fn new(mut run: Run) -> Self {
        name_parameters(&mut run.assessment);
        Self(run)
    }
}

/// The assessment, and which run it is about.
#[derive(Serialize)]
struct Answered<'a> {
    name: &'a str,
    samples: u64,
    facts: &'a RunFacts,
    ending: String,
    #[serde(flatten)]
    assessment: &'a Assessment,
}

/// An assessment as JSON, with the name and the facts of its run.
pub(crate) fn to_json(
    name: &str,
    samples: u64,
    facts: &RunFacts,
    assessment: &Assessment,
) -> PyResult<String> {
    json(&Answered { name, samples, facts, ending: assessment.ending(), assessment })
}

pub(crate) fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| Exception::Trace.saying(error))
}

#[pymethods]
impl Judged {
    /// The assessment as JSON.
    fn json(&self) -> PyResult<String> {
        let Run { name, analyst, assessment } = &self.0;
        to_json(name, analyst.samples(), analyst.facts(), assessment)
    }

    /// The report for a terminal of so many columns.
    fn text(&self, py: Python<'_>, width: usize) -> String {
        py.detach(|| report::text(&self.0, Style { color: false, width }))
    }

    /// The curve as a picture.
    fn svg(&self, py: Python<'_>) -> String {
        py.detach(|| report::svg(&self.0))
    }

    /// The page, with texts below it: pairs of a title and lines.
    fn html(&self, py: Python<'_>, texts: Vec<(String, String)>) -> String {
        let texts: Vec<(&str, &str)> = texts.iter().map(|(title, text)| (&**title, &**text)).collect();
        py.detach(|| report::html_with(std::slice::from_ref(&self.0), &texts))
    }

    /// What the picture shows, as JSON.
    fn chart(&self, py: Python<'_>) -> PyResult<String> {
        let chart: Chart = py.detach(|| report::chart(&self.0));
        json(&chart)
    }
}

/// What Python says of a run; the values were checked there.
pub(crate) fn facts_of(given: &Bound<'_, PyDict>) -> PyResult<RunFacts> {
    Ok(RunFacts {
        dataset_size: value(given, "dataset_size")?,
        samples_per_step: value(given, "samples_per_step")?,
        steps_per_epoch: value(given, "steps_per_epoch")?,
        limit: value(given, "limit")?,
        leave_free: None,
    })
}

fn value<'py, T>(given: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    let Some(value) = given.get_item(name)?.filter(|value| !value.is_none()) else { return Ok(None) };
    value.extract().map(Some).map_err(Into::into)
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(given: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<T>> {
    let text: Option<String> = value(given, name)?;
    text.map(|text| {
        text.parse().map_err(|error| Exception::Config.saying(format!("{name}={text:?}: {error}")))
    })
    .transpose()
}

fn options_of(given: &Bound<'_, PyDict>) -> PyResult<TraceOptions> {
    let mut options = TraceOptions {
        memory: parsed(given, "memory_pattern")?,
        column: value(given, "column")?,
        process: value(given, "process")?,
        unit: parsed(given, "unit")?,
        time_unit: parsed(given, "time_unit")?,
        ..TraceOptions::default()
    };
    options.steps.step = parsed(given, "step_pattern")?;
    options.steps.epoch = parsed(given, "epoch_pattern")?;
    Ok(options)
}

/// Judges a trace, or the file of another tool.
#[pyfunction]
pub(crate) fn analyze_file(
    py: Python<'_>,
    path: PathBuf,
    facts: &Bound<'_, PyDict>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Judged> {
    let (facts, options) = (facts_of(facts)?, options_of(options)?);
    let run = py.detach(|| Run::read(path, &facts, &options)).map_err(|error| trace_error(&error))?;
    Ok(Judged::new(run))
}

/// A column of numbers, where it lies.
#[derive(FromPyObject)]
pub(crate) enum Column<'py> {
    Float(PyReadonlyArray1<'py, f64>),
    Signed(PyReadonlyArray1<'py, i64>),
    Unsigned(PyReadonlyArray1<'py, u64>),
}

impl Column<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Float(values) => values.len(),
            Self::Signed(values) => values.len(),
            Self::Unsigned(values) => values.len(),
        }
    }

    /// The value at a place; `None` where it is no number.
    fn at(&self, index: usize) -> Option<f64> {
        let value = match self {
            Self::Float(values) => *values.get(index)?,
            Self::Signed(values) => *values.get(index)? as f64,
            Self::Unsigned(values) => *values.get(index)? as f64,
        };
        value.is_finite().then_some(value)
    }

    /// The value at a place, refused if it is negative.
    fn positive(&self, name: &str, index: usize) -> PyResult<Option<f64>> {
        match self.at(index) {
            Some(value) if value < 0.0 => Err(Exception::Config
                .saying(format!("{name}[{index}] is {value}: memory, steps and epochs are not negative"))),
            value => Ok(value),
        }
    }
}

/// The places of readings in the order of a column, if they are shuffled as [`TraceReader`] sees it in a file: a
/// column that falls once in a while is that of a run that began again.
///
/// [`TraceReader`]: garden_memory::TraceReader
fn sorted(column: &Column<'_>) -> Option<Vec<usize>> {
    /// One fall in this many readings.
    const OFTEN: usize = 20;
    let (mut last, mut lowest) = (f64::NEG_INFINITY, f64::INFINITY);
    let (mut readings, mut falls, mut inside) = (0, 0, 0);
    for place in (0..column.len()).filter_map(|index| column.at(index)) {
        readings += 1;
        falls += usize::from(place < last);
        inside += usize::from(place < last && place > lowest);
        (last, lowest) = (place, lowest.min(place));
    }
    let is_shuffled = falls > 0 && falls * OFTEN >= readings && (inside > 0 || falls * 2 > readings);
    is_shuffled.then(|| {
        let place = |index: usize| column.at(index).unwrap_or(f64::INFINITY);
        let mut order: Vec<usize> = (0..column.len()).collect();
        order.sort_by(|one, other| place(*one).total_cmp(&place(*other)));
        order
    })
}

/// Judges arrays of equal length; a reading without a number is left out. `scale` is the bytes of one unit of
/// memory.
#[pyfunction]
#[pyo3(signature = (memory, facts, *, scale, name, steps=None, times=None, epochs=None))]
pub(crate) fn analyze_arrays(
    memory: Column<'_>,
    facts: &Bound<'_, PyDict>,
    scale: f64,
    name: String,
    steps: Option<Column<'_>>,
    times: Option<Column<'_>>,
    epochs: Option<Column<'_>>,
) -> PyResult<Judged> {
    let columns = [("steps", &steps), ("times", &times), ("epochs", &epochs)];
    for (name, column) in columns {
        if let Some(column) = column.as_ref().filter(|column| column.len() != memory.len()) {
            let (found, wanted) = (column.len(), memory.len());
            return Err(Exception::Config
                .saying(format!("{name} has {found} values and memory {wanted}: give one for each")));
        }
    }
    let is_counted = steps.is_none() && times.is_none();
    let mut analyst = Analyst::of_recorded(facts_of(facts)?);
    let order = times.as_ref().or(steps.as_ref()).and_then(sorted);
    let in_order = |place: usize| order.as_ref().map_or(place, |order| order[place]);
    let mut places = (0..memory.len()).map(in_order);
    let start = times.as_ref().and_then(|times| places.find_map(|index| times.at(index))).unwrap_or(0.0);
    for index in (0..memory.len()).map(in_order) {
        let Some(bytes) = memory.positive("memory", index)? else { continue };
        let step = match &steps {
            Some(steps) => steps.positive("steps", index)?.map(|step| step as u64),
            None => is_counted.then_some(index as u64 + 1),
        };
        let epoch = epochs.as_ref().map_or(Ok(None), |epochs| epochs.positive("epochs", index))?;
        let t = match &times {
            Some(times) => times.at(index).map(|time| time - start),
            None => Some(0.0),
        };
        let Some(t) = t else { continue };
        analyst.push(&Sample { t, step, epoch, rss: (bytes * scale) as u64, ..Sample::default() });
    }
    let mut assessment = analyst.assessment();
    if order.is_some() {
        let by = if times.is_some() { "time" } else { "step" };
        let note = format!("The readings were not in the order of their {by} and were sorted.");
        assessment.evidence.push(note.into());
    }
    if is_counted {
        let counted = match analyst.samples() {
            1 => "the only reading is counted as a step".to_owned(),
            count => format!("the {count} readings are counted as steps"),
        };
        assessment.evidence.push(format!("Neither steps nor times were given: {counted}.").into());
    }
    Ok(Judged::new(Run { name, analyst, assessment }))
}

/// Reads a size such as `28GB`, or a part of the machine's memory such as `80%`, as bytes.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    let Some(number) = text.trim().strip_suffix('%') else {
        return text.parse().map(|ByteSize(bytes)| bytes).map_err(|error| Exception::Config.saying(error));
    };
    let percent = number.trim().parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
    let bad = || Exception::Config.saying(format!("'{text}' is not a part of the memory: write 1% to 100%"));
    let ceiling = memory_ceiling()
        .ok_or_else(|| Exception::Config.saying("the machine does not say how much memory it has"))?;
    Ok((ceiling as f64 * percent.ok_or_else(bad)? / 100.0) as u64)
}

/// Bytes as people read them, such as `17.5 GB`.
#[pyfunction]
pub(crate) fn format_size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}
