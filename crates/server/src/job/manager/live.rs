//! A job that is not over: its folder, its state, and how far it is.
//!
//! Every change of state is written to the folder before anything is done because of it, told in the history, and then
//! put into the index.

use crate::{
    budget::Reservation,
    job::{
        folder::JobFolder,
        journal::{Cursor, HistoryLine, Journal, Level},
        planner::JobPlan,
        progress::Progress,
        record::{JobRecord, JobState},
    },
    store::JobRow,
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Entries that are read of a journal at once, so that one job does not keep the others waiting.
const ENTRIES: usize = 5_000;

/// What the index holds of a job: enough for a list, without looking into its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Indexed {
    pub record: JobRecord,
    pub state: JobState,
    pub progress: Progress,
    pub plan: Option<JobPlan>,
}

impl Indexed {
    /// Reads a job from its folder, without its progress: for one that the index does not have yet.
    pub(crate) fn read(folder: &JobFolder) -> io::Result<Self> {
        let (record, state) = (folder.read_record()?, folder.read_state()?);
        let live = Live::new(folder.clone(), record, state);
        Ok(live.indexed())
    }
}

/// A plan that is being made; dropping it ends the process that makes it.
pub(super) struct Planning(pub tokio::task::AbortHandle);

impl Drop for Planning {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A job in the manager's hands.
pub(super) struct Live {
    pub folder: JobFolder,
    pub record: JobRecord,
    pub state: JobState,
    pub plan: Option<JobPlan>,
    pub progress: Progress,
    /// Its memory, while it runs.
    pub reservation: Option<Reservation>,
    /// It is not started before this moment.
    pub not_before: Option<Instant>,
    /// A plan that is being made.
    pub planning: Option<Planning>,
    /// Plans that failed for a reason that may pass.
    pub failed_plans: u32,
    /// Whether it was planned again because the server has less memory than before.
    pub planned_again: bool,
    /// When it was found running without a process; the keeper may still be starting.
    pub missing_since: Option<Instant>,
    /// Whether the index is behind.
    pub stale: bool,
    journal: Journal,
}

impl Live {
    pub(super) fn new(folder: JobFolder, record: JobRecord, state: JobState) -> Self {
        let plan = folder.read_plan().ok().and_then(|plan| serde_json::from_value(plan).ok());
        let journal = Journal::new(&folder, Cursor::default());
        Self {
            folder,
            record,
            state,
            plan,
            progress: Progress::default(),
            reservation: None,
            not_before: None,
            planning: None,
            failed_plans: 0,
            planned_again: false,
            missing_since: None,
            stale: true,
            journal,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.record.id
    }

    /// Changes the state, on disk first. Where the disk refuses, nothing has changed.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut JobState)) -> io::Result<()> {
        let mut state = self.state.clone();
        change(&mut state);
        self.folder.write_state(&state)?;
        self.state = state;
        self.stale = true;
        Ok(())
    }

    /// Tells what happened. A full disk costs the line, not the job.
    pub(super) fn tell(&self, level: Level, kind: &str, text: impl Into<String>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let line = HistoryLine { time, level, kind: kind.to_owned(), text: text.into() };
        if let Ok(line) = serde_json::to_string(&line) {
            let _ = self.folder.append_history(&line);
        }
    }

    /// Reads what the trainer said since; true if it said something.
    pub(super) fn read_journal(&mut self) -> bool {
        let mut any = false;
        // A journal that cannot be read at the moment is read at the next.
        while let Ok(Some(entry)) = self.journal.next() {
            self.progress.take(&entry);
            any = true;
        }
        self.stale |= any;
        any
    }

    /// Reads the journal in pieces while a server starts; false once all was read.
    pub(super) fn catch_up(&mut self) -> bool {
        for _ in 0..ENTRIES {
            match self.journal.next() {
                Ok(Some(entry)) => self.progress.take(&entry),
                _ => return false,
            }
        }
        true
    }

    /// The job as it is shown.
    pub(super) fn indexed(&self) -> Indexed {
        Indexed {
            record: self.record.clone(),
            state: self.state.clone(),
            progress: self.progress.clone(),
            plan: self.plan.clone(),
        }
    }

    /// The job as the index holds it.
    pub(super) fn row(&self) -> JobRow {
        JobRow {
            id: self.record.id.clone(),
            created_at: self.record.created_at.cast_signed(),
            state: self.state.word().to_owned(),
            priority: self.state.priority,
            metadata: self.record.metadata.clone(),
            record: serde_json::to_value(self.indexed()).unwrap_or_default(),
        }
    }
}
