//! A command never overwrites what it reads.

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};
use support::{Finished, model_garden};

const SCRIPT: &str = "print('training')\n";
const TRACE: &str = "t,rss\n0,1000000\n1,1000000\n2,1000000\n";

/// Runs in `folder`; each word is a path there or a flag.
fn memory(folder: &Path, words: &[&str]) -> Finished {
    Finished::of(model_garden().current_dir(folder).arg("memory").args(words).stdin(Stdio::null()))
}

fn folder_with(name: &str, content: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    (folder, path)
}

#[test]
fn a_run_does_not_write_its_trace_over_the_script() {
    let (folder, script) = folder_with("train.py", SCRIPT);
    let outs: [&[&str]; 3] = [
        &["run", "--out", "train.py", "--", "python3", "train.py"],
        &["run", "--out", "./train.py", "--", "python3", "train.py"],
        &["run", "--out", "train.py", "--", "echo", "--script=train.py"],
    ];
    for words in outs {
        let finished = memory(folder.path(), words);
        assert_eq!((finished.code, finished.output.as_str()), (Some(2), ""), "{words:?}");
        assert!(finished.errors.contains("would overwrite a file of the command"), "{}", finished.errors);
        assert_eq!(fs::read_to_string(&script).unwrap(), SCRIPT);
    }
}

#[test]
fn a_trace_takes_the_place_of_a_trace_and_of_nothing_else() {
    let (folder, notes) = folder_with("notes.txt", "years of work\n");
    let finished = memory(folder.path(), &["run", "--out", "notes.txt", "--", "true"]);
    assert_eq!(finished.code, Some(2));
    let said = "--out notes.txt exists and is not a trace: give another name, or remove the file first";
    assert!(finished.errors.contains(said), "{}", finished.errors);
    assert_eq!(fs::read_to_string(&notes).unwrap(), "years of work\n");
    for _ in 0..2 {
        let finished = memory(folder.path(), &["run", "--out", "run.jsonl", "--", "true"]);
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
    }
}

#[test]
fn a_watch_does_not_write_its_trace_over_the_log() {
    let (folder, log) = folder_with("train.log", "step 1\n");
    let pid = std::process::id().to_string();
    let words = ["watch", "--pid", &pid, "--log", "train.log", "--out", "train.log"];
    let finished = memory(folder.path(), &words);
    assert_eq!(finished.code, Some(2));
    assert!(finished.errors.contains("would overwrite the log train.log"), "{}", finished.errors);
    assert_eq!(fs::read_to_string(&log).unwrap(), "step 1\n");
}

#[test]
fn pages_and_pictures_are_not_written_over_traces_or_one_another() {
    let (folder, trace) = folder_with("x.csv", TRACE);
    let cases: [(&[&str], &str); 5] = [
        (&["analyze", "x.csv", "--html", "x.csv"], "--html x.csv would overwrite the trace x.csv"),
        (&["analyze", "x.csv", "--svg", "x.csv"], "--svg x.csv would overwrite the trace x.csv"),
        (&["analyze", "x.csv", "--svg", "page", "--html", "page"], "--svg and --html name the same file"),
        (&["report", "x.csv", "--html", "x.csv"], "--html x.csv would overwrite the trace x.csv"),
        (&["report", "x.csv", "--svg", "page", "--html", "./page"], "--svg and --html name the same file"),
    ];
    for (words, said) in cases {
        let finished = memory(folder.path(), words);
        assert_eq!((finished.code, finished.output.as_str()), (Some(2), ""), "{words:?}");
        assert!(finished.errors.contains(said), "{words:?}: {}", finished.errors);
        assert_eq!(fs::read_to_string(&trace).unwrap(), TRACE);
        assert!(!folder.path().join("page").exists());
    }
}
