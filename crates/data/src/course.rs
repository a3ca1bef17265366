//! The course of a run through its rows: which rows each batch has, known before any of them is read.
//!
//! Takes the rows that may be read, those among them to skip, the seed, the size of a batch and a
//! [`Position`], and gives the usable rows from there on, epoch after epoch, each with the batch it belongs
//! to. A batch never spans two epochs. The course is the same for every rank, and nothing that a row turns
//! out to hold changes it.

use crate::{
    error::{DataError, counted},
    position::Position,
    share::RowShare,
    shuffle::RowOrder,
    skipped::SkippedRows,
    turns::Turns,
};
use std::sync::Arc;

/// What decides a course, apart from where it starts.
#[derive(Debug, Clone)]
pub(crate) struct CourseOptions {
    /// Which rows are read, of all rows of the dataset.
    pub share: RowShare,
    pub all: u64,
    /// Those among them that are passed over.
    pub skip: Arc<SkippedRows>,
    pub shuffle: Option<u64>,
    pub epochs: u64,
    pub batch_size: u64,
}

/// The usable rows of a run in their order.
#[derive(Clone)]
pub(crate) struct Course {
    places: Places,
    batch_size: u64,
    /// The row that is given next.
    upcoming: Option<Usable>,
    /// The batch of that row, and how many rows that batch already has.
    batch: u64,
    rows_before: u64,
}

/// A usable row and its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CourseRow {
    /// Its number in the dataset.
    pub row: u64,
    pub epoch: u64,
    /// The number of its batch, counted from the start of the course and anew from the start of each epoch.
    pub batch: u64,
    pub ends_batch: bool,
    /// The position after it.
    pub end: Position,
}

/// A batch that no row was read for yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CourseBatch {
    pub number: u64,
    pub epoch: u64,
    /// How many rows it has, if all of them turn out usable.
    pub rows: u64,
    /// The position after it. After the last usable row of an epoch, that is the start of the next epoch.
    pub end: Position,
}

impl Course {
    /// Begins at a position. It is an error if the dataset has no such position, or no row to read.
    pub fn new(options: CourseOptions, start: Position) -> Result<Self, DataError> {
        let rows = options.share.rows(options.all);
        let start = start.normalised(rows);
        if rows == 0 {
            return Err(DataError::NoRows);
        }
        if start.row >= rows {
            return Err(DataError::BadPosition { row: start.row, rows });
        }
        let batch_size = options.batch_size.max(1);
        let mut places = Places::new(options, rows);
        if !places.have_usable(1) {
            let tally = format!("{} too long, without a label or bad", counted(rows, "row"));
            return Err(DataError::NoUsableRows { tally });
        }
        let upcoming = places.usable_from(start);
        Ok(Self { places, batch_size, upcoming, batch: 0, rows_before: 0 })
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Option<CourseBatch> {
        let mut rows = 0;
        loop {
            let CourseRow { epoch, batch, ends_batch, end, .. } = self.next()?;
            rows += 1;
            if ends_batch {
                return Some(CourseBatch { number: batch, epoch, rows, end });
            }
        }
    }

    /// Whether a whole epoch has a batch for a rank. Without one, the rank would look for its next batch
    /// without end.
    pub fn has_batch_of(&self, turns: Turns) -> bool {
        let rows_to = |first: u64| first.saturating_mul(self.batch_size).saturating_add(1);
        turns.first().is_some_and(|first| self.places.have_usable(rows_to(first)))
    }

    /// The numbers in the dataset of the rows that one rank reads.
    pub fn rows_of(self, turns: Turns) -> impl Iterator<Item = u64> + Send {
        let course = self.has_batch_of(turns).then_some(self);
        course.into_iter().flatten().filter(move |row| turns.has(row.batch)).map(|row| row.row)
    }
}

impl Iterator for Course {
    type Item = CourseRow;

    fn next(&mut self) -> Option<CourseRow> {
        let Usable { at, row } = self.upcoming?;
        let after = at.after_row(self.places.rows);
        self.upcoming = self.places.usable_from(after);
        let ends_epoch = self.upcoming.is_none_or(|next| next.at.epoch > at.epoch);
        self.rows_before += 1;
        let ends_batch = ends_epoch || self.rows_before == self.batch_size;
        let batch = self.batch;
        if ends_batch {
            self.batch = if ends_epoch { 0 } else { batch + 1 };
            self.rows_before = 0;
        }
        let end = if ends_epoch { Position::start_of(at.epoch + 1) } else { after };
        Some(CourseRow { row, epoch: at.epoch, batch, ends_batch, end })
    }
}

/// A row that is not skipped: its place in an epoch, and its number in the dataset.
#[derive(Debug, Clone, Copy)]
struct Usable {
    at: Position,
    row: u64,
}

/// The places of all epochs and the rows at them.
#[derive(Clone)]
struct Places {
    options: CourseOptions,
    rows: u64,
    /// Gives the number in the dataset of a row of the share.
    in_dataset: Arc<dyn Fn(u64) -> u64 + Send + Sync>,
    /// The epoch that was looked at last, and its order.
    current: (u64, RowOrder),
}

impl Places {
    fn new(options: CourseOptions, rows: u64) -> Self {
        let in_dataset = Arc::new(options.share.finder(options.all));
        let current = (0, order(&options, rows, 0));
        Self { options, rows, in_dataset, current }
    }

    /// Whether an epoch has this many usable rows.
    fn have_usable(&self, wanted: u64) -> bool {
        let skip = &self.options.skip;
        let mut usable = (0..self.rows).filter(|row| !skip.contains((self.in_dataset)(*row)));
        // Without rows to skip, there is nothing to count.
        wanted <= self.rows && (skip.is_empty() || usable.nth(wanted.saturating_sub(1) as usize).is_some())
    }

    /// The first usable row at a position or after it.
    fn usable_from(&mut self, mut at: Position) -> Option<Usable> {
        while at.epoch < self.options.epochs {
            let row = self.row(at);
            if !self.options.skip.contains(row) {
                return Some(Usable { at, row });
            }
            at = at.after_row(self.rows);
        }
        None
    }

    fn row(&mut self, at: Position) -> u64 {
        if self.current.0 != at.epoch {
            self.current = (at.epoch, order(&self.options, self.rows, at.epoch));
        }
        // A place inside the epoch always has a row.
        (self.in_dataset)(self.current.1.row(at.row).unwrap_or_default())
    }
}

fn order(options: &CourseOptions, rows: u64, epoch: u64) -> RowOrder {
    match options.shuffle {
        Some(seed) => RowOrder::shuffled(rows, seed, epoch),
        None => RowOrder::sequential(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven rows as they are written, in batches of two, for two epochs.
    fn options(skip: &[u64]) -> CourseOptions {
        CourseOptions {
            share: RowShare::All,
            all: 7,
            skip: Arc::new(skip.iter().copied().collect()),
            shuffle: None,
            epochs: 2,
            batch_size: 2,
        }
    }

    fn at(epoch: u64, row: u64) -> Position {
        Position { epoch, row }
    }

    fn rows(course: Course) -> Vec<(u64, u64, bool, Position)> {
        course.map(|CourseRow { row, batch, ends_batch, end, .. }| (row, batch, ends_batch, end)).collect()
    }

    #[test]
    fn skipped_rows_have_no_place_in_a_batch_and_keep_their_place_in_the_order() {
        let course = Course::new(options(&[0, 3, 6]), Position::default()).unwrap();
        let first = [
            (1, 0, false, at(0, 2)),
            (2, 0, true, at(0, 3)),
            (4, 1, false, at(0, 5)),
            // Row 6 is skipped, so nothing of the epoch is left.
            (5, 1, true, at(1, 0)),
        ];
        let second = first.map(|(row, batch, ends, end)| (row, batch, ends, at(end.epoch + 1, end.row)));
        assert_eq!(rows(course), [first, second].concat());
    }

    #[test]
    fn batches_are_counted_from_the_start_and_anew_in_each_epoch() {
        let mut course = Course::new(options(&[1]), at(0, 4)).unwrap();
        let batches: Vec<_> = std::iter::from_fn(|| course.next_batch()).collect();
        let batch = |number, epoch, rows, end| CourseBatch { number, epoch, rows, end };
        assert_eq!(
            batches,
            [
                batch(0, 0, 2, at(0, 6)),
                batch(1, 0, 1, at(1, 0)),
                batch(0, 1, 2, at(1, 3)),
                batch(1, 1, 2, at(1, 5)),
                batch(2, 1, 2, at(2, 0)),
            ]
        );
    }

    #[test]
    fn a_start_before_trailing_skipped_rows_goes_on_with_the_next_epoch() {
        for row in [5, 6, 7] {
            let course = Course::new(options(&[5, 6]), at(0, row)).unwrap();
            assert_eq!(rows(course)[0], (0, 0, false, at(1, 1)), "from row {row}");
            let course = Course::new(options(&[5, 6]), at(1, row)).unwrap();
            assert_eq!(rows(course), [], "no epoch is left after row {row}");
        }
    }

    #[test]
    fn a_course_without_usable_rows_is_refused() {
        let all: Vec<u64> = (0..7).collect();
        let error = |options| Course::new(options, Position::default()).err().unwrap().to_string();
        assert!(error(options(&all)).contains("7 rows too long, without a label or bad"));
        let share = RowShare::HeldOut { rows: 1, seed: 3 };
        let held_out = share.row(0, 7);
        let part = CourseOptions { share, ..options(&[held_out]) };
        assert!(error(part).contains("1 row too long"), "the other rows belong to another share");
        assert!(error(CourseOptions { all: 0, ..options(&[]) }).contains("no rows"));
    }

    #[test]
    fn a_rank_without_a_batch_ends_at_once_though_the_epochs_do_not() {
        let endless = |skip| CourseOptions { epochs: u64::MAX, ..options(skip) };
        let rows_of = |skip, rank, size, per_step| {
            let course = Course::new(endless(skip), Position::default()).unwrap();
            course.rows_of(Turns { rank, size, per_step }).take(3).collect::<Vec<_>>()
        };
        assert_eq!(rows_of(&[], 3, 4, 4), [6, 6, 6], "a batch of one row an epoch");
        assert!(rows_of(&[2], 3, 4, 4).is_empty(), "six rows are three batches");
        assert!(rows_of(&[], 4, 5, 5).is_empty());
        assert!(rows_of(&[], 1, 2, 1).is_empty(), "a step of one batch has none for a second rank");
        assert_eq!(rows_of(&[1, 2], 1, 2, 2), [4, 5, 4]);
    }
}
