//! `memory watch` on processes that exist, and on some that do not.

mod support;

use rustix::process::{Resource, Rlimit, Signal};
use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
};
use support::{Finished, Running, from_terminal, model_garden, until};

struct Sleeper(std::process::Child);

impl Sleeper {
    fn start() -> Self {
        let code = "import time; print('ready', flush=True); time.sleep(600)";
        let mut command = Command::new("python3");
        // A pipe behind its output: a file would be followed as its log.
        let mut child =
            command.args(["-c", code]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(flags: &[&str]) -> Finished {
    Finished::of(model_garden().args(["memory", "watch"]).args(flags).stdin(Stdio::null()))
}

#[test]
fn without_a_terminal_there_is_a_line_per_interval_and_a_summary() {
    let sleeper = Sleeper::start();
    let finished = watch(&["--pid", &sleeper.pid(), "--interval", "50ms", "--duration", "300ms"]);
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    let lines: Vec<&str> = finished.output.lines().collect();
    assert!(lines[0].trim_start().starts_with("time"), "{}", finished.output);
    assert!(
        lines.iter().filter(|line| line.contains("MB") && line.contains("s ")).count() >= 3,
        "{}",
        finished.output
    );
    assert!(finished.output.contains("the time was up"), "{}", finished.output);
    assert!(finished.output.contains("  verdict  "), "{}", finished.output);
}

#[test]
fn ctrl_c_ends_with_the_summary_and_keeps_the_trace() {
    let sleeper = Sleeper::start();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let flags =
        ["memory", "watch", "--interval", "20ms", "--pid", &sleeper.pid(), "--out", trace.to_str().unwrap()];
    let mut running = Running::start(&mut from_terminal(model_garden().args(flags)));
    running.await_line("     time");
    (0..3).for_each(|_| drop(running.await_line("   ")));
    running.signal(Signal::INT);
    let finished = running.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert!(finished.output.contains("stopped by hand"), "{}", finished.output);
    let lines = fs::read_to_string(trace).unwrap();
    assert!(lines.lines().count() >= 4 && lines.ends_with("}\n"), "{lines}");
}

#[test]
fn a_killed_watcher_loses_at_most_the_sample_under_way() {
    let sleeper = Sleeper::start();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let flags =
        ["memory", "watch", "--interval", "20ms", "--pid", &sleeper.pid(), "--out", trace.to_str().unwrap()];
    let mut running = Running::start(model_garden().args(flags));
    running.await_line("     time");
    (0..5).for_each(|_| drop(running.await_line("   ")));
    running.child.kill().unwrap();
    let text = fs::read_to_string(trace).unwrap();
    assert!(text.lines().count() >= 6, "a header and each reading that was shown:\n{text}");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[test]
fn a_pid_that_is_not_there_is_bad_input() {
    let finished = watch(&["--pid", "2147483647"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.errors.contains("there is no process 2147483647"), "{}", finished.errors);
}

#[test]
fn wrong_use_is_said_and_is_exit_code_2() {
    let cases: [(&[&str], &str); 8] = [
        (&[], "--pid"),
        (&["--pid", "0"], "0"),
        (&["--pid", "x"], "x"),
        (&["--pid", "1", "--find-training"], "cannot be used with"),
        (&["--pid", "1", "--interval", "0s"], "out of range"),
        (&["--pid", "1", "--limit", "many"], "is not a limit"),
        (&["--pid", "1", "--log", "/no/such/log"], "/no/such/log"),
        (&["--pid", "1", "--format", "tui"], "needs a terminal"),
    ];
    for (flags, said) in cases {
        let finished = watch(flags);
        assert_eq!(finished.code, Some(2), "{flags:?}");
        assert!(finished.errors.contains(said), "{flags:?}: {}", finished.errors);
    }
}

#[test]
fn a_kernel_thread_has_nothing_to_watch() {
    let is_kernel_thread = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    // In a container PID 2 is somebody else, or nobody.
    if is_kernel_thread {
        let finished = watch(&["--pid", "2"]);
        assert_eq!(finished.code, Some(2));
        assert!(finished.errors.contains("no memory of its own"), "{}", finished.errors);
    }
}

#[test]
fn the_training_is_found_and_the_choice_explained() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libtorch_cpu.so");
    fs::write(&library, [0; 4096]).unwrap();
    let code = "import mmap, sys, time
with open(sys.argv[1], 'r+b') as file: kept = mmap.mmap(file.fileno(), 0)
print('ready', flush=True); time.sleep(600)";
    let mut trainer = Running::start(Command::new("python3").args(["-c", code]).arg(&library));
    trainer.await_line("ready");
    let finished = watch(&["--find-training", "--interval", "20ms", "--duration", "100ms"]);
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    let said = finished.output.lines().next().unwrap().to_owned();
    // Which one depends on what else trains here; ours is among them, so one is found at least.
    assert!(said.contains("picked process") && said.contains("that train"), "{said}");
    assert!(
        said.contains("loaded") || said.contains("prints steps") || said.contains("is our own"),
        "{said}"
    );
}

#[test]
fn a_log_that_is_a_pipe_is_refused_by_name() {
    let sleeper = Sleeper::start();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let finished = watch(&["--pid", &sleeper.pid(), "--log", pipe.to_str().unwrap()]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.errors.contains("pipe is not a file"), "{}", finished.errors);
}

#[test]
fn a_look_that_fails_is_said_and_the_watch_goes_on() {
    let sleeper = Sleeper::start();
    let flags = ["memory", "watch", "--interval", "20ms", "--pid", &sleeper.pid()];
    let mut running = Running::start(model_garden().args(flags));
    running.await_line("     time");
    running.await_line("   ");
    let pid = rustix::process::Pid::from_raw(running.pid());
    let files = |current| {
        let old = rustix::process::getrlimit(Resource::Nofile);
        rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum: old.maximum }).unwrap()
    };
    // Without a file to open nothing in /proc can be read.
    let before = files(Some(0));
    let said = running.await_line("model-garden: the memory cannot be read");
    assert!(said.contains("the watch goes on") && said.contains("open files"), "{said}");
    files(before.current);
    (0..2).for_each(|_| drop(running.await_line("   ")));
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert!(finished.output.contains("stopped by hand"), "{}", finished.output);
}

#[test]
fn a_watch_whose_output_fills_the_disk_says_so_once_and_goes_on() {
    let sleeper = Sleeper::start();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let flags = ["memory", "watch", "--interval", "20ms", "--duration", "200ms", "--pid", &sleeper.pid()];
    let child = model_garden().args(flags).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let finished = Finished::from(child.wait_with_output().unwrap());
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert_eq!(
        finished.errors.matches("standard output cannot be written").count(),
        1,
        "{}",
        finished.errors
    );
}

#[test]
fn a_watch_that_nobody_reads_any_more_ends() {
    let sleeper = Sleeper::start();
    let flags = ["memory", "watch", "--interval", "20ms", "--pid", &sleeper.pid()];
    let mut running = Running::start(model_garden().args(flags));
    running.await_line("     time");
    let child = running.leave();
    until("the watch ends", || child.try_wait().unwrap().is_some_and(|status| status.code() == Some(0)));
}

#[test]
fn errors_that_nobody_reads_do_not_change_the_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = model_garden().args(["memory", "watch", "--pid", "2147483647"]).stderr(writer).status();
    assert_eq!(status.unwrap().code(), Some(2));
}
