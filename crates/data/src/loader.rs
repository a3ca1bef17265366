//! Batches of a dataset, epoch after epoch, in memory that does not grow.
//!
//! Takes a dataset, a [`Recipe`], the rows to skip and a [`Position`] to start from, and gives [`Batch`]es
//! that threads prepare ahead. Which rows a batch has is decided before any row is read, so it depends
//! neither on threads nor on the other ranks of a run: every batch is full except the last of an epoch. A row
//! that turns out unusable only when it is read is counted, and its batch is smaller by it.

use crate::{
    batch::{Batch, Sample},
    course::{Course, CourseBatch, CourseOptions},
    dataset::Dataset,
    error::{BadRow, DataError, RowError, counted},
    position::Position,
    prefetch::{Prefetch, Weight},
    prepare::{Prepared, Preparer},
    recipe::{LeftOut, Recipe},
    row::RowId,
    share::RowShare,
    skipped::SkippedRows,
    turns::Turns,
};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

/// How many bad rows are named in the summary; all are counted.
const NAMED_BAD_ROWS: usize = 20;

/// What to do about a bad row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnBadRow {
    /// Stop the run and name the row.
    Fail,
    /// Count and skip it, up to this share of an epoch's rows, 0 to 1.
    Skip {
        /// The share beyond which the run stops.
        max_share: f64,
    },
}

/// What to do about a row that is too long. It is never truncated: half an image has no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnLongRow {
    /// Count it and leave it out.
    #[default]
    Drop,
    /// Stop the run and name the row.
    Fail,
}

/// How rows become batches.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// Rows in a batch.
    pub batch_size: usize,
    /// The seed of the order; without one, rows come in the order of their files.
    pub shuffle: Option<u64>,
    /// The number of epochs, counted from the first of the run.
    pub epochs: u64,
    /// Where to begin.
    pub start: Position,
    /// Threads that prepare rows.
    pub workers: usize,
    /// Bytes of prepared rows that may wait to be used.
    pub prefetch_bytes: u64,
    /// What to do about bad rows.
    pub on_bad_row: OnBadRow,
    /// What to do about rows that are too long.
    pub on_long_row: OnLongRow,
    /// Which rows are read.
    pub share: RowShare,
    /// The rows among them that are passed over unread, such as those that a survey found unusable.
    pub skip: Arc<SkippedRows>,
    /// Which batches are read here and which by other ranks.
    pub turns: Turns,
}

impl Default for LoaderOptions {
    /// Two threads keep ahead of any CPU trainer; 32 MB hold ten photos of 1280 tokens, or thousands of
    /// texts.
    fn default() -> Self {
        Self {
            batch_size: 1,
            shuffle: Some(0),
            epochs: 1,
            start: Position::default(),
            workers: 2,
            prefetch_bytes: 32_000_000,
            on_bad_row: OnBadRow::Fail,
            on_long_row: OnLongRow::Drop,
            share: RowShare::All,
            skip: Arc::default(),
            turns: Turns::default(),
        }
    }
}

/// What became of the rows that this loader read, over all epochs.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Rows that went into batches.
    pub used: u64,
    /// Rows that were too long.
    pub too_long: u64,
    /// Rows without a label.
    pub no_label: u64,
    /// Rows that were bad.
    pub bad: u64,
    /// The first bad rows, each once, with their reasons.
    pub bad_rows: Vec<RowError>,
}

/// A batch of the run, whichever rank reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchTurn {
    /// The epoch that its rows belong to.
    pub epoch: u64,
    /// The row that comes after it. After the last usable row of an epoch, that is the first of the next
    /// epoch.
    pub end: Position,
    /// The batch, where it is this rank's to read. It is empty if none of its rows could be used.
    pub batch: Option<Batch>,
}

/// What a thread makes of a row.
enum Outcome {
    Ready(Sample),
    LeftOut(RowId, LeftOut),
    Bad(RowId, BadRow),
    Failed(DataError),
}

impl Weight for Outcome {
    fn bytes(&self) -> u64 {
        match self {
            Self::Ready(sample) => (sample.patches.capacity() + sample.encoded.ids.capacity() * 5) as u64,
            _ => 0,
        }
    }
}

/// Patch buffers that wait to be filled again.
type Pool = Arc<Mutex<Vec<Vec<u8>>>>;

/// Makes batches.
pub struct Loader {
    /// Prepares the rows of this rank's batches.
    prefetch: Prefetch<Outcome>,
    /// The batches of all ranks.
    course: Course,
    /// Whether any of them is this rank's.
    has_turns: bool,
    rows: u64,
    options: LoaderOptions,
    tally: Tally,
    /// The epoch of the last turn, and the bad rows that were read here in it.
    epoch: u64,
    bad_in_epoch: u64,
    pool: Pool,
    spare: Option<Batch>,
    finished: bool,
}

impl Loader {
    /// Starts the threads. It is an error if no row is left to read.
    pub fn start(
        dataset: Arc<Dataset>,
        recipe: Arc<Recipe>,
        options: LoaderOptions,
    ) -> Result<Self, DataError> {
        let pool = Pool::default();
        let preparer = |_| {
            let (mut preparer, pool) = (Preparer::new(dataset.clone(), recipe.clone()), pool.clone());
            move |row| {
                let buffer = lock(&pool).pop().unwrap_or_default();
                match preparer.prepare(row, buffer) {
                    Ok(Prepared::Ready(sample)) => Outcome::Ready(sample),
                    Ok(Prepared::LeftOut(id, why)) => Outcome::LeftOut(id, why),
                    Err(DataError::Row { row, reason }) => Outcome::Bad(row, reason),
                    Err(error) => Outcome::Failed(error),
                }
            }
        };
        let workers = (0..options.workers.max(1)).map(preparer).collect();
        Self::with_workers(dataset.rows(), workers, options, pool.clone())
    }

    fn with_workers<W>(
        all: u64,
        workers: Vec<W>,
        options: LoaderOptions,
        pool: Pool,
    ) -> Result<Self, DataError>
    where
        W: FnMut(u64) -> Outcome + Send + 'static,
    {
        let course = Course::new(
            CourseOptions {
                share: options.share,
                all,
                skip: options.skip.clone(),
                shuffle: options.shuffle,
                epochs: options.epochs,
                batch_size: options.batch_size as u64,
            },
            options.start,
        )?;
        // Threads work ahead across the end of an epoch.
        let own_rows = course.clone().rows_of(options.turns);
        let has_turns = course.has_batch_of(options.turns);
        let prefetch = Prefetch::start(workers, options.prefetch_bytes, own_rows);
        Ok(Self {
            prefetch,
            course,
            has_turns,
            rows: options.share.rows(all),
            epoch: options.start.epoch,
            options,
            tally: Tally::default(),
            bad_in_epoch: 0,
            pool,
            spare: None,
            finished: false,
        })
    }

    /// The next batch that this rank reads, which may be empty; `None` after the last epoch, and for a rank
    /// that no epoch has a batch for.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        if !self.has_turns {
            return Ok(None);
        }
        while let Some(turn) = self.next_turn()? {
            if turn.batch.is_some() {
                return Ok(turn.batch);
            }
        }
        Ok(None)
    }

    /// The next batch of the run, those of other ranks included; `None` after the last epoch. Every rank that
    /// starts at the same position sees the same turns.
    pub fn next_turn(&mut self) -> Result<Option<BatchTurn>, DataError> {
        if self.finished {
            return Ok(None);
        }
        let turn = self.course.next_batch().map(|planned| self.turn(planned)).transpose();
        // An error is final: asking again must not skip the row that failed.
        self.finished = !matches!(turn, Ok(Some(_)));
        turn
    }

    /// How many batches of an epoch are left, those of other ranks included, but at most as many as asked for.
    pub fn ahead(&self, epoch: u64, most: u64) -> u64 {
        let mut course = self.course.clone();
        let batches = std::iter::from_fn(|| course.next_batch()).take_while(|batch| batch.epoch == epoch);
        batches.take(usize::try_from(most).unwrap_or(usize::MAX)).count() as u64
    }

    fn turn(&mut self, planned: CourseBatch) -> Result<BatchTurn, DataError> {
        let CourseBatch { number, epoch, end, .. } = planned;
        if epoch != self.epoch {
            self.epoch = epoch;
            self.bad_in_epoch = 0;
        }
        let own = self.options.turns.has(number);
        let batch = own.then(|| self.read(planned)).transpose()?;
        Ok(BatchTurn { epoch, end, batch })
    }

    fn read(&mut self, planned: CourseBatch) -> Result<Batch, DataError> {
        let mut batch = self.spare.take().unwrap_or_default();
        batch.clear();
        (batch.epoch, batch.end) = (planned.epoch, planned.end);
        for _ in 0..planned.rows {
            let outcome = self.prefetch.take_next().map_err(|_| DataError::Worker)?;
            self.take(outcome.ok_or(DataError::Worker)?, &mut batch)?;
        }
        Ok(batch)
    }

    /// Takes a used batch back, to reuse its buffers.
    pub fn recycle(&mut self, batch: Batch) {
        self.spare = Some(batch);
    }

    /// Bad rows that this rank read in the epoch of the last turn.
    pub fn bad_in_epoch(&self) -> u64 {
        self.bad_in_epoch
    }

    /// What became of the rows that were read here so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    fn take(&mut self, outcome: Outcome, batch: &mut Batch) -> Result<(), DataError> {
        match outcome {
            Outcome::Ready(mut sample) => {
                batch.push(&sample);
                self.tally.used += 1;
                sample.patches.clear();
                lock(&self.pool).push(sample.patches);
            }
            Outcome::LeftOut(_, LeftOut::NoLabel) => self.tally.no_label += 1,
            Outcome::LeftOut(row, why @ LeftOut::TooLong { .. }) => match self.options.on_long_row {
                OnLongRow::Drop => self.tally.too_long += 1,
                OnLongRow::Fail => return Err(DataError::Row { row, reason: BadRow::LeftOut(why) }),
            },
            Outcome::Bad(row, reason) => self.bad_row(row, reason)?,
            Outcome::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn bad_row(&mut self, row: RowId, reason: BadRow) -> Result<(), DataError> {
        let OnBadRow::Skip { max_share } = self.options.on_bad_row else {
            return Err(DataError::Row { row, reason });
        };
        self.tally.bad += 1;
        self.bad_in_epoch += 1;
        let fault = RowError { row, reason };
        if self.bad_in_epoch as f64 > max_share * self.rows as f64 {
            return Err(DataError::TooManyBadRows {
                bad: self.bad_in_epoch,
                rows: self.rows,
                max_share,
                last: Box::new(fault),
            });
        }
        self.tally.name(fault);
        Ok(())
    }
}

impl Tally {
    /// Adds what another loader counted.
    pub fn add(&mut self, other: &Self) {
        self.used += other.used;
        self.too_long += other.too_long;
        self.no_label += other.no_label;
        self.bad += other.bad;
        other.bad_rows.iter().cloned().for_each(|fault| self.name(fault));
    }

    fn name(&mut self, fault: RowError) {
        let named =
            |one: &RowError| one.row == fault.row && one.reason.to_string() == fault.reason.to_string();
        if self.bad_rows.len() < NAMED_BAD_ROWS && !self.bad_rows.iter().any(named) {
            self.bad_rows.push(fault);
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { used, too_long, no_label, bad, .. } = self;
        let used = counted(*used, "row");
        write!(f, "{used} used, {too_long} too long, {no_label} without a label, {bad} bad")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
