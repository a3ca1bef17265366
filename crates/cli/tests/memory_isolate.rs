//! `memory isolate`: commands against each other, and the parts of training alone.

mod support;

use serde_json::Value;
use support::{Finished, model_garden, script};

fn isolate(arguments: &[&str]) -> (Option<i32>, Value) {
    let done = Finished::of(model_garden().args(["memory", "isolate", "--format", "json"]).args(arguments));
    let value = serde_json::from_str(&done.output);
    (done.code, value.unwrap_or_else(|error| panic!("{error}:\n{}{}", done.output, done.errors)))
}

#[test]
fn the_command_that_keeps_more_is_named_with_its_confidence() {
    let keeps = format!("python3 -u {}", script("growing_list.py").display());
    let level = "python3 -u -c \"import time\nfor step in range(1, 181): print(f'Step {step}: loss 1', flush=True); time.sleep(0.01)\"";
    let facts = ["--dataset-size", "60", "--samples-per-step", "1"];
    let commands = ["--rounds", "2", "--interval", "20ms", "--cmd", &keeps, "--cmd", level];
    let (code, found) = isolate(&[&commands[..], &facts].concat());
    let difference = &found["difference"];
    let bytes = difference["bytes"].as_f64().expect("a difference");
    // It keeps 72 MB; what is measured lies between the first and the last tenth.
    assert!((50e6..80e6).contains(&bytes), "{difference}");
    assert!(difference["confidence"].as_f64().expect("two rounds") > 0.95, "{difference}");
    assert_eq!(code, Some(1), "the first one leaks");
}

#[test]
fn each_part_of_training_is_level_alone_and_leaks_when_it_keeps_what_it_makes() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = folder.path().join("shapes");
    let create = ["dataset", "create", "--kind", "shapes", "--rows", "32", "--size", "56x56", "--output"];
    assert_eq!(Finished::of(model_garden().args(create).arg(&rows)).code, Some(0));
    let (code, found) = isolate(&["--rows", "16", "--dataset", rows.to_str().expect("a path")]);
    let pairs = found.as_array().expect("pairs");
    let names: Vec<&str> = pairs.iter().filter_map(|pair| pair["component"].as_str()).collect();
    assert_eq!(names, ["rows", "decode", "process", "collate", "forward", "step"]);
    for pair in pairs {
        let (plain, retaining) = (&pair["plain"], &pair["retaining"]);
        let kept = |run: &Value| run["kept_bytes"].as_f64().expect("a number") / 1e6;
        let steps = plain["steps"].as_u64().expect("a number");
        // A megabyte a step is kept on purpose, besides what was made.
        let purpose = steps as f64;
        assert!(steps >= 60, "{pair}");
        assert!(kept(plain) < 0.1 * purpose, "{pair}");
        assert!(kept(retaining) > 0.6 * purpose, "{pair}");
        assert_ne!(plain["assessment"]["verdict"], "leak", "{pair}");
        assert_eq!(retaining["assessment"]["verdict"], "leak", "{pair}");
    }
    assert_eq!(code, Some(0), "no part leaks by itself");
}

#[test]
fn a_dataset_that_is_not_there_is_said_so() {
    let done = Finished::of(model_garden().args(["memory", "isolate", "--dataset", "/nowhere.jsonl"]));
    assert_eq!(done.code, Some(2));
    assert!(done.errors.contains("/nowhere.jsonl"), "{}", done.errors);
}

#[test]
fn readings_without_a_pause_are_refused() {
    let done = Finished::of(model_garden().args(["memory", "isolate", "--interval", "0s", "--cmd", "true"]));
    assert_eq!(done.code, Some(2));
    assert!(done.errors.contains("from 5ms to 1h"), "{}", done.errors);
}

#[test]
fn how_far_it_is_shows_in_lines_or_in_a_bar_on_a_terminal() {
    let commands =
        ["memory", "isolate", "--rounds", "2", "--interval", "20ms", "--cmd", "true", "--cmd", "sleep 0.3"];
    let done = Finished::of(model_garden().args(commands));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let lines: Vec<&str> = done.errors.lines().collect();
    assert!(lines[0].starts_with("1 of 4: round 1 of 2, true"), "{}", done.errors);
    assert!(lines[3].starts_with("4 of 4, about ") && lines[3].ends_with("left: round 2 of 2, sleep 0.3"));

    // The same under a terminal, whose output a pseudo-terminal shows.
    let binary = env!("CARGO_BIN_EXE_model-garden");
    let words: Vec<String> = commands.iter().map(|word| format!("'{word}'")).collect();
    let typed = format!("stty cols 120; {binary} {} --format json", words.join(" "));
    let done = Finished::of(std::process::Command::new("script").args(["-qec", &typed, "/dev/null"]));
    let shown = done.output.replace('\r', "\n");
    assert!(shown.contains(" of 4 done") && shown.contains("round 2 of 2, sleep 0.3"), "{shown}");
}
