//! `demo` as a newcomer runs it: it learns from some images and answers about others.

mod support;

use rustix::process::Signal;
use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};
use support::{Finished, from_terminal, model_garden};

fn images(folder: &Path) -> HashSet<Vec<u8>> {
    fs::read_dir(folder.join("images"))
        .unwrap()
        .map(|entry| fs::read(entry.unwrap().path()).unwrap())
        .collect()
}

#[test]
fn it_learns_colours_from_some_images_and_knows_them_in_others() {
    let folder = tempfile::tempdir().unwrap();
    let demo = folder.path().join("demo");
    let finished = Finished::of(model_garden().args(["demo", "--format", "json", "--output"]).arg(&demo));
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    let result: serde_json::Value = serde_json::from_str(&finished.output).unwrap();
    let share = |name: &str| result[name].as_f64().unwrap();
    assert!(share("before") < 2.0 * share("chance"), "{result}");
    assert!(share("after") > 0.9, "{result}");
    let state = fs::read_to_string(demo.join("run/trainer_state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let mut losses =
        state["log_history"].as_array().unwrap().iter().filter_map(|entry| entry["eval_loss"].as_f64());
    let last = losses.next_back().unwrap();
    assert!(last < 0.3, "the loss tells the same story as the answers: {last}");
    assert_eq!(result["shown"].as_array().unwrap().len(), 5);
    let report = fs::read_to_string(demo.join("run/report.html")).unwrap();
    assert_eq!(report.matches("data:image/png;base64,").count(), 5, "answers are in the report");
    let verdict = finished.errors.lines().rfind(|line| line.starts_with("memory: ")).unwrap();
    assert!(verdict.starts_with("memory: steady at "), "{verdict}");
    let (trained, asked) = (images(&demo.join("training")), images(&demo.join("held-out")));
    assert!(asked.len() > 100 && trained.is_disjoint(&asked), "what is asked about was not trained on");
    let again = Finished::of(model_garden().args(["demo", "--output"]).arg(&demo));
    assert_eq!(again.code, Some(2));
    assert!(again.errors.contains("is not empty"), "{}", again.errors);
}

#[test]
fn an_interrupted_demo_says_how_to_begin_anew() {
    for signal in [Signal::INT, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = model_garden();
        command.args(["demo", "--output"]).arg(folder.path().join("demo"));
        let mut child = from_terminal(&command).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        lines.find(|line| line.starts_with("step ")).expect("a log of steps");
        support::signal_process(child.id().cast_signed(), signal);
        let last = lines.last().unwrap();
        // It may have been done already, on a machine that is slow to pass signals on.
        if child.wait().unwrap().code() != Some(0) {
            assert_eq!(child.wait().unwrap().code(), Some(130), "{signal:?}: {last}");
            assert!(last.starts_with("a demo cannot be resumed: remove "), "{last}");
        }
    }
}
