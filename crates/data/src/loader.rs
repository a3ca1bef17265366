//! Batches of a dataset, epoch after epoch, in memory that does not grow.
//!
//! Takes a dataset, a [`Recipe`] and a [`Position`] to start from, and gives [`Batch`]es that threads prepare
//! ahead. The rows of a batch depend on the seed and the position alone, not on the number of threads. Every
//! batch is full except the last of an epoch; rows that are left out or skipped are counted and replaced by
//! the next in order.

use crate::{
    batch::{Batch, Sample},
    dataset::Dataset,
    error::{BadRow, DataError, RowError, counted},
    position::Position,
    prefetch::{Prefetch, Weight},
    prepare::{Prepared, Preparer},
    recipe::{LeftOut, Recipe},
    row::RowId,
    share::RowShare,
    shuffle::RowOrder,
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
        }
    }
}

/// What became of the rows so far, over all epochs.
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
    prefetch: Prefetch<Outcome>,
    rows: u64,
    options: LoaderOptions,
    position: Position,
    tally: Tally,
    /// Of the current epoch: bad rows, and whether any row was used.
    bad_in_epoch: u64,
    used_in_epoch: bool,
    pool: Pool,
    spare: Option<Batch>,
    finished: bool,
}

impl Loader {
    /// Starts the threads.
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
        let rows = options.share.rows(all);
        let start = options.start.normalised(rows);
        let in_dataset = options.share.finder(all);
        if rows == 0 {
            return Err(DataError::NoRows);
        }
        if start.row >= rows {
            return Err(DataError::BadPosition { row: start.row, rows });
        }
        let shuffle = options.shuffle;
        let order = move |epoch| match shuffle {
            Some(seed) => RowOrder::shuffled(rows, seed, epoch),
            None => RowOrder::sequential(rows),
        };
        // Pieces are the places of all epochs in one line, so that threads work ahead across the end of an
        // epoch.
        let placed = |mut worker: W| {
            let mut current = (0, order(0));
            let in_dataset = in_dataset.clone();
            move |piece: u64| {
                let epoch = piece / rows;
                if current.0 != epoch {
                    current = (epoch, order(epoch));
                }
                // A place inside the epoch always has a row.
                worker(in_dataset(current.1.row(piece % rows).unwrap_or_default()))
            }
        };
        let workers = workers.into_iter().map(placed).collect();
        let first = start.epoch.saturating_mul(rows).saturating_add(start.row);
        let end = options.epochs.saturating_mul(rows);
        let prefetch = Prefetch::start(workers, options.prefetch_bytes, first..end);
        Ok(Self {
            prefetch,
            rows,
            options,
            position: start,
            tally: Tally::default(),
            bad_in_epoch: 0,
            // The rows before the start were used by the run that is resumed.
            used_in_epoch: start.row > 0,
            pool,
            spare: None,
            finished: false,
        })
    }

    /// The next batch; `None` after the last epoch.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        if self.finished {
            return Ok(None);
        }
        let batch = self.fill();
        // An error is final: asking again must not skip the row that failed.
        self.finished = !matches!(batch, Ok(Some(_)));
        batch
    }

    fn fill(&mut self) -> Result<Option<Batch>, DataError> {
        let mut batch = self.spare.take().unwrap_or_default();
        batch.clear();
        while batch.len() < self.options.batch_size.max(1) {
            let Some(outcome) = self.prefetch.take_next().map_err(|_| DataError::Worker)? else { break };
            batch.epoch = self.position.epoch;
            self.take(outcome, &mut batch)?;
            if self.advance()? && !batch.is_empty() {
                break;
            }
        }
        batch.end = self.position;
        Ok(if batch.is_empty() { None } else { Some(batch) })
    }

    /// Takes a used batch back, to reuse its buffers.
    pub fn recycle(&mut self, batch: Batch) {
        self.spare = Some(batch);
    }

    /// What became of the rows so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    fn take(&mut self, outcome: Outcome, batch: &mut Batch) -> Result<(), DataError> {
        match outcome {
            Outcome::Ready(mut sample) => {
                batch.push(&sample);
                self.tally.used += 1;
                self.used_in_epoch = true;
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

    /// Moves on by one row; true at the end of an epoch.
    fn advance(&mut self) -> Result<bool, DataError> {
        let next = self.position.after_row(self.rows);
        if next.epoch == self.position.epoch {
            self.position = next;
            return Ok(false);
        }
        if !self.used_in_epoch {
            return Err(DataError::NoUsableRows { tally: self.tally.to_string() });
        }
        self.position = next;
        self.bad_in_epoch = 0;
        self.used_in_epoch = false;
        Ok(true)
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
mod tests {
    use super::*;
    use crate::text::Encoded;

    const ROWS: u64 = 23;

    /// Rows of one token; every fifth is without a label, the rows in `bad` are bad.
    fn loader(options: LoaderOptions, bad: &'static [u64]) -> Result<Loader, DataError> {
        let pool = Pool::default();
        let worker = move |row: u64| {
            let id = RowId { file: std::path::Path::new("a.jsonl").into(), number: row + 1 };
            if bad.contains(&row) {
                return Outcome::Bad(id, BadRow::Empty);
            }
            if row % 5 == 4 {
                return Outcome::LeftOut(id, LeftOut::NoLabel);
            }
            let encoded = Encoded { ids: vec![row as u32], trained: vec![true], images: vec![] };
            Outcome::Ready(Sample { row, encoded, ..Sample::default() })
        };
        let workers = vec![worker; options.workers];
        Loader::with_workers(ROWS, workers, options, pool)
    }

    fn batches(mut loader: Loader) -> Vec<Batch> {
        std::iter::from_fn(|| loader.next_batch().unwrap()).collect()
    }

    fn options() -> LoaderOptions {
        LoaderOptions { batch_size: 4, epochs: 3, shuffle: Some(1), ..LoaderOptions::default() }
    }

    #[test]
    fn batches_do_not_depend_on_threads_or_prefetch() {
        let expected = batches(loader(options(), &[]).unwrap());
        for (workers, prefetch_bytes) in [(1, 0), (2, 100), (7, 1 << 20)] {
            let options = LoaderOptions { workers, prefetch_bytes, ..options() };
            assert_eq!(batches(loader(options, &[]).unwrap()), expected);
        }
    }

    #[test]
    fn an_epoch_has_every_usable_row_once_in_full_batches_and_a_rest() {
        let all = batches(loader(options(), &[]).unwrap());
        // 19 of 23 rows have a label: four batches of 4 and one of 3 an epoch.
        let lengths: Vec<_> = all.iter().map(Batch::len).collect();
        assert_eq!(lengths, [4, 4, 4, 4, 3].repeat(3));
        let epochs: Vec<Vec<u64>> =
            all.chunks(5).map(|epoch| epoch.iter().flat_map(|b| b.rows.clone()).collect()).collect();
        assert_ne!(epochs[0], epochs[1], "each epoch has its own order");
        for mut epoch in epochs {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..ROWS).filter(|row| row % 5 != 4).collect::<Vec<_>>());
        }
    }

    #[test]
    fn resuming_after_any_batch_gives_the_batches_that_were_left() {
        let all = batches(loader(options(), &[]).unwrap());
        for (done, batch) in all.iter().enumerate() {
            let start: Position = serde_json::from_str(&serde_json::to_string(&batch.end).unwrap()).unwrap();
            let rest = batches(loader(LoaderOptions { start, ..options() }, &[]).unwrap());
            assert_eq!(rest, all[done + 1..], "after batch {done}");
        }
    }

    #[test]
    fn a_bad_row_stops_the_run_and_is_named() {
        let mut loader = loader(LoaderOptions { shuffle: None, ..options() }, &[6]).unwrap();
        assert_eq!(loader.next_batch().unwrap().unwrap().rows, [0, 1, 2, 3]);
        let error = loader.next_batch().unwrap_err().to_string();
        assert_eq!(error, "a.jsonl, row 7: the conversation has no turns");
        assert_eq!(loader.next_batch().unwrap(), None, "and nothing comes after it");
    }

    #[test]
    fn bad_rows_are_skipped_up_to_their_share_of_an_epoch() {
        let skip = |max_share| LoaderOptions { on_bad_row: OnBadRow::Skip { max_share }, ..options() };
        let mut fine = loader(skip(0.1), &[6, 7]).unwrap();
        let mut used = 0;
        while let Some(batch) = fine.next_batch().unwrap() {
            assert!(!batch.rows.contains(&6), "skipped and not replaced by anything else");
            used += batch.len();
            fine.recycle(batch);
        }
        assert_eq!(used as u64, 3 * 17);
        let Tally { bad, no_label, bad_rows, .. } = fine.tally().clone();
        assert_eq!((bad, no_label, bad_rows.len()), (6, 12, 2), "counted each time, named once");

        let mut too_many = loader(skip(0.05), &[6, 7]).unwrap();
        let error =
            std::iter::repeat_with(|| too_many.next_batch()).find_map(Result::err).unwrap().to_string();
        assert!(error.contains("2 of 23 rows") && error.contains("5%"), "{error}");
    }

    #[test]
    fn long_rows_are_dropped_or_stop_the_run() {
        let long = |row: u64| {
            let id = RowId { file: std::path::Path::new("a.jsonl").into(), number: row + 1 };
            Outcome::LeftOut(id, LeftOut::TooLong { tokens: 9, limit: 8 })
        };
        let start = |on_long_row| {
            let options = LoaderOptions { on_long_row, shuffle: None, ..options() };
            Loader::with_workers(ROWS, vec![long; 2], options, Pool::default()).unwrap()
        };
        let error = start(OnLongRow::Fail).next_batch().unwrap_err().to_string();
        assert!(error.contains("row 1: 9 tokens, more than the 8"), "{error}");
        let mut none_left = start(OnLongRow::Drop);
        let error = none_left.next_batch().unwrap_err().to_string();
        assert!(error.contains("23 too long"), "an epoch without rows must not go on for ever: {error}");
    }

    #[test]
    fn a_position_of_another_dataset_is_refused() {
        let start = Position { epoch: 0, row: ROWS + 1 };
        assert!(loader(LoaderOptions { start, ..options() }, &[]).is_err());
    }

    #[test]
    fn rows_held_out_are_never_trained_on_and_none_is_lost() {
        let rows_of = |share, epochs| {
            let options = LoaderOptions { share, epochs, ..options() };
            let mut rows: Vec<u64> =
                batches(loader(options, &[]).unwrap()).into_iter().flat_map(|b| b.rows).collect();
            rows.sort_unstable();
            rows
        };
        let held_out = rows_of(RowShare::HeldOut { rows: 6, seed: 3 }, 1);
        let rest = rows_of(RowShare::Rest { held_out: 6, seed: 3 }, 1);
        let mut together = [held_out.clone(), rest].concat();
        together.sort_unstable();
        assert_eq!(together, rows_of(RowShare::All, 1), "a partition");
        let later = rows_of(RowShare::Rest { held_out: 6, seed: 3 }, 4);
        assert!(held_out.iter().all(|row| !later.contains(row)), "in every epoch");
        assert_ne!(held_out, rows_of(RowShare::HeldOut { rows: 6, seed: 4 }, 1), "the seed decides");
    }
}
