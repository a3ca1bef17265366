//! Runs of the native engine, and their plans.
//!
//! Takes the settings of a run as JSON and gives its report as JSON. A run works on a thread of its own, without the
//! interpreter's lock. Its events are handed to a Python callable on the thread that called, where Ctrl-C is heard too: the run then
//! writes a checkpoint and ends before the exception is raised.

use crate::errors::Exception;
use garden_train::{
    Cancel, Event, KeyError, MEMORY_TRACE, Planned, RunConfig, RunError, RunReport, Setting, TrainOptions,
    events::Record,
    groups::{LaunchError, launched},
    train,
};
use pyo3::prelude::*;
use rayon::ThreadPoolBuilder;
use serde_json::{Value, json};
use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::{
        OnceLock,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// Events that may wait for the callable: the run waits when it is this far behind.
const EVENTS_AHEAD: usize = 64;
/// How often Ctrl-C is looked for while nothing happens.
const LISTEN_EVERY: Duration = Duration::from_millis(100);
/// The width of a plan as text.
const PLAN_WIDTH: usize = 80;

/// Trains, and gives the report. `observer` is called with each event as a line of JSON, unless it is `None`.
#[pyfunction]
#[pyo3(signature = (options, observer=None))]
pub(crate) fn train_run(py: Python<'_>, options: &str, observer: Option<Py<PyAny>>) -> PyResult<String> {
    let config = RunConfig::resolve(parsed(options)?).map_err(|error| wrong(&error))?;
    if let Some(launch) = launched() {
        return Err(Exception::Training.saying(LaunchError::WithoutMpi(launch)));
    }
    let cancel = Cancel::default();
    let (sender, mut events) = sync_channel(EVENTS_AHEAD);
    let of_run = cancel.clone();
    let run = thread::Builder::new().name("model-garden run".into());
    let run = run.spawn(move || with_own_threads(|| tell_while_training(&config, &of_run, &sender))?);
    let run = run.map_err(|error| Exception::Training.saying(format!("no thread for the run: {error}")))?;
    let raised = hand_on(py, &mut events, observer, &cancel);
    let report = py.detach(|| run.join());
    // A panic was already told on standard error.
    let report =
        report.unwrap_or_else(|_| Err("the run ended by a defect of Model Garden, told above".into()));
    let report = report.map_err(|message| Exception::Training.saying(with_keys(&message)));
    let Some(raised) = raised else { return Ok(report_json(&report?).to_string()) };
    // Whoever interrupts a run counts on its checkpoint: that there is none must be seen.
    if let Err(error) = report {
        raised.set_cause(py, Some(error));
    }
    Err(raised)
}

/// Works with threads of this process. The engine's own are those of the process that trained first: a fork copies
/// none of them, and work that is given to them would wait for ever.
fn with_own_threads<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, String> {
    static TRAINED_FIRST: OnceLock<u32> = OnceLock::new();
    if *TRAINED_FIRST.get_or_init(process::id) == process::id() {
        return Ok(work());
    }
    let pool = ThreadPoolBuilder::new().build().map_err(|error| error.to_string())?;
    Ok(pool.install(work))
}

fn tell_while_training(
    config: &RunConfig,
    cancel: &Cancel,
    sender: &SyncSender<String>,
) -> Result<RunReport, String> {
    let mut observer = |event: &Event| {
        // Nobody listens any more only when the caller is gone, and then nothing is left to tell.
        let _ = sender.send(Record::now(event.clone()).to_json());
    };
    let run = catch_unwind(AssertUnwindSafe(|| train(config, &mut observer, cancel)));
    run.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(|error: RunError| error.to_string())
}

/// Hands events to the callable until the run is over. Gives what the callable or a signal handler raised; the run
/// was then asked to end, and has.
fn hand_on(
    py: Python<'_>,
    events: &mut Receiver<String>,
    mut observer: Option<Py<PyAny>>,
    cancel: &Cancel,
) -> Option<PyErr> {
    let mut raised = None;
    loop {
        let waiting = &mut *events;
        let result = match py.detach(move || waiting.recv_timeout(LISTEN_EVERY)) {
            Ok(line) => observer.as_ref().map_or(Ok(()), |observer| observer.call1(py, (line,)).map(drop)),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => return raised,
        };
        if let Err(error) = result {
            // It would only raise again.
            observer = None;
            cancel.cancel();
            raised.get_or_insert(error);
        }
        if let Err(interrupt) = py.check_signals() {
            cancel.cancel();
            raised.get_or_insert(interrupt);
        }
    }
}

/// Plans a run. Gives the plan as JSON and as text.
#[pyfunction]
#[pyo3(signature = (options, image_tokens=None))]
pub(crate) fn plan_run(
    py: Python<'_>,
    options: &str,
    image_tokens: Option<usize>,
) -> PyResult<(String, String)> {
    let options = parsed(options)?;
    py.detach(|| {
        let planned = Planned::of(options, image_tokens, &()).map_err(|error| wrong(&error))?;
        let report = planned.report(written);
        let style = garden_memory::report::Style { color: false, width: PLAN_WIDTH };
        Ok((report.json().to_string(), report.text(style)))
    })
}

/// The settings that a run may have, as JSON: name, group, help, default and kind of each.
#[pyfunction]
pub(crate) fn train_settings() -> PyResult<String> {
    serde_json::to_string(&TrainOptions::describe()).map_err(|error| Exception::Config.saying(error))
}

/// Settings that cannot be used, named as Python writes them.
fn wrong(error: &dyn Display) -> PyErr {
    Exception::Config.saying(with_keys(&error.to_string()))
}

/// The same text with `learning_rate` where the libraries say `learning-rate`.
fn with_keys(text: &str) -> String {
    // Of a path or a longer word, nothing is a setting.
    let ends_word = |c: char| !(c.is_alphanumeric() || "-_./".contains(c));
    let named = text.split_inclusive(ends_word).map(|part| {
        let word = part.trim_end_matches(ends_word).trim_end_matches('.');
        let key = word.replace('-', "_");
        if TrainOptions::KEYS.contains(&&*key) { part.replacen(word, &key, 1) } else { part.to_owned() }
    });
    named.collect()
}

fn parsed(options: &str) -> PyResult<TrainOptions> {
    let keys: Value = serde_json::from_str(options).map_err(|error| wrong(&error))?;
    let keys = keys.as_object().ok_or_else(|| wrong(&"settings are names with values"))?;
    TrainOptions::from_keys(keys).map_err(|error: KeyError| wrong(&error))
}

/// A setting as Python writes it.
fn written(setting: &Setting) -> String {
    let name = setting.name.replace('-', "_");
    match setting.value.as_str() {
        "true" => format!("{name}=True"),
        value if value.parse::<f64>().is_ok() => format!("{name}={value}"),
        value => format!("{name}='{value}'"),
    }
}

fn report_json(report: &RunReport) -> Value {
    json!({
        "reason": report.reason,
        "message": report.message,
        "output_dir": report.output_dir.to_string_lossy(),
        "checkpoint": report.checkpoint.as_deref().map(|path| path.to_string_lossy()),
        "state": report.state,
        "memory": report.memory.as_ref().map(|memory| json!({
            "peak_bytes": memory.peak,
            "limit_bytes": memory.limit,
            "trace": MEMORY_TRACE,
        })),
    })
}
