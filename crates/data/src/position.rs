//! A position in the rows of a run.
//!
//! A [`Position`] names the row that comes next. After the last row of an epoch that is the first row of the
//! next epoch, for the loader, for the trainer and in checkpoints alike.

use serde::{Deserialize, Serialize};

/// The row that comes next: what a checkpoint saves and a run resumes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The place of the row in the epoch's order, from 0: always less than the rows of an epoch.
    pub row: u64,
}

impl Position {
    /// The first row of an epoch.
    pub fn start_of(epoch: u64) -> Self {
        Self { epoch, row: 0 }
    }

    /// The same position in epochs of `rows` rows. Some older checkpoints write the end of an epoch as the
    /// row after its last one: that is the first row of the next epoch.
    pub fn normalised(self, rows: u64) -> Self {
        if self.row == rows { Self::start_of(self.epoch + 1) } else { self }
    }

    /// The position after this row, in epochs of `rows` rows.
    pub(crate) fn after_row(self, rows: u64) -> Self {
        Self { row: self.row + 1, ..self }.normalised(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_epoch_is_the_start_of_the_next() {
        let last = Position { epoch: 3, row: 6 };
        assert_eq!(last.after_row(7), Position::start_of(4));
        assert_eq!(Position { epoch: 3, row: 5 }.after_row(7), last);
    }

    #[test]
    fn both_spellings_in_checkpoints_are_read() {
        let read = |json: &str| serde_json::from_str::<Position>(json).unwrap().normalised(7);
        assert_eq!(read(r#"{"epoch": 3, "row": 7}"#), Position::start_of(4));
        assert_eq!(read(r#"{"epoch": 4, "row": 0}"#), Position::start_of(4));
    }
}
