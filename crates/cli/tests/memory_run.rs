//! `memory run` as a wrapper: invisible while all is well, in time at the limit, and nothing left behind.

mod support;

use rustix::process::Signal;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use support::{
    Finished, Running, from_terminal, lives, living, memory_run, model_garden, signal_process, until,
};

const LIMIT: u64 = 150_000_000;
const NOBODY: [i32; 0] = [];

fn run_shell(line: &str) -> Finished {
    Finished::of(model_garden().args(["memory", "run", "--", "sh", "-c", line]).stdin(Stdio::null()))
}

#[test]
fn bytes_and_exit_code_are_the_command_s() {
    let script = r"printf 'a\000\377\rb'; printf 'e\200' >&2; exit 3";
    let output = model_garden().args(["memory", "run", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.stdout, b"a\0\xff\rb");
    assert!(output.stderr.starts_with(b"e\x80"), "{:?}", output.stderr);
    assert_eq!(output.status.code(), Some(3));
}

/// Prints far more than a pipe holds, then leaves a word that it came to its end.
fn print_much(folder: &Path) -> (String, PathBuf) {
    let end = folder.join("end");
    (format!("seq 100000; echo came to its end > {}; exit 3", end.display()), end)
}

#[test]
fn a_reader_that_stops_is_said_once_and_does_not_end_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let (line, end) = print_much(folder.path());
    let errors = folder.path().join("errors");
    let line = format!(
        "{} memory run -- sh -c '{line}' 2>{} | head -c 1000 | wc -c",
        env!("CARGO_BIN_EXE_model-garden"),
        errors.display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1000");
    until("the command comes to its end", || fs::read_to_string(&end).is_ok_and(|text| text.ends_with('\n')));
    let summary = || fs::read_to_string(&errors).unwrap();
    until("the run ends", || summary().contains("ended with code 3"));
    let said = "standard output cannot be written (Broken pipe";
    assert_eq!(summary().matches(said).count(), 1, "{}", summary());
}

#[test]
fn a_full_disk_is_said_once_and_does_not_end_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let (line, end) = print_much(folder.path());
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = model_garden();
    let output =
        command.args(["memory", "run", "--", "sh", "-c", &line]).stdout(full).stderr(Stdio::piped()).spawn();
    let finished = Finished::from(output.unwrap().wait_with_output().unwrap());
    assert_eq!(finished.code, Some(3), "{}", finished.errors);
    assert!(end.exists());
    let said = "standard output cannot be written (No space left";
    assert_eq!(finished.errors.matches(said).count(), 1, "{}", finished.errors);
}

#[test]
fn nobody_who_reads_errors_is_no_reason_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let (line, end) = print_much(folder.path());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let line = format!("({line}) >&2");
    let mut command = model_garden();
    let status = command.args(["memory", "run", "--", "sh", "-c", &line]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(3));
    assert!(end.exists());
}

#[test]
fn input_is_handed_on() {
    let line = format!("echo hello | {} memory run -- cat", env!("CARGO_BIN_EXE_model-garden"));
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(output.stdout, b"hello\n");
}

#[test]
fn a_signal_that_ends_the_command_is_128_and_its_number() {
    assert_eq!(run_shell("kill -USR1 $$").code, Some(128 + 10));
}

#[test]
fn a_command_that_cannot_be_started_is_bad_use() {
    let finished = Finished::of(model_garden().args(["memory", "run", "--", "/no/such/program"]));
    assert_eq!(finished.code, Some(2));
    assert!(finished.errors.contains("cannot start '/no/such/program'"), "{}", finished.errors);
}

#[test]
fn on_a_terminal_the_command_sees_a_terminal() {
    let code = format!(
        "import pty; pty.spawn([{:?}, 'memory', 'run', '--', 'python3', '-c', 'import sys; print(sys.stdout.isatty(), sys.stderr.isatty())'])",
        env!("CARGO_BIN_EXE_model-garden")
    );
    let output = Command::new("python3").args(["-c", &code]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("True True"), "{text}");
}

#[test]
fn a_runaway_is_ended_before_the_limit_with_all_its_hidden_children() {
    let flags = ["--limit", "150MB", "--interval", "50ms", "--grace", "60s", "--format", "json"];
    let finished = Finished::of(&mut memory_run(&flags, "family.py", &["grow"]));
    assert_eq!(finished.code, Some(75), "{}", finished.errors);
    assert_eq!(finished.pids().len(), 3, "{}", finished.output);
    assert_eq!(living(&finished.pids()), NOBODY, "somebody was left behind");
    let highest = finished.highest_level();
    assert!(highest < LIMIT && highest > LIMIT / 2, "{highest}");
    assert!(finished.json().iter().any(|line| line["event"] == "stopping"));
}

#[test]
fn a_command_that_does_not_listen_is_ended_after_the_grace() {
    // Slowly to 95 % of the limit and level from there on, so nothing but the grace ends it.
    let code = "import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = []
for _ in range(37):
    kept.append(bytearray(b'1') * 5_000_000); time.sleep(0.05)
time.sleep(600)";
    let flags = [
        "memory",
        "run",
        "--limit",
        "200MB",
        "--interval",
        "50ms",
        "--grace",
        "300ms",
        "--",
        "python3",
        "-c",
        code,
    ];
    let finished = Finished::of(model_garden().args(flags));
    assert_eq!(finished.code, Some(75), "{}", finished.errors);
    assert!(finished.errors.contains("it did not end within the grace"), "{}", finished.errors);
}

#[test]
fn warn_only_warns() {
    let code = "import time; b = bytearray(b'1') * 95_000_000; time.sleep(0.5)";
    let flags = [
        "memory",
        "run",
        "--limit",
        "100MB",
        "--interval",
        "50ms",
        "--on-limit",
        "warn",
        "--",
        "python3",
        "-c",
        code,
    ];
    let finished = Finished::of(model_garden().args(flags));
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert_eq!(finished.errors.matches("the limit is near").count(), 1, "{}", finished.errors);
}

#[test]
fn a_trainer_is_told_checkpoints_and_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    let flags = [
        "--limit",
        "150MB",
        "--interval",
        "50ms",
        "--on-limit",
        "restart",
        "--restart-arg=--resume",
        "--format",
        "json",
    ];
    let finished = Finished::of(&mut memory_run(&flags, "trainer.py", &[checkpoint.to_str().unwrap()]));
    assert_eq!(finished.code, Some(0), "{}\n{}", finished.output, finished.errors);
    let step = fs::read_to_string(&checkpoint).unwrap();
    assert!(finished.output.contains("heard memory-limit checkpoint 150000000"), "{}", finished.output);
    assert!(finished.output.contains(&format!("starts at {step}\ndone")), "{}", finished.output);
    let samples: Vec<_> = finished.json().iter().map(|line| line["snapshot"]["sample"].clone()).collect();
    assert!(
        samples.iter().any(|sample| sample["step"] == 60 || sample["step"] == 61 || sample["step"] == 62)
    );
    assert!(finished.highest_level() < LIMIT);
    let facts: Vec<_> = finished.json().iter().map(|line| line["facts"].clone()).collect();
    assert!(facts.iter().any(|facts| facts["dataset_size"] == 1000 && facts["samples_per_step"] == 2));
}

#[test]
fn a_command_that_asks_to_go_on_is_started_again_so_often_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("echo start >> {}; exit 75", folder.path().join("starts").display());
    let flags = ["memory", "run", "--on-limit", "restart", "--max-restarts", "1", "--", "sh", "-c", &line];
    let finished = Finished::of(model_garden().args(flags));
    assert_eq!(finished.code, Some(75));
    assert_eq!(fs::read_to_string(folder.path().join("starts")).unwrap(), "start\nstart\n");
}

#[test]
fn a_signal_to_us_reaches_the_command_which_ends_as_it_likes() {
    let code = "import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('checkpoint written', flush=True), sys.exit(7)))
print('ready', flush=True); time.sleep(600)";
    let mut running = Running::start(model_garden().args(["memory", "run", "--", "python3", "-c", code]));
    running.await_line("ready");
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert_eq!((finished.code, finished.output.as_str()), (Some(7), "checkpoint written\n"));
}

#[test]
fn after_a_signal_that_the_command_ignores_the_grace_ends_everything() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let command = memory_run(&["--grace", "200ms"], "family.py", &["wait"]);
        let mut running = Running::start(&mut from_terminal(&command));
        let pids = running.await_pids(3);
        running.await_line("ready");
        running.signal(signal);
        let finished = running.finish();
        assert!(finished.code.is_some_and(|code| code >= 1), "{signal:?}: {:?}", finished.code);
        assert_eq!(living(&pids), NOBODY, "{signal:?}");
    }
}

#[test]
fn what_a_command_leaves_in_the_background_ends_with_it() {
    let finished = Finished::of(&mut memory_run(&[], "family.py", &["leave"]));
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert_eq!(finished.pids().len(), 3);
    assert_eq!(living(&finished.pids()), NOBODY);
}

#[test]
fn a_supervisor_that_is_killed_takes_the_command_along() {
    let mut running = Running::start(&mut memory_run(&[], "family.py", &["wait"]));
    let pids = running.await_pids(3);
    running.await_line("ready");
    let folder = socket_folder(pids[0]);
    assert!(folder.exists());
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    until("the whole tree has ended", || living(&pids).is_empty());
    until("the sockets are removed", || !folder.exists());
}

#[test]
fn a_guard_that_is_killed_takes_the_command_along_and_we_clean_up() {
    let mut running = Running::start(&mut memory_run(&[], "family.py", &["wait"]));
    let pids = running.await_pids(3);
    running.await_line("ready");
    let guard = procfs::process::Process::new(pids[0]).unwrap().stat().unwrap().ppid;
    signal_process(guard, Signal::KILL);
    let finished = running.finish();
    assert_eq!(finished.code, Some(128 + 9), "{}", finished.errors);
    assert_eq!(living(&pids), NOBODY);
}

#[test]
fn a_trace_that_cannot_be_written_is_known_before_the_start() {
    let flags = ["memory", "run", "--out", "/no/such/folder/trace.jsonl", "--", "echo", "started"];
    let finished = Finished::of(model_garden().args(flags));
    assert_eq!((finished.code, finished.output.as_str()), (Some(2), ""));
    assert!(finished.errors.contains("/no/such/folder/trace.jsonl"), "{}", finished.errors);
}

#[test]
fn a_trace_that_can_no_longer_be_written_does_not_end_the_command() {
    // A pipe whose reader leaves after the header is a disk that is full after it.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("trace");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || BufReader::new(fs::File::open(pipe).unwrap()).lines().next().unwrap().unwrap()
    });
    let line = "sleep 0.3; echo done";
    let flags =
        ["memory", "run", "--interval", "20ms", "--out", pipe.to_str().unwrap(), "--", "sh", "-c", line];
    let finished = Finished::of(model_garden().args(flags));
    assert!(reader.join().unwrap().contains("model-garden/1"));
    assert_eq!((finished.code, finished.output.as_str()), (Some(0), "done\n"));
    assert_eq!(
        finished.errors.matches("the trace ends here, the watch goes on").count(),
        1,
        "{}",
        finished.errors
    );
}

/// Where the supervisor of a command has its sockets, as the command is told.
fn socket_folder(pid: i32) -> std::path::PathBuf {
    assert!(lives(pid));
    let environment = procfs::process::Process::new(pid).unwrap().environ().unwrap();
    let socket = std::path::PathBuf::from(&environment[std::ffi::OsStr::new("MODEL_GARDEN_SOCKET")]);
    socket.parent().unwrap().to_owned()
}
