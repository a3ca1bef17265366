//! The probe against real processes; `python3` is what the project is about and must be there.

use super::*;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

const MB: u64 = 1_000_000;

/// A Python process that says a line when it is ready, goes on with each line it gets, and ends with the
/// test.
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
    let row =
        |pid, shmem| ProcessRow { pid, memory: Kinds { shmem, ..Kinds::default() }, ..ProcessRow::default() };
    let mut rows = [row(1, 100), row(2, 60), row(3, 40)];
    let (total, level) = divide(&mut rows, &Shares::new(), &Ledger::default());
    assert_eq!(total.shmem, 100);
    assert_eq!(rows.map(|row| row.share.shmem), [50, 30, 20], "the parts add up");
    assert_eq!(
        (level.certain, level.owned, level.most),
        (100, 100, 200),
        "what was not measured is in doubt"
    );
}

/// A parent of 300 MB whose eight idle workers are forked anew for each epoch, which a line ends.
const EPOCHS: &str = "
import os, signal, time
data = bytearray(b'1') * 300_000_000
while True:
    workers = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        workers.append(pid)
    print(flush=True); input()
    for pid in workers:
        os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)";

#[test]
fn workers_forked_anew_each_epoch_never_count_twice_however_little_is_measured() {
    let mut script = Script::start(EPOCHS);
    let mut probe = Probe::attach(script.pid()).unwrap();
    for epoch in 0..12 {
        // Looks come thick and fast near a limit, so the budget for measurements is soon spent.
        for _ in 0..5 {
            let Snapshot { sample, level, .. } = snapshot(&mut probe);
            let owned = sample.owned();
            assert_eq!(sample.procs, Some(9), "epoch {epoch}");
            assert!((300 * MB..330 * MB).contains(&owned), "epoch {epoch}: {owned}");
            assert!(level.certain >= 300 * MB && level.most < 400 * MB, "epoch {epoch}: {level:?}");
        }
        script.go_on();
    }
    kill_all(&snapshot(&mut probe));
}

#[test]
fn pages_that_workers_write_to_become_their_own() {
    let code = "
import os, signal, sys
data = bytearray(b'1') * 100_000_000
ready, done = os.pipe(), os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.read(ready[0], 1)
        data[::4096] = bytes(len(range(0, len(data), 4096)))
        os.write(done[1], b'.')
        signal.pause()
print(flush=True); input()
os.write(ready[1], b'...')
for _ in range(3): os.read(done[0], 1)
print(flush=True); input()";
    let mut script = Script::start(code);
    let mut probe = Probe::attach(script.pid()).unwrap();
    let shared = snapshot(&mut probe).sample.owned();
    assert!((100 * MB..130 * MB).contains(&shared), "{shared}");
    script.go_on();
    let written = probe.look(Need::Usual).unwrap().unwrap();
    assert!(written.level.most >= 390 * MB, "it is known that this may have happened: {:?}", written.level);
    let measured = loop {
        // Paced by the cost of the measurement before, never by a clock of the test.
        let look = probe.look(Need::Pressing).unwrap().unwrap();
        if look.measured {
            break look;
        }
    };
    kill_all(&measured);
    let owned = measured.sample.owned();
    assert!((390 * MB..430 * MB).contains(&owned), "{owned}");
    assert!(measured.processes.iter().all(|row| row.share.anon > 90 * MB), "each has its own copy");
}

#[test]
fn a_process_whose_main_thread_has_ended_lives_on() {
    let code = "
import ctypes, threading, time
def work():
    kept = bytearray(b'1') * 50_000_000
    while open('/proc/self/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(0.001)
    print(flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)";
    let script = Script::start(code);
    let mut probe = Probe::attach(script.pid()).unwrap();
    let seen = snapshot(&mut probe);
    assert!(seen.sample.anon > 50 * MB, "{}", seen.sample.anon);
    assert_eq!(seen.sample.procs, Some(1));
    assert!(seen.sample.main_rss.is_some_and(|main| main > 50 * MB));
}

#[test]
fn a_spike_between_two_looks_is_known_by_the_high_water_mark() {
    let code = "
print(flush=True); input()
spike = bytearray(b'1') * 200_000_000
del spike
print(flush=True); input()";
    let mut script = Script::start(code);
    let mut probe = Probe::attach(script.pid()).unwrap();
    assert_eq!(snapshot(&mut probe).spike, None);
    script.go_on();
    let after = snapshot(&mut probe);
    assert!(after.peak < 100 * MB, "no look saw it: {}", after.peak);
    let spike = after.spike.expect("the kernel did");
    assert!(spike.resident > 200 * MB && spike.command.contains("python3"), "{spike:?}");
}

fn kill_all(snapshot: &Snapshot) {
    use rustix::process::{Pid, Signal, kill_process};
    for row in snapshot.processes.iter().filter_map(|row| Pid::from_raw(row.pid)) {
        let _ = kill_process(row, Signal::KILL);
    }
}
