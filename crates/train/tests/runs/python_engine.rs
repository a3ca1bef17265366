//! Whole runs with an engine in Python, whose worker is a fake that needs no PyTorch: what the run tells and
//! leaves, how it is ended, and how it goes on.

use crate::{
    events::{check, documented},
    garden::{Garden, STEPS},
};
use garden_data::TrainOn;
use garden_train::{
    Cancel, Engine, Event, RunError, RunReport, TrainError, TrainOptions,
    events::{EVENTS, EndReason, Record, Step},
    train,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const FAKE: &str = include_str!("fake_worker.py");

/// Puts the fake into a folder as an interpreter; `plan` says what is to go wrong.
fn interpreter(folder: &Path, mut plan: Value) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    plan["version"] = env!("CARGO_PKG_VERSION").into();
    let script = folder.join("fake_worker.py");
    fs::write(&script, FAKE).unwrap();
    let path = folder.join("python");
    let run = format!("#!/bin/sh\nFAKE_WORKER_PLAN='{plan}' exec python3 {} \"$@\"\n", script.display());
    fs::write(&path, run).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// What a run told, and how it ended.
struct Told {
    events: Vec<Event>,
    result: Result<RunReport, RunError>,
}

impl Told {
    fn steps(&self) -> Vec<&Step> {
        let steps = self.events.iter().filter_map(|event| match event {
            Event::Step(step) => Some(step),
            _ => None,
        });
        steps.collect()
    }

    fn error(&self) -> String {
        self.result.as_ref().unwrap_err().to_string()
    }

    fn reason(&self) -> EndReason {
        self.result.as_ref().unwrap_or_else(|error| panic!("{error}")).reason
    }
}

/// Trains with the fake; cancels after `cancel_after` steps.
fn run(garden: &Garden, output: &str, plan: Value, more: TrainOptions, cancel_after: Option<u64>) -> Told {
    let python = interpreter(&garden.path("env"), plan);
    let options = TrainOptions { engine: Some(Engine::Transformers), python: Some(python), ..more };
    let cancel = Cancel::default();
    let asked = cancel.clone();
    let mut events = Vec::new();
    let mut observer = |event: &Event| {
        if matches!(event, Event::Step(step) if Some(step.step) == cancel_after) {
            asked.cancel();
        }
        events.push(event.clone());
    };
    let result = train(&garden.config(output, options), &mut observer, &cancel);
    Told { events, result }
}

fn saving() -> TrainOptions {
    TrainOptions { save_steps: Some(2), ..TrainOptions::default() }
}

/// The requests that workers were given.
fn requests(garden: &Garden) -> Vec<Value> {
    let text = fs::read_to_string(garden.path("env/requests.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_tells_documented_events_and_leaves_what_a_native_run_leaves() {
    let garden = Garden::new();
    let evaluated = || TrainOptions { eval_split: Some("4".into()), eval_steps: Some(2), ..saving() };
    let told = run(&garden, "out", json!({}), evaluated(), None);
    assert_eq!(told.reason(), EndReason::Finished);
    let (schema, mut seen) = (documented(), BTreeSet::new());
    let lines = told.events.iter().map(|event| Record::now(event.clone()).to_json());
    lines.for_each(|line| check(&line, &schema, &mut seen));
    let journal = fs::read_to_string(garden.path("out").join(EVENTS)).unwrap();
    journal.lines().for_each(|line| check(line, &schema, &mut seen));
    let events: BTreeSet<&str> = seen.iter().map(|(event, _)| event.as_str()).collect();
    let expected =
        "progress rows_surveyed model_loaded started step log evaluation checkpoint memory note end";
    assert_eq!(events, expected.split(' ').collect(), "all but a plan, which there is none of");
    let losses: Vec<f64> = told.steps().iter().map(|step| step.loss).collect();
    for (loss, step) in losses.iter().zip(1..) {
        assert!((loss - 1.0 / f64::from(step)).abs() < 1e-12, "{losses:?}");
    }
    let files = |output: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(garden.path(output)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    train(&garden.config("native", evaluated()), &mut |_: &Event| {}, &Cancel::default()).unwrap();
    let mut expected = files("native");
    expected.insert("worker.log".into());
    assert_eq!(files("out"), expected);
    assert!(fs::read_to_string(garden.path("out/worker.log")).unwrap().contains("a library greets"));
    let card = fs::read_to_string(garden.path("out/README.md")).unwrap();
    assert!(card.contains("\"engine\": \"transformers\"") && !card.contains("(plan "), "{card}");
}

#[test]
fn a_worker_is_given_the_rows_and_the_rates_of_the_native_engine() {
    let garden = Garden::new();
    // With all turns learned, the first token of a row has a label and nothing that predicts it.
    for (number, train_on) in [TrainOn::Assistant, TrainOn::All].into_iter().enumerate() {
        let options = || TrainOptions { train_on: Some(train_on), ..saving() };
        let worker = run(&garden, &format!("out-{number}"), json!({}), options(), None);
        let mut native = Vec::new();
        let mut observer = |event: &Event| {
            if let Event::Step(step) = event {
                native.push(step.clone());
            }
        };
        train(&garden.config(&format!("native-{number}"), options()), &mut observer, &Cancel::default())
            .unwrap();
        let facts = |step: &Step| {
            (step.step, step.rows, step.tokens, step.label_tokens, step.images, step.learning_rate.to_bits())
        };
        assert_eq!(
            worker.steps().into_iter().map(facts).collect::<Vec<_>>(),
            native.iter().map(facts).collect::<Vec<_>>()
        );
    }
    let asked: Vec<String> =
        requests(&garden).iter().map(|request| request["do"].as_str().unwrap().to_owned()).collect();
    assert_eq!(asked.iter().filter(|what| *what == "step").count() as u64, 2 * STEPS);
    assert_eq!(asked[0], "begin");
}

#[test]
fn a_cancelled_run_goes_on_from_its_checkpoint() {
    let garden = Garden::new();
    let cancelled = run(&garden, "out", json!({}), TrainOptions::default(), Some(3));
    assert_eq!(cancelled.reason(), EndReason::Cancelled);
    let resumed = run(&garden, "out", json!({}), TrainOptions::default(), None);
    assert_eq!(resumed.reason(), EndReason::Finished);
    let steps: Vec<u64> = resumed.steps().iter().map(|step| step.step).collect();
    assert_eq!(steps, [4, 5]);
    let begun = requests(&garden).into_iter().rfind(|request| request["do"] == "begin").unwrap();
    assert!(begun["checkpoint"].as_str().unwrap().ends_with("out/checkpoint-3"), "{begun}");
}

#[test]
fn a_run_that_waits_for_its_worker_can_be_cancelled() {
    let garden = Garden::new();
    let python = interpreter(&garden.path("env"), json!({"hang_at_start": true}));
    let options =
        TrainOptions { engine: Some(Engine::Transformers), python: Some(python), ..TrainOptions::default() };
    let (cancel, log) = (Cancel::default(), garden.path("out/worker.log"));
    let asked = cancel.clone();
    // As a run leaves it that is killed in this moment.
    let private = garden.path("out/.worker");
    fs::create_dir_all(private.join("adapter")).unwrap();
    fs::write(private.join("adapter/old"), "").unwrap();
    let meanwhile = private.clone();
    let greeted = move || fs::read_to_string(&log).is_ok_and(|text| text.contains("a library greets"));
    let waiting = std::thread::spawn(move || {
        while !greeted() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let facts =
            (fs::metadata(&meanwhile).unwrap().permissions().mode(), meanwhile.join("adapter/old").exists());
        asked.cancel();
        facts
    });
    let report = train(&garden.config("out", options), &mut |_: &Event| {}, &cancel).unwrap();
    assert_eq!(report.reason, EndReason::Cancelled);
    let (mode, old) = waiting.join().unwrap();
    assert_eq!((mode & 0o777, old), (0o700, false), "only this user reads it, and it is new");
    assert!(!private.exists());
}

#[test]
fn a_memory_limit_ends_the_run_after_a_checkpoint() {
    let garden = Garden::new();
    let limited = TrainOptions { memory_limit: Some("1MB".parse().unwrap()), ..TrainOptions::default() };
    let told = run(&garden, "out", json!({}), limited, None);
    assert_eq!(told.reason(), EndReason::MemoryLimit);
    assert!(garden.path("out/checkpoint-1/manifest.json").exists());
}

#[test]
fn a_worker_that_dies_is_told_with_its_last_words_and_the_run_can_go_on() {
    let garden = Garden::new();
    let killed = run(&garden, "out", json!({"die_at_step": 4}), saving(), None);
    let error = killed.error();
    assert!(error.starts_with("step 4: the Python worker was killed"), "{error}");
    assert!(error.contains("out/worker.log:\n") && error.ends_with("it hurts"), "{error}");
    let resumed = run(&garden, "out", json!({}), saving(), None);
    assert_eq!(resumed.reason(), EndReason::Finished);
    assert_eq!(resumed.steps()[0].step, 3, "from the checkpoint of step 2");
}

#[test]
fn a_full_disk_is_told_as_with_the_native_engine_and_leaves_the_older_checkpoint() {
    let garden = Garden::new();
    let told = run(&garden, "out", json!({"full_at_step": 4}), saving(), None);
    let error = told.error();
    assert!(error.starts_with("no space left for checkpoint 4 in "), "{error}");
    assert!(garden.path("out/checkpoint-2/manifest.json").exists());
    assert!(!garden.path("out/.unfinished-checkpoint-4").exists());
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_as_with_the_native_engine() {
    let garden = Garden::new();
    let told = run(&garden, "out", json!({"nan_at_step": 3}), saving(), None);
    assert!(
        matches!(told.result, Err(RunError::Train(TrainError::Diverged { step: 3, what: "loss", .. }))),
        "{}",
        told.error()
    );
    let again = run(&garden, "out", json!({"nan_at_step": 3}), saving(), None).error();
    assert!(again.contains("the run diverged at step 3"), "{again}");
}

#[test]
fn the_checkpoints_of_another_engine_are_refused() {
    let garden = Garden::new();
    let native = TrainOptions { max_steps: Some(2), ..saving() };
    train(&garden.config("out", native), &mut |_: &Event| {}, &Cancel::default()).unwrap();
    let error = run(&garden, "out", json!({}), saving(), None).error();
    assert!(error.contains("engine was native, now transformers"), "{error}");
    run(&garden, "python", json!({}), TrainOptions { max_steps: Some(2), ..saving() }, None).result.unwrap();
    let error = train(&garden.config("python", saving()), &mut |_: &Event| {}, &Cancel::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("engine was transformers, now native"), "{error}");
}

#[test]
fn a_run_that_is_refused_leaves_nothing_behind() {
    let garden = Garden::new();
    let missing = run(&garden, "out", json!({"missing": ["torch", "peft"]}), saving(), None).error();
    assert!(missing.starts_with("engine transformers needs peft, torch in "), "{missing}");
    assert!(missing.ends_with("-m pip install peft torch"), "{missing}");
    assert!(!garden.path("out").exists());
}

#[test]
fn a_worker_that_cannot_begin_says_why_in_its_own_words() {
    let garden = Garden::new();
    let told = run(&garden, "out", json!({"fail_at_start": "the GPU is on strike"}), saving(), None);
    assert_eq!(told.error(), "the Python worker: the GPU is on strike");
    assert!(!garden.path("out/events.jsonl").exists(), "it never began");
    assert!(matches!(told.events.last(), Some(Event::End(end)) if end.reason == EndReason::Failed));
}
