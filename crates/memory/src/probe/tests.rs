//! The probe against real processes; `python3` is what the project is about and must be there.

use super::*;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

const MB: u64 = 1_000_000;

/// A Python process that says a line when it is ready, goes on with each line it gets, and ends with the test.
struct Script(Child);

impl Script {
    fn start(code: &str) -> Self {
        let child =
            Command::new("python3").args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut script = Self(child.expect("python3 is needed by these tests"));
        script.await_line();
        script
    }

    fn await_line(&mut self) {
        // One byte at a time, so that nothing of the next line is swallowed.
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the script ended early");
    }

    fn go_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.await_line();
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn snapshot(probe: &mut Probe) -> Snapshot {
    probe.snapshot().unwrap().expect("the tree lives")
}

#[test]
fn anonymous_memory_is_seen_as_it_grows() {
    let mut script =
        Script::start("print(flush=True); input(); b = bytearray(60_000_000); print(flush=True); input()");
    let mut probe = Probe::attach(script.pid()).unwrap();
    let before = snapshot(&mut probe);
    script.go_on();
    let after = snapshot(&mut probe);
    let grown = after.sample.anon - before.sample.anon;
    assert!((58 * MB..64 * MB).contains(&grown), "{grown}");
    assert_eq!(after.sample.procs, Some(1));
    assert_eq!(after.sample.main_rss, Some(after.processes[0].memory.resident()));
    assert!(after.minor_faults > before.minor_faults);
    assert!(after.peak >= after.sample.owned() && after.sample.available.is_some());
}

#[test]
fn copies_on_write_of_forked_workers_are_counted_once() {
    let code = "
import os, time
data = bytearray(80_000_000)
for _ in range(3):
    if os.fork() == 0: time.sleep(60)
print(flush=True); input()
import signal; os.killpg(0, signal.SIGKILL)";
    let script = Script::start(code);
    let snapshot = snapshot(&mut Probe::attach(script.pid()).unwrap());
    kill_all(&snapshot);
    assert_eq!(snapshot.sample.procs, Some(4));
    let counted_twice: u64 = snapshot.processes.iter().map(|row| row.memory.anon).sum();
    assert!(counted_twice > 320 * MB, "the kernel counts the pages for each: {counted_twice}");
    assert!((80 * MB..110 * MB).contains(&snapshot.sample.anon), "{}", snapshot.sample.anon);
    assert_eq!(snapshot.processes.iter().map(|row| row.depth).collect::<Vec<_>>(), [0, 1, 1, 1]);
}

#[test]
fn shared_memory_is_counted_once() {
    let code = "
import os, time, mmap
shared = mmap.mmap(-1, 50_000_000)
shared.write(bytes(50_000_000))
for _ in range(3):
    if os.fork() == 0:
        sum(shared[::4096]); time.sleep(60)
time.sleep(0.5); print(flush=True); input()";
    let script = Script::start(code);
    let snapshot = snapshot(&mut Probe::attach(script.pid()).unwrap());
    kill_all(&snapshot);
    let counted_twice: u64 = snapshot.processes.iter().map(|row| row.memory.shmem).sum();
    assert!(counted_twice > 190 * MB, "{counted_twice}");
    assert!((50 * MB..52 * MB).contains(&snapshot.sample.shmem), "{}", snapshot.sample.shmem);
}

#[test]
fn a_child_stays_with_the_tree_when_its_parent_ends() {
    // The middle process waits for a line before it leaves its child to init.
    let code = "
import os, time
r, w = os.pipe()
middle = os.fork()
if middle == 0:
    if os.fork() == 0: time.sleep(60)
    os.read(r, 1); os._exit(0)
time.sleep(0.2); print(flush=True); input()
os.write(w, b'x'); os.waitpid(middle, 0); print(flush=True); input()";
    let mut script = Script::start(code);
    let mut probe = Probe::attach(script.pid()).unwrap();
    assert_eq!(snapshot(&mut probe).sample.procs, Some(3));
    script.go_on();
    let after = snapshot(&mut probe);
    kill_all(&after);
    assert_eq!(after.sample.procs, Some(2));
    assert_eq!(
        after.processes.iter().map(|row| row.depth).collect::<Vec<_>>(),
        [0, 0],
        "the orphan is its own root"
    );
}

#[test]
fn a_tree_that_ended_is_none_and_a_missing_one_is_an_error() {
    let mut script = Script::start("print(flush=True); input()");
    let pid = script.pid();
    let mut probe = Probe::attach(pid).unwrap();
    assert!(probe.snapshot().unwrap().is_some());
    script.0.kill().unwrap();
    script.0.wait().unwrap();
    assert_eq!(probe.snapshot().unwrap(), None);
    assert!(matches!(Probe::attach(pid), Err(ProbeError::NoSuchProcess { pid: p }) if p == pid));
}

#[test]
fn a_zombie_has_no_memory_to_watch() {
    let mut script = Script::start("print(flush=True); input()");
    let mut probe = Probe::attach(script.pid()).unwrap();
    script.0.kill().unwrap();
    while tree::read_member(script.pid()).is_ok_and(|member| is_running(&member)) {
        std::thread::yield_now();
    }
    assert_eq!(probe.snapshot().unwrap(), None);
    assert!(matches!(Probe::attach(script.pid()), Err(ProbeError::NoMemory { .. })));
}

fn is_running(member: &Member) -> bool {
    tree::is_alive(&member.stat)
}

#[test]
fn without_shares_shared_memory_is_that_of_the_largest_mapper() {
    let row = |anon, shmem, pss| ProcessRow {
        pid: 1,
        parent: 0,
        depth: 0,
        command: String::new(),
        threads: 1,
        memory: Kinds { anon, shmem, ..Kinds::default() },
        share: Kinds { anon: anon / 2, shmem: shmem / 2, ..Kinds::default() },
        peak: 0,
        pss,
        uss: None,
        minor_faults: 0,
        major_faults: 0,
        gpu: None,
    };
    let total = tree_total(&[row(10, 100, None), row(10, 60, None), row(20, 8, Some(14))]);
    assert_eq!(total, Kinds { anon: 30, shmem: 104, ..Kinds::default() });
    let total = tree_total(&[row(50, 8, Some(29))]);
    assert_eq!(
        total,
        Kinds { anon: 50, shmem: 8, ..Kinds::default() },
        "what strangers map as well is still ours"
    );
}

fn kill_all(snapshot: &Snapshot) {
    use rustix::process::{Pid, Signal, kill_process};
    for row in snapshot.processes.iter().filter_map(|row| Pid::from_raw(row.pid)) {
        let _ = kill_process(row, Signal::KILL);
    }
}
