//! What is refused before the first step, and what the rest of a run counts on.

use super::*;
use crate::{
    config::TrainOptions,
    testing::{answered, open_rows, tiny_model},
};
use garden_data::{Encoder, Position};
use tempfile::TempDir;

const ROWS: usize = 100;
const BAD: &str = "{";

/// A tiny model, and a hundred rows that can all be used.
fn garden() -> (TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    tiny_model(folder.path());
    (folder, (0..ROWS).map(|n| answered(&format!("answer {n}"))).collect())
}

/// A row of more tokens than [`skipping`] allows.
fn long() -> String {
    answered(&"many words ".repeat(100))
}

/// Bad rows and long ones are left out; so many rows are held out.
fn skipping(held_out: usize) -> TrainOptions {
    TrainOptions {
        on_bad_row: Some(OnBadRow::Skip),
        max_seq_length: Some(100),
        eval_split: (held_out > 0).then(|| held_out.to_string()),
        ..TrainOptions::default()
    }
}

/// Every row that a source gives in its first epoch.
fn given(rows: &mut Rows) -> Vec<u64> {
    rows.seek(Position::default()).unwrap();
    std::iter::from_fn(|| rows.next().unwrap())
        .filter_map(|next| next.batch)
        .flat_map(|batch| batch.rows)
        .collect()
}

fn refused(folder: &TempDir, rows: &[String], options: TrainOptions) -> String {
    open_rows(folder.path(), rows, options).err().expect("a refusal").to_string()
}

#[test]
fn bad_rows_of_a_small_evaluation_set_are_skipped_and_counted() {
    let (folder, mut rows) = garden();
    let held_out = given(open_rows(folder.path(), &rows, skipping(50)).unwrap().evaluation.as_mut().unwrap());
    held_out[..10].iter().for_each(|row| rows[*row as usize] = BAD.to_owned());
    let data = open_rows(folder.path(), &rows, skipping(50)).unwrap();
    assert_eq!((data.survey.held_out.bad, data.survey.rest().bad), (10, 0));
    let mut evaluation = data.evaluation.unwrap();
    assert_eq!(given(&mut evaluation), held_out[10..], "10 of 50 are far more than 1 %");
}

#[test]
fn a_split_without_a_usable_row_is_refused_by_name() {
    let (folder, mut rows) = garden();
    let held_out = given(open_rows(folder.path(), &rows, skipping(1)).unwrap().evaluation.as_mut().unwrap());
    let only = held_out[0] as usize;
    rows[only] = long();
    let error = refused(&folder, &rows, skipping(1));
    assert!(error.starts_with("the only row held out for evaluation cannot be used: 1 longer"), "{error}");
    // The other way round: all but the rows held out are too long.
    let rows: Vec<String> = (0..ROWS).map(|n| if n == only { answered("yes") } else { long() }).collect();
    let error = refused(&folder, &rows, skipping(1));
    assert!(error.contains("1 of 100 rows is held out for evaluation and none of the others"), "{error}");
}

#[test]
fn more_bad_rows_than_accepted_are_refused_before_the_first_step() {
    let (folder, mut rows) = garden();
    rows[17] = BAD.to_owned();
    open_rows(folder.path(), &rows, skipping(0)).expect("one in a hundred is accepted");
    rows[63] = BAD.to_owned();
    let error = refused(&folder, &rows, skipping(0));
    assert!(error.starts_with("2 of 100 rows to train on are bad, more than the 1%"), "{error}");
    assert!(error.contains("rows.jsonl, row 18"), "{error}");
    let more = TrainOptions { max_bad_rows: Some("2%".into()), ..skipping(0) };
    open_rows(folder.path(), &rows, more).expect("two are, if the user says so");
}

#[test]
fn steps_are_counted_by_the_usable_rows_to_train_on() {
    let (folder, mut rows) = garden();
    rows[..40].fill_with(long);
    let mut data = open_rows(folder.path(), &rows, skipping(20)).unwrap();
    let used = given(&mut data.training).len() as u64;
    assert_eq!((data.training.rows(), data.training.usable_rows()), (80, used));
    let evaluated = given(data.evaluation.as_mut().unwrap()).len() as u64;
    assert_eq!(used + evaluated, 60, "every usable row is in one of the two");
}

#[test]
fn the_fingerprint_tells_splits_apart_but_not_what_else_is_evaluated_on() {
    let (folder, rows) = garden();
    let fingerprint = |options| open_rows(folder.path(), &rows, options).unwrap().fingerprint;
    let other = folder.path().join("other.jsonl");
    let evaluated = |rows: usize| {
        std::fs::write(&other, (0..rows).map(|_| answered("yes") + "\n").collect::<String>()).unwrap();
        let eval_dataset = Some(other.to_string_lossy().into_owned());
        fingerprint(TrainOptions { eval_dataset, ..skipping(0) })
    };
    let [none, two, three] = [0, 2, 3].map(|held_out| fingerprint(skipping(held_out)));
    assert!(none != two && none != three && two != three);
    assert_eq!(fingerprint(skipping(2)), two);
    assert_eq!([evaluated(2), evaluated(3)], [none; 2]);
}

#[test]
fn the_row_that_is_shown_is_what_is_learned() {
    let (folder, _) = garden();
    let rows = [answered(r#"{"colour": "red", "boxes": [[1, 2], [3, 4]]}"#)];
    let encoder = Encoder::from_dir(&folder.path().join("model")).unwrap();
    for level in [Level::None, Level::Conservative, Level::Moderate, Level::Aggressive] {
        let options = TrainOptions { selective_loss: Some(level), ..TrainOptions::default() };
        let mut data = open_rows(folder.path(), &rows, options).unwrap();
        let runs = &data.survey.sample.as_ref().unwrap().runs;
        let shown: String = runs.0.iter().filter(|run| run.trained).map(|run| run.text.as_str()).collect();
        let example = data.describe().example.unwrap();
        assert_eq!(
            [example.learned_from, example.learned_to],
            ["⟦", "⟧"],
            "it has [[ itself: {}",
            example.text
        );
        data.training.seek(Position::default()).unwrap();
        let batch = data.training.next().unwrap().unwrap().batch.unwrap();
        let labels = batch.labels.iter().filter(|label| **label >= 0).map(|label| *label as u32);
        assert_eq!(shown, encoder.decode(&labels.collect::<Vec<_>>()).unwrap(), "{level:?}");
    }
}

#[test]
fn fields_that_are_not_read_are_named_at_the_start() {
    let (folder, _) = garden();
    let row = r#"{"id": 7, "category": "x", "ask": "What?", "reply": "That."}"#.to_owned();
    let columns = Some("prompt=ask,response=reply".parse().unwrap());
    let data = open_rows(folder.path(), &[row], TrainOptions { columns, ..TrainOptions::default() }).unwrap();
    assert_eq!(data.describe().ignored_fields, ["category", "id"]);
}

#[test]
fn an_epoch_sees_each_row_of_a_mixture_as_often_as_its_weight_says() {
    let (folder, rows) = garden();
    let more = folder.path().join("more.jsonl");
    std::fs::write(&more, rows[..3].join("\n")).unwrap();
    let open = |weights: [u64; 2]| {
        let options = TrainOptions {
            add_dataset: Some(vec![more.to_string_lossy().into_owned()]),
            dataset_weights: Some(weights.to_vec()),
            ..TrainOptions::default()
        };
        open_rows(folder.path(), &rows[..5], options).unwrap()
    };
    let mut data = open([1, 2]);
    assert_eq!(data.training.rows(), 11, "5 once and 3 twice");
    let mut seen = given(&mut data.training);
    let order = seen.clone();
    seen.sort_unstable();
    assert_eq!(seen, (0..11).collect::<Vec<u64>>());
    assert_ne!(order, seen, "they are mixed");
    data.training.seek(Position { epoch: 0, row: 4 }).unwrap();
    let rest: Vec<u64> =
        (0..7).flat_map(|_| data.training.next().unwrap().unwrap().batch.unwrap().rows).collect();
    assert_eq!(rest, order[4..], "a run goes on where it was");
    assert_ne!(data.fingerprint, open([2, 1]).fingerprint, "other weights are other rows");
}
