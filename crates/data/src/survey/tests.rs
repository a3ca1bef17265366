//! Surveys of a dataset in parts, on rows of every kind.

use super::*;
use crate::{CreateKind, CreateOptions, DatasetOptions, Purpose, create_dataset};
use std::{fs, ops::Range, path::Path};

/// More bad rows than are named.
const TEXT_ROWS: usize = 330;

/// Rows with images of two sizes, then rows of text: used, bad, too long, without a label.
fn dataset(folder: &Path) -> Arc<Dataset> {
    for (name, width) in [("a", 56), ("b", 84)] {
        let options =
            CreateOptions { kind: CreateKind::Shapes, rows: 6, width, height: 56, seed: 3, workers: 1 };
        create_dataset(&folder.join(name), &options, &()).unwrap();
    }
    let row = |n: usize| {
        match n % 6 {
        0 => r#"{"prompt": "one", "completion": "two", "id": 7}"#.to_owned(),
        1 | 3 => "not a row".to_owned(),
        2 => format!(r#"{{"prompt": "one", "completion": "{}"}}"#, "long ".repeat(300)),
        4 => r#"{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two", "weight": 0}]}"#
            .to_owned(),
        _ => format!(r#"{{"text": "one", "response": "{}"}}"#, "two ".repeat(n % 50)),
    }
    };
    let rows: Vec<String> = (0..TEXT_ROWS).map(row).collect();
    fs::create_dir(folder.join("c")).unwrap();
    fs::write(folder.join("c/train.jsonl"), rows.join("\n")).unwrap();
    let dataset = Dataset::open(folder.to_str().unwrap(), &DatasetOptions::default(), &()).unwrap();
    assert_eq!(dataset.rows(), 12 + TEXT_ROWS as u64);
    Arc::new(dataset)
}

fn options() -> SurveyOptions {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/checkpoint"));
    let purpose = Purpose::Learn { train_on: Default::default(), max_tokens: Some(200) };
    SurveyOptions {
        measure: Measure::Rows(Arc::new(Recipe::from_dir(model, purpose).unwrap())),
        workers: 2,
        held_out: Some(RowShare::HeldOut { rows: 40, seed: 1 }),
        decode: false,
    }
}

/// As if the part had come from another process.
fn travelled(part: &SurveyPart) -> SurveyPart {
    serde_json::from_slice(&serde_json::to_vec(part).unwrap()).unwrap()
}

/// The survey by parts that end at these rows.
fn in_parts(dataset: &Arc<Dataset>, ends: &[u64]) -> Result<Survey, DataError> {
    let starts = [0].into_iter().chain(ends.iter().copied());
    let ranges = starts.zip(ends).map(|(start, end)| start..*end);
    let part = |rows: Range<u64>| travelled(&survey_part(dataset, &options(), rows, &()).unwrap());
    let joined = ranges.map(part).reduce(|mut joined, following| {
        joined.join(following);
        joined
    });
    joined.unwrap().finish(dataset, &options())
}

#[test]
fn parts_joined_are_the_survey_of_all_rows() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let whole = survey(&dataset, options(), &()).unwrap();
    let rows = dataset.rows();
    for ends in [
        vec![rows],
        vec![171, rows],
        vec![5, 13, rows],
        vec![0, 9, 9, 200, rows],
        vec![100, 101, 300, rows, rows],
    ] {
        let joined = in_parts(&dataset, &ends).unwrap();
        assert_eq!(format!("{joined:?}"), format!("{whole:?}"), "parts that end at {ends:?}");
    }
    // The rows above have everything that could differ.
    assert_eq!((whole.bad, whole.too_long, whole.no_label, whole.bad_rows.len()), (110, 55, 55, 100));
    assert_eq!((whole.held_out.rows, whole.sizes.len(), whole.shapes.len()), (40, 2, 3));
    assert!(whole.sample.is_some() && whole.ignored["id"] == 55 && whole.held_out.bad > 0);
    assert_eq!(whole.skipped.len(), whole.rows - whole.used_rows(), "held-out rows among them");
    let skipped = (0..TEXT_ROWS as u64).filter(|n| (1..=4).contains(&(n % 6))).map(|n| n + 12);
    assert_eq!(*whole.skipped, skipped.collect());
}

#[test]
fn parts_of_other_rows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let rows = dataset.rows();
    for ends in [vec![rows - 1], vec![0], vec![9, rows - 3]] {
        let error = in_parts(&dataset, &ends).unwrap_err();
        assert!(matches!(error, DataError::OtherRows { .. }), "{error}");
    }
    let part = |rows| survey_part(&dataset, &options(), rows, &()).unwrap();
    let mut swapped = part(9..rows);
    swapped.join(part(0..9));
    assert!(swapped.finish(&dataset, &options()).is_err(), "they must come in order");
}

#[test]
fn a_row_that_was_mended_before_the_parts_were_finished_is_not_named() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let part = survey_part(&dataset, &options(), 0..dataset.rows(), &()).unwrap();
    let mut part = serde_json::to_value(part).unwrap();
    // Row 12 is good, row 13 is not.
    part["bad_rows"] = serde_json::json!([{"row": 12}, {"row": 13}]);
    let part: SurveyPart = serde_json::from_value(part).unwrap();
    let survey = part.finish(&dataset, &options()).unwrap();
    assert_eq!(survey.bad_rows.iter().map(|fault| fault.row.number).collect::<Vec<_>>(), [2]);
}
