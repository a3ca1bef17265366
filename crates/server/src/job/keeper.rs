//! The process that keeps one attempt of a job: starts the trainer, watches its memory, records how it ended.
//!
//! Takes a job's folder and the number of an attempt. It holds the folder's lock for its life, so that a job never
//! runs twice at once, and it outlives the server, so that a server that is killed loses nothing. However the keeper
//! ends, the supervisor's guard leaves no process of the trainer behind.

use super::{
    folder::JobFolder,
    record::{AttemptEnd, AttemptRecord, How, LastReading, Phase, sentences},
};
use crate::{energy, job::runner::ProcessName};
use garden_memory::{
    Event, Observer, Reading, RunFacts, StepPatterns, StopSignal, TraceHeader, TraceWriter, Verdict, Wake,
    listen,
    supervise::{self, GuardProgram, OnLimit, Orders, Outcome, Passage, Surroundings},
};
use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    path::Path,
    sync::mpsc::channel,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Readings that a record keeps of an attempt's end.
const LAST_READINGS: usize = 8;
/// Two readings a second follow a step of a small model and cost nothing beside one of a large model.
const INTERVAL: Duration = Duration::from_millis(500);
/// A checkpoint of a 3B adapter takes a few seconds, and a step that has begun may take a minute.
const GRACE: Duration = Duration::from_secs(300);

/// How often, and with which pauses, the job's lock is asked for.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Why an attempt was not kept.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum KeepError {
    #[error("another process keeps this job")]
    Kept,
    #[error("attempt {asked} of the job should not run any more")]
    Stale { asked: u32 },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What a keeper is told.
#[derive(Debug, Clone)]
pub struct KeepOrders<'a> {
    /// The job's folder.
    pub job: &'a Path,
    /// Which attempt this is.
    pub attempt: u32,
    /// Bytes that the trainer may take.
    pub limit: u64,
    /// The program that trains: `model-garden`.
    pub program: &'a Path,
    /// The program that guards the trainer.
    pub guard: GuardProgram,
}

/// Keeps one attempt to its end.
pub fn keep(orders: &KeepOrders<'_>) -> Result<(), KeepError> {
    let folder = JobFolder::at(orders.job);
    let _lock = patiently(|| folder.keep())?.ok_or(KeepError::Kept)?;
    // A keeper may come late: after its server died, or from a scheduler that was thought to have refused it. The state
    // names the attempt that counts, and whether one should run at all.
    let state = folder.read_state()?;
    if state.attempt != orders.attempt || state.phase != Phase::Running {
        return Err(KeepError::Stale { asked: orders.attempt });
    }
    let mut record = AttemptRecord {
        process: ProcessName::of_this().to_string(),
        host: host(),
        started_at: seconds_now(),
        limit_bytes: orders.limit,
        end: None,
    };
    folder.write_attempt(orders.attempt, &record)?;
    record.end = Some(supervised(orders, &folder));
    folder.write_attempt(orders.attempt, &record)?;
    Ok(())
}

/// Tries for a moment: whoever looks whether a job is kept holds its lock for an instant.
fn patiently<T>(mut take: impl FnMut() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    for _ in 0..LOCK_TRIES {
        if let Some(taken) = take()? {
            return Ok(Some(taken));
        }
        thread::sleep(LOCK_PAUSE);
    }
    Ok(None)
}

fn supervised(orders: &KeepOrders<'_>, folder: &JobFolder) -> AttemptEnd {
    let meter = energy::Meter::start();
    let mut witness = Witness::default();
    let outcome = run(orders, folder, &mut witness);
    let how = match outcome {
        Ok(_) if witness.killed_at_limit => How::KilledAtLimit,
        Ok(Outcome::Exited(code)) => How::Exited(code),
        Ok(Outcome::Signaled(signal)) => How::Signaled(signal),
        Ok(Outcome::StoppedAtLimit) => How::StoppedAtLimit,
        Err(error) => {
            witness.words.push(error);
            How::NotStarted
        }
    };
    AttemptEnd {
        at: seconds_now(),
        how,
        words: witness.words,
        verdict: witness.verdict,
        judgement: witness.judgement,
        peak_bytes: witness.peak,
        last_readings: witness.readings.into(),
        energy_joules: meter.joules(),
    }
}

fn run(orders: &KeepOrders<'_>, folder: &JobFolder, witness: &mut Witness) -> Result<Outcome, String> {
    let words = |error: &dyn std::error::Error| {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        text
    };
    let facts = RunFacts { limit: Some(orders.limit), ..RunFacts::default() };
    let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
    let header = TraceHeader::new(name, facts.clone());
    // A trace that cannot be written, on a full disk, is no reason not to train.
    let trace = TraceWriter::create(folder.trace(orders.attempt), &header)
        .inspect_err(|error| witness.words.push(words(error)))
        .ok();
    let supervision = Orders {
        guard: orders.guard.clone(),
        command: command(orders, folder),
        interval: INTERVAL,
        duration: None,
        facts,
        on_limit: OnLimit::Stop,
        stop_signal: StopSignal::default(),
        grace: GRACE,
        max_restarts: 0,
        restart_args: Vec::new(),
        patterns: StepPatterns::default(),
        who: false,
    };
    let (sender, wakes) = channel::<Wake>();
    listen(sender.clone()).map_err(|error| words(&error))?;
    let passage = Passage::Through;
    let surroundings = Surroundings { wakes: &wakes, sender: &sender, passage, trace, observer: witness };
    supervise::run(&supervision, surroundings).map_err(|error| words(&error))
}

fn command(orders: &KeepOrders<'_>, folder: &JobFolder) -> Vec<OsString> {
    let settings = folder.settings();
    let words: [&std::ffi::OsStr; 6] = [
        orders.program.as_os_str(),
        "train-vision".as_ref(),
        "--config".as_ref(),
        settings.as_os_str(),
        "--log-format".as_ref(),
        "json".as_ref(),
    ];
    words.map(OsString::from).to_vec()
}

/// Remembers what a record says of an attempt's memory.
#[derive(Default)]
struct Witness {
    readings: VecDeque<LastReading>,
    verdict: Option<Verdict>,
    judgement: Vec<String>,
    words: Vec<String>,
    peak: u64,
    killed_at_limit: bool,
}

impl Observer for Witness {
    fn reading(&mut self, reading: &Reading) {
        let sample = &reading.snapshot.sample;
        if self.readings.len() == LAST_READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(LastReading {
            t: sample.t,
            step: sample.step,
            resident_bytes: sample.rss,
            owned_bytes: sample.owned(),
        });
        self.peak = self.peak.max(sample.rss);
        self.verdict = Some(reading.assessment.verdict);
        self.judgement = sentences(&reading.assessment);
    }

    fn event(&mut self, event: &Event) {
        self.killed_at_limit |= matches!(event, Event::KilledAtLimit { .. });
        if event.matters() {
            self.words.push(event.to_string());
        }
    }
}

/// Seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
