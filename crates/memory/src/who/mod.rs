//! Asks the Python processes of a command who holds the memory by which they grow.
//!
//! Takes the readings of a run and gives a [`WhoReport`]. A module that Python imports as it starts opens a line to us; the process that
//! grows most is asked for a first census once the run has begun, and for comparisons with it while it grows (see [`Schedule`]). Nothing
//! waits for an answer.

mod install;
mod line;
mod report;
mod schedule;

pub use report::{Explained, WhoReport};

use crate::{record::Reading, steps::StepBoard};
use line::Switchboard;
use schedule::{Point, Schedule};
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// What to ask of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Mark,
    Explain,
}

/// Asks while a command runs.
#[derive(Debug)]
pub(crate) struct Who {
    folder: PathBuf,
    switchboard: Switchboard,
    board: StepBoard,
    schedule: Arc<Mutex<Schedule>>,
}

impl Who {
    /// Writes what Python needs into `folder`, and listens there.
    pub fn open(folder: &Path, board: StepBoard) -> io::Result<Self> {
        install::install(folder)?;
        let switchboard = Switchboard::open(&folder.join("socket"))?;
        Ok(Self { folder: folder.to_owned(), switchboard, board, schedule: Arc::default() })
    }

    /// The variable that makes the command's Python processes call.
    pub fn environment(&self) -> (&'static str, OsString) {
        let existing = std::env::var_os(install::VARIABLE);
        (install::VARIABLE, install::python_path(&self.folder, existing))
    }

    /// Asks what this reading calls for. Never waits.
    pub fn reading(&self, reading: &Reading) {
        let rows = &reading.snapshot.processes;
        self.switchboard.keep(|pid| rows.iter().any(|row| row.pid == pid));
        let mut schedule = lock(&self.schedule);
        let Some((row, question)) = schedule.reading(reading, &self.switchboard.pids()) else { return };
        let Some(line) = self.switchboard.take(row.pid) else { return };
        schedule.asking(true);
        let at = Point::of(row, &reading.snapshot.sample);
        let asked = Asked { pid: row.pid, command: row.command.clone(), at, question };
        let (schedule, board) = (Arc::clone(&self.schedule), self.board.clone());
        thread::spawn(move || {
            let answer = line.ask(&asked.words(), |moment| board.step_at(moment));
            let mut schedule = lock(&schedule);
            schedule.asking(false);
            schedule.answered(asked, answer);
        });
    }

    /// What is known by now.
    pub fn report(&self) -> WhoReport {
        lock(&self.schedule).report()
    }
}

fn lock(schedule: &Mutex<Schedule>) -> MutexGuard<'_, Schedule> {
    schedule.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A question under way.
struct Asked {
    pid: i32,
    command: String,
    /// The reading that called for it.
    at: Point,
    question: Question,
}

impl Asked {
    fn words(&self) -> Value {
        let ask = match self.question {
            Question::Mark => "mark",
            Question::Explain => "explain",
        };
        json!({ "ask": ask })
    }
}
