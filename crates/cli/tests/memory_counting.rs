//! What is counted and what is kept: each page counts once, only certain figures are acted upon, and evidence
//! is given for them.

mod support;

use garden_memory::probe::memory_ceiling;
use serde_json::Value;
use std::fs;
use support::{Finished, memory_run, model_garden};

const MB: u64 = 1_000_000;

fn run_python(flags: &[&str], code: &str) -> Finished {
    Finished::of(model_garden().args(["memory", "run"]).args(flags).args(["--", "python3", "-c", code]))
}

fn owned(sample: &Value) -> Option<u64> {
    Some(sample["anon"].as_u64()? + sample["shmem"].as_u64()? + sample["swap"].as_u64()?)
}

/// Eight workers of a parent of 300 MB, forked anew each epoch: the parent's memory is there once.
fn assert_counted_once(flags: &[&str]) {
    let all = [&["--format", "json", "--steps-per-epoch", "12"], flags].concat();
    let finished = Finished::of(&mut memory_run(&all, "reforked_workers.py", &[]));
    assert_eq!(finished.code, Some(0), "{flags:?}: {}", finished.errors);
    assert!(!finished.errors.contains("stopping"), "{flags:?}: {}", finished.errors);
    let summary = finished.summary();
    let peak = summary["peak"].as_u64().unwrap();
    assert!((300 * MB..330 * MB).contains(&peak), "{flags:?}: {peak}");
    assert_eq!(summary["assessment"]["verdict"], "steady", "{flags:?}: {}", summary["assessment"]);
}

#[test]
fn workers_forked_anew_each_epoch_are_counted_once() {
    assert_counted_once(&["--interval", "20ms"]);
}

#[test]
fn workers_forked_anew_each_epoch_are_not_stopped_for_memory_they_do_not_have() {
    // Counted for each of them the parent's memory would be 2.7 GB.
    assert_counted_once(&["--interval", "20ms", "--limit", "600MB"]);
}

#[test]
fn a_segment_that_workers_begin_to_read_is_counted_once() {
    let flags = ["--interval", "20ms", "--format", "json", "--steps-per-epoch", "30"];
    let finished = Finished::of(&mut memory_run(&flags, "shared_readers.py", &[]));
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    let summary = finished.summary();
    let peak = summary["peak"].as_u64().unwrap();
    assert!((200 * MB..250 * MB).contains(&peak), "counted for each it would be 1.8 GB: {peak}");
    // Reading makes each worker copy some pages of the interpreter: 4 MB in all, which is hardly a warm-up.
    let verdict = summary["assessment"]["verdict"].as_str().unwrap();
    assert!(["steady", "warm-up"].contains(&verdict), "{}", summary["assessment"]);
}

#[test]
fn memory_that_comes_and_goes_while_it_is_measured_breaks_nothing() {
    // A forked child makes the tree one whose pages may be shared, and the limit has it measured.
    let code = "import os, time
if os.fork() == 0: time.sleep(60)
for _ in range(40):
    spike = bytearray(b'1') * 60_000_000
    del spike
os._exit(0)";
    let finished = run_python(&["--interval", "5ms", "--limit", "100MB", "--format", "json"], code);
    assert!(matches!(finished.code, Some(0 | 75)), "{:?}: {}", finished.code, finished.errors);
}

#[test]
fn a_stop_at_the_limit_leaves_its_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    // Readings are far apart: only looks in between can see what happens.
    let flags =
        ["--limit", "200MB", "--interval", "60s", "--format", "json", "--out", trace.to_str().unwrap()];
    let code = "import time
time.sleep(0.3)
kept = []
while True: kept.append(bytearray(b'1') * 5_000_000); time.sleep(0.02)";
    let finished = run_python(&flags, code);
    assert_eq!(finished.code, Some(75), "{}", finished.errors);
    let summary = finished.summary();
    let peak = summary["peak"].as_u64().unwrap();
    assert!((100 * MB..200 * MB).contains(&peak), "{summary}");
    let held = &summary["at_limit"]["held"][0];
    assert!(held["command"].as_str().unwrap().contains("python3"), "{summary}");
    assert!(held["owned"].as_u64().unwrap() > 100 * MB, "{summary}");
    let stopping = finished.json().into_iter().find(|line| line["event"] == "stopping").unwrap();
    assert_eq!(stopping["held"], summary["at_limit"]);
    let text = fs::read_to_string(&trace).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(owned(&last).unwrap() > 100 * MB, "the trace knows it: {last}");
    assert_eq!(last["peak"], summary["at_limit"]);
    assert!(last["acted"].as_str().unwrap().contains("of 200 MB"), "{last}");
}

#[test]
fn a_stop_at_the_limit_tells_a_person_who_held_what() {
    let code = "import os, time
time.sleep(0.2)
if os.fork() == 0: kept = bytearray(b'2') * 30_000_000; time.sleep(60)
kept = []
while True: kept.append(bytearray(b'1') * 5_000_000); time.sleep(0.02)";
    let finished = run_python(&["--limit", "200MB", "--interval", "60s"], code);
    assert_eq!(finished.code, Some(75), "{}", finished.errors);
    let said = &finished.errors;
    assert!(said.contains("telling the command to stop: using "), "{said}");
    let table = said.split("  at limit ").nth(1).unwrap_or_else(|| panic!("{said}"));
    assert!(table.contains("held by") && table.matches("process ").count() >= 2, "{said}");
}

#[test]
fn a_peak_between_two_readings_is_in_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    // The limit is near enough for looks between the readings, which are a second apart.
    let flags =
        ["--limit", "400MB", "--interval", "1s", "--format", "json", "--out", trace.to_str().unwrap()];
    let code = "import time
time.sleep(1.3)
kept = bytearray(b'1') * 200_000_000
time.sleep(0.4)
del kept
time.sleep(1.2)";
    let finished = run_python(&flags, code);
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert!(finished.summary()["peak"].as_u64().unwrap() > 200 * MB, "{}", finished.errors);
    let text = fs::read_to_string(&trace).unwrap();
    let samples: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    // A slow machine may take a reading at that very moment.
    let highest =
        samples.iter().filter_map(|sample| sample["peak"]["owned"].as_u64().max(owned(sample))).max();
    assert!(highest.unwrap() > 200 * MB, "{text}");
}

#[test]
fn a_spike_that_no_look_saw_is_known_by_the_high_water_mark() {
    let code = "import time
time.sleep(0.4)
spike = bytearray(b'1') * 200_000_000
del spike
time.sleep(1)";
    let finished = run_python(&["--interval", "300ms", "--format", "json"], code);
    let summary = finished.summary();
    let spike = summary["spike"]["resident"].as_u64().max(summary["peak"].as_u64()).unwrap();
    assert!(spike > 200 * MB, "{summary}");
    let said = run_python(&["--interval", "300ms"], code).errors;
    assert!(said.contains("between two looks process") || said.contains("at the end, 2"), "{said}");
}

#[test]
fn a_run_lasts_until_its_end_not_until_its_last_reading() {
    let finished = run_python(&["--interval", "60s", "--format", "json"], "import time; time.sleep(1.5)");
    let seconds = finished.summary()["seconds"].as_f64().unwrap();
    assert!(seconds >= 1.5, "{seconds}");
}

#[test]
fn a_command_whose_main_thread_has_ended_is_still_watched() {
    let code = "import ctypes, threading, time
def work():
    while open('/proc/self/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(0.001)
    kept = bytearray(b'1') * 80_000_000
    time.sleep(1.5)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)";
    let finished = run_python(&["--interval", "100ms", "--format", "json"], code);
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    let summary = finished.summary();
    assert!(summary["peak"].as_u64().unwrap() > 80 * MB, "{summary}");
}

#[test]
fn a_limit_may_be_a_part_of_the_memory() {
    let ceiling = memory_ceiling().unwrap();
    let limit = |flags: &[&str]| {
        let all = [flags, &["--interval", "20ms", "--format", "json"]].concat();
        run_python(&all, "import time; time.sleep(0.3)").summary()["limit"].as_u64().unwrap()
    };
    assert_eq!(limit(&["--limit", "80%"]), (ceiling as f64 * 0.8) as u64);
    let leaving = limit(&["--leave-free", "100MB"]);
    assert!(leaving < ceiling - 100 * MB, "{leaving}: the system itself uses some of {ceiling}");
    let both = run_python(&["--limit", "1GB", "--leave-free", "1GB"], "pass");
    assert_eq!(both.code, Some(2), "{}", both.errors);
    let zero = run_python(&["--limit", "0"], "print('started')");
    assert_eq!((zero.code, zero.output.as_str()), (Some(2), ""), "{}", zero.errors);
}

#[test]
fn a_command_is_told_when_less_is_available_than_was_to_stay_free() {
    // Something is in use on every machine, so all but a byte is never available.
    let all_but_a_byte = (memory_ceiling().unwrap() - 1).to_string();
    let flags = ["--leave-free", &all_but_a_byte, "--interval", "20ms"];
    let code = "import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
time.sleep(600)";
    let finished = run_python(&flags, code);
    assert_eq!(finished.code, Some(75), "{}", finished.errors);
    let said = &finished.errors;
    assert!(said.contains("telling the command to stop: ") && said.contains(" are left of the "), "{said}");
    assert!(
        said.contains(" to leave free; the command uses ") && said.contains(" to leave free\n"),
        "{said}"
    );
    let summary = run_python(&[&flags[..], &["--format", "json"]].concat(), code).summary();
    assert_eq!(summary["leave_free"].to_string(), all_but_a_byte, "{summary}");
    assert!(summary["at_limit"]["owned"].as_u64().is_some(), "{summary}");
}
