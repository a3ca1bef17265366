//! Finds rows that two sets share: evaluating on rows that were trained on measures memory, not learning.
//!
//! Takes two sets of rows and counts those of the second that the first has too, however either writes them.
//! The rows of the smaller set are kept as one number each. Images in files are compared by size first, and
//! read only where all else is equal.

use crate::{
    dataset::{Dataset, Row, RowReader},
    error::DataError,
    prefetch::{Prefetch, Weight},
    progress::{Progress, ProgressUnit},
    row::{ImageSource, Part, RowId},
    share::RowShare,
};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

/// Some rows of a dataset.
#[derive(Debug, Clone)]
pub struct RowSet {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// Which rows of it.
    pub share: RowShare,
}

/// What two sets share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRows {
    /// How many rows of the second set are in the first as well.
    pub rows: u64,
    /// Such a row: where it is in the first set, and where in the second.
    pub example: Option<(RowId, RowId)>,
}

/// Counts the rows of `evaluation` that are in `training` as well. Rows that cannot be read are not counted.
pub fn shared_rows(
    training: &RowSet,
    evaluation: &RowSet,
    workers: usize,
    progress: &dyn Progress,
) -> Result<SharedRows, DataError> {
    let swapped = training.rows() < evaluation.rows();
    let (small, large) = if swapped { (training, evaluation) } else { (evaluation, training) };
    progress.begin("Comparing rows", ProgressUnit::Rows, small.rows() + large.rows());
    // The rows of the smaller set, by their light marks.
    let mut known: HashMap<u64, Vec<Known>> = HashMap::new();
    small.marks(workers, progress, &mut |row, mark| {
        known.entry(mark).or_default().push(Known { row, exact: None, met: false });
    })?;
    let mut readers = [small, large].map(|set| RowReader::new(set.dataset.clone()));
    let mut shared = SharedRows { rows: 0, example: None };
    let mut met = None;
    large.marks(workers, progress, &mut |row, mark| {
        let Some(known) = known.get_mut(&mark) else { return };
        let Some(exact) = exact_mark(&mut readers[1], row) else { return };
        let [small, _] = &mut readers;
        let equal = known.iter_mut().filter_map(|known| known.equals(exact, small).then_some(known));
        let mut counted = false;
        for known in equal {
            // Each row of the evaluation counts once, however often training has it.
            shared.rows += u64::from(if swapped { !counted } else { !known.met });
            (counted, known.met) = (true, true);
            met.get_or_insert(if swapped { (known.row, row) } else { (row, known.row) });
        }
    })?;
    progress.end();
    if let Some((of_training, of_evaluation)) = met {
        let ids = (training.dataset.row_id(of_training)?, evaluation.dataset.row_id(of_evaluation)?);
        shared.example = Some(ids);
    }
    Ok(shared)
}

/// A row of the smaller set.
struct Known {
    row: u64,
    /// A number from all of the row, computed when it is needed; zero if the row could not be read.
    exact: Option<u64>,
    met: bool,
}

impl Known {
    fn equals(&mut self, exact: u64, reader: &mut RowReader) -> bool {
        *self.exact.get_or_insert_with(|| exact_mark(reader, self.row).unwrap_or_default()) == exact
    }
}

/// A row's mark on its way from a thread.
struct Marked(Option<u64>);

impl Weight for Marked {
    fn bytes(&self) -> u64 {
        1
    }
}

impl RowSet {
    fn rows(&self) -> u64 {
        self.share.rows(self.dataset.rows())
    }

    /// Gives every row that can be read with its light mark.
    fn marks(
        &self,
        workers: usize,
        progress: &dyn Progress,
        take: &mut dyn FnMut(u64, u64),
    ) -> Result<(), DataError> {
        let find = self.share.finder(self.dataset.rows());
        let worker = |_| {
            let (mut reader, find) = (RowReader::new(self.dataset.clone()), find.clone());
            move |place| Marked(light_mark(&mut reader, find(place)))
        };
        let workers = (0..workers.max(1)).map(worker).collect();
        let mut marks = Prefetch::start(workers, 1000, 0..self.rows());
        let mut place = 0;
        while let Some(Marked(mark)) = marks.take_next().map_err(|_| DataError::Worker)? {
            if let Some(mark) = mark {
                take(find(place), mark);
            }
            place += 1;
            progress.advance(1);
        }
        Ok(())
    }
}

/// A number from all that a row says, and from the sizes of its image files.
fn light_mark(reader: &mut RowReader, number: u64) -> Option<u64> {
    let row = reader.read(number).ok()?;
    mark(&row, |image, hasher| {
        reader.image_size(number, image)?.hash(hasher);
        Some(())
    })
}

/// A number from all of a row, what its image files hold included.
fn exact_mark(reader: &mut RowReader, number: u64) -> Option<u64> {
    let row = reader.read(number).ok()?;
    mark(&row, |image, hasher| {
        match image {
            ImageSource::Url(url) => url.hash(hasher),
            image => reader.image_bytes(number, image).ok()?.hash(hasher),
        }
        Some(())
    })
}

fn mark(row: &Row, mut image: impl FnMut(&ImageSource, &mut DefaultHasher) -> Option<()>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for turn in &row.conversation.turns {
        turn.role.hash(&mut hasher);
        for part in &turn.parts {
            match part {
                Part::Text(text) => text.hash(&mut hasher),
                Part::Image(source) => image(source, &mut hasher)?,
            }
        }
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetOptions;
    use std::{fs, path::Path};

    fn set(folder: &Path, name: &str, lines: &[&str]) -> RowSet {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, lines.join("\n")).unwrap();
        let dataset = Dataset::open(path.to_str().unwrap(), &DatasetOptions::default(), &()).unwrap();
        RowSet { dataset: Arc::new(dataset), share: RowShare::All }
    }

    fn shared(training: &RowSet, evaluation: &RowSet) -> (u64, Option<(u64, u64)>) {
        let found = shared_rows(training, evaluation, 2, &()).unwrap();
        (found.rows, found.example.map(|(a, b)| (a.number, b.number)))
    }

    const A: &str = r#"{"text": "a", "response": "1"}"#;
    /// The same, written otherwise.
    const ALSO_A: &str =
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "1"}]}"#;
    const B: &str = r#"{"text": "b", "response": "1"}"#;
    const C: &str = r#"{"text": "c", "response": "1"}"#;

    #[test]
    fn rows_are_the_same_however_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let set = |name, lines: &[&str]| set(folder.path(), name, lines);
        let training = set("train.jsonl", &[B, "not a row", A, A, B]);
        assert_eq!(shared(&training, &set("one.jsonl", &[C, ALSO_A])), (1, Some((3, 2))));
        assert_eq!(shared(&training, &set("none.jsonl", &[C])), (0, None));
        assert_eq!(
            shared(&training, &set("twice.jsonl", &[A, ALSO_A])).0,
            2,
            "each row of the evaluation counts"
        );
        let many = set("many.jsonl", &[A, C, A, B, C, C]);
        assert_eq!(shared(&training, &many), (3, Some((3, 1))), "the larger set may be the evaluation's");
    }

    #[test]
    fn images_in_files_are_compared_by_what_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let row = |image: &str| format!(r#"{{"text": "a", "image": "{image}", "response": "1"}}"#);
        let training =
            set(folder.path(), "train/rows.jsonl", &[&row("x.png"), &row("y.png"), &row("gone.png")]);
        let evaluation = set(folder.path(), "test/rows.jsonl", &[&row("copy.png"), &row("other.png")]);
        for (file, content) in [
            ("train/x.png", "one"),
            ("train/y.png", "two"),
            ("test/copy.png", "two"),
            ("test/other.png", "six"),
        ] {
            fs::write(folder.path().join(file), content).unwrap();
        }
        assert_eq!(shared(&training, &evaluation), (1, Some((2, 1))));
    }

    #[test]
    fn a_row_that_stands_twice_in_a_file_is_found_on_both_sides_of_a_split() {
        let folder = tempfile::tempdir().unwrap();
        let whole = set(folder.path(), "rows.jsonl", &[A; 10]);
        let part = |share| RowSet { share, ..whole.clone() };
        let training = part(RowShare::Rest { held_out: 3, seed: 7 });
        assert_eq!(shared(&training, &part(RowShare::HeldOut { rows: 3, seed: 7 })).0, 3);
    }
}
