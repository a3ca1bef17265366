//! `memory run --expect`: the last verdict becomes the exit code, and the command's own failure comes first.

mod support;

use std::process::Stdio;
use support::{Finished, memory_run, model_garden};

fn expecting(expect: &str, flags: &[&str], script: &str) -> Finished {
    let all: Vec<&str> = ["--interval", "20ms", "--expect", expect].iter().chain(flags).copied().collect();
    Finished::of(&mut memory_run(&all, script, &[]))
}

/// The length of the epoch that the scripts have.
const EPOCH: [&str; 4] = ["--dataset-size", "120", "--samples-per-step", "2"];

#[test]
fn a_leak_is_worse_than_anything_expected() {
    for expect in ["steady", "bounded"] {
        let finished = expecting(expect, &EPOCH, "growing_list.py");
        assert_eq!(finished.code, Some(1), "{}", finished.errors);
        let said = format!("memory was expected to be {expect}; it was not, ");
        assert!(finished.errors.contains(&said), "{}", finished.errors);
    }
}

#[test]
fn a_fill_that_has_stopped_is_as_expected() {
    for expect in ["steady", "bounded"] {
        let finished = expecting(expect, &EPOCH, "lazy_images.py");
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
        assert!(!finished.errors.contains("was expected"), "{}", finished.errors);
    }
}

#[test]
fn growth_whose_end_is_open_is_not_steady_and_may_be_bounded() {
    // Without the length of the epoch, so short a growth may be a fill or a leak.
    let [steady, bounded] = ["steady", "bounded"].map(|expect| expecting(expect, &[], "growing_list.py"));
    assert_eq!((steady.code, bounded.code), (Some(1), Some(3)), "{}", steady.errors);
    assert!(steady.errors.contains("expected to be steady; it still grows"), "{}", steady.errors);
}

#[test]
fn a_command_that_is_too_short_cannot_be_told() {
    let finished = Finished::of(model_garden().args(["memory", "run", "--expect", "steady", "--", "true"]));
    assert_eq!(finished.code, Some(3), "{}", finished.errors);
    assert!(
        finished.errors.contains("memory was expected to be steady; it cannot be told"),
        "{}",
        finished.errors
    );
}

#[test]
fn the_command_s_own_failure_comes_first() {
    let line = ["memory", "run", "--expect", "steady", "--", "sh", "-c", "exit 7"];
    let finished = Finished::of(model_garden().args(line).stdin(Stdio::null()));
    assert_eq!(finished.code, Some(7), "{}", finished.errors);
    assert!(!finished.errors.contains("was expected"), "{}", finished.errors);
}

#[test]
fn an_expectation_that_nobody_has_is_bad_use() {
    let finished = Finished::of(model_garden().args(["memory", "run", "--expect", "fill", "--", "true"]));
    assert_eq!(finished.code, Some(2));
    assert!(finished.errors.contains("steady, bounded"), "{}", finished.errors);
}
