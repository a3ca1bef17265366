//! `generate` as a person runs it.

mod support;

use std::fs;
use support::{Finished, model_garden};

#[test]
fn a_picture_that_cannot_be_read_is_told_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| Finished::of(model_garden().current_dir(folder.path()).args(arguments));
    assert_eq!(run(&["init", "--preset", "tiny", "--output", "tiny"]).code, Some(0));
    let pictures =
        ["dataset", "create", "--kind", "shapes", "--rows", "1", "--size", "84x56", "--output", "shapes"];
    assert_eq!(run(&pictures).code, Some(0));
    let good = fs::read_dir(folder.path().join("shapes/images")).unwrap().next().unwrap().unwrap().path();
    fs::write(folder.path().join("notes.jpg"), "no picture at all").unwrap();

    let ask = ["generate", "--model", "tiny", "--prompt", "What is it?", "--max-tokens", "2"];
    let asked = run(&[&ask[..], &["--image", good.to_str().unwrap()]].concat());
    assert_eq!(asked.code, Some(0), "{}", asked.errors);
    let refused = run(&[&ask[..], &["--image", good.to_str().unwrap(), "--image", "notes.jpg"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.errors);
    assert!(refused.errors.contains("--image notes.jpg: "), "{}", refused.errors);
    assert!(!refused.errors.contains("picture 2"), "{}", refused.errors);
}
