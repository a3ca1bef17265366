//! Real Python programs, each growing in its own way, are watched from end to end and must get the right
//! verdict.

mod support;

use serde_json::Value;
use support::{Finished, memory_run, model_garden, script};

const FLAGS: [&str; 4] = ["--interval", "20ms", "--format", "json"];

fn assessment(flags: &[&str], name: &str) -> Value {
    let all: Vec<&str> = FLAGS.iter().chain(flags).copied().collect();
    let finished = Finished::of(&mut memory_run(&all, name, &[]));
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    finished.summary()["assessment"].clone()
}

fn assert_near(what: &Value, expected: f64, tolerance: f64) {
    let found = what.as_f64().unwrap_or_else(|| panic!("expected about {expected}, found {what}"));
    assert!((found - expected).abs() <= tolerance * expected, "expected about {expected}, found {found}");
}

#[test]
fn a_list_that_grows_is_a_leak() {
    let found = assessment(&["--dataset-size", "120", "--samples-per-step", "2"], "growing_list.py");
    assert_eq!(found["verdict"], "leak", "{found}");
    assert_near(&found["growth_per_step"], 400e3, 0.1);
    assert_near(&found["growth_per_sample"], 200e3, 0.1);
    assert_eq!(found["mechanism"]["memory"], "anonymous");
}

#[test]
fn a_list_of_lazily_decoded_images_is_a_fill() {
    let found = assessment(&["--dataset-size", "120", "--samples-per-step", "2"], "lazy_images.py");
    assert_eq!(found["verdict"], "fill", "{found}");
    assert_near(&found["growth_per_sample"], 400e3, 0.1);
    assert_near(&found["plateau"]["step"], 60.0, 0.1);
}

#[test]
fn the_epochs_in_the_output_are_enough_to_know_a_fill() {
    let found = assessment(&[], "lazy_images.py");
    assert_eq!(found["verdict"], "fill", "{found}");
}

#[test]
fn workers_that_grow_under_a_flat_parent_are_a_leak_in_the_workers() {
    let found = assessment(&["--steps-per-epoch", "60"], "forked_workers.py");
    assert_eq!(found["verdict"], "leak", "{found}");
    assert_near(&found["growth_per_step"], 450e3, 0.15);
    assert_eq!(found["mechanism"]["place"], "workers", "{found}");
}

#[test]
fn shared_memory_that_grows_is_a_leak_counted_once() {
    let found = assessment(&["--steps-per-epoch", "60"], "shared_memory.py");
    assert_eq!(found["verdict"], "leak", "{found}");
    assert_near(&found["growth_per_step"], 300e3, 0.15);
    assert_eq!(found["mechanism"]["memory"], "shared", "{found}");
}

#[test]
fn a_process_that_already_runs_is_watched_by_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::File::create(folder.path().join("train.log")).unwrap();
    let mut training = std::process::Command::new("python3")
        .arg("-u")
        .arg(script("growing_list.py"))
        .stdout(log)
        .spawn()
        .unwrap();
    let trace = folder.path().join("trace.jsonl");
    let mut watch = model_garden();
    watch.args([
        "memory",
        "watch",
        "--interval",
        "20ms",
        "--steps-per-epoch",
        "60",
        "--format",
        "json",
        "--pid",
    ]);
    let watched = watch.arg(training.id().to_string()).arg("--out").arg(&trace).output().unwrap();
    training.wait().unwrap();
    let output = String::from_utf8(watched.stdout).unwrap();
    let summary: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert_eq!(watched.status.code(), Some(0));
    assert_eq!(summary["end"], "the process ended");
    assert_eq!(summary["assessment"]["verdict"], "leak", "{summary}");
    let text = std::fs::read_to_string(trace).unwrap();
    let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64();
    let steps: std::collections::BTreeSet<u64> = text.lines().filter_map(step).collect();
    assert!(
        steps.len() > 30 && *steps.last().unwrap() >= 170,
        "the steps of the log are in the trace: {steps:?}"
    );
}
