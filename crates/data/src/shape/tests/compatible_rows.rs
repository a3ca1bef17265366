//! The rows in docs/compatibility.md mean what the page says, and are refused as it says.

use super::outline;
use crate::Columns;
use std::{fs, path::Path};

/// One example of the page: what follows `json` on its fence, and the row.
struct Example {
    promise: String,
    row: String,
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    fs::read_to_string(page).expect("the page")
}

fn examples() -> Vec<Example> {
    let page = page();
    let rows =
        page.split("\n## ").find(|section| section.starts_with("Rows\n")).expect("a section about rows");
    let mut fences = rows.split("\n```");
    let mut examples = Vec::new();
    fences.next();
    while let (Some(open), Some(_)) = (fences.next(), fences.next()) {
        let (head, row) = open.split_once('\n').expect("a fence with lines");
        if let Some(promise) = head.strip_prefix("json ") {
            examples.push(Example { promise: promise.to_owned(), row: row.to_owned() });
        }
    }
    examples
}

#[test]
fn every_row_of_the_page_is_read_or_refused_as_it_says() {
    let examples = examples();
    assert!(examples.len() >= 20, "the page has {} examples", examples.len());
    for Example { promise, row } in examples {
        if let Some(meaning) = promise.strip_prefix("read ") {
            let (_, outline) = outline::outline(&row);
            assert_eq!(outline.replace('\n', "\\n"), meaning, "{row}");
        } else if let Some(reason) = promise.strip_prefix("refused ") {
            let error = outline::read(&row).expect_err(&row).to_string();
            assert!(error.contains(reason), "{row}\n  said: {error}\n  not:  {reason}");
        } else {
            panic!("an example that is neither read nor refused: {promise}");
        }
    }
}

#[test]
fn the_fields_that_the_page_calls_ignored_are_named_by_the_survey() {
    let row = r#"{"id": 7, "source": "web", "split": "train", "text": "x", "response": "y"}"#;
    assert_eq!(outline::reading(row).expect("reads").ignored, ["id", "source", "split"]);
}

#[test]
fn the_page_names_every_meaning_that_a_column_can_be_given() {
    let error = "no-meaning=x".parse::<Columns>().expect_err("no meaning").to_string();
    let (_, list) = error.split_once("there are ").expect("a list of the meanings");
    let names: Vec<String> = list.split(", ").map(|name| format!("`{name}`")).collect();
    let (last, others) = names.split_last().expect("meanings");
    let wanted = format!("The meanings are {} and {last}.", others.join(", "));
    let words: Vec<_> = page().split_whitespace().map(str::to_owned).collect();
    assert!(words.join(" ").contains(&wanted), "docs/compatibility.md should say: {wanted}");
}
