//! Ends every descendant of a process, however it hides.
//!
//! Takes the PID of a process that adopts all orphans below it and sends SIGKILL to its descendants until
//! none is left. Each is signalled through a handle that was checked after it was opened, so a reused PID is
//! never hit.

use crate::sampling;
use procfs::process::Process;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

/// A killed process is gone within milliseconds; one in an uninterruptible wait (a dead network disk) may
/// never be.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(5);

/// A process at one moment: its PID, and when it was born.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub pid: i32,
    born: u64,
}

/// Kills everything below `keeper` and waits until it is gone; returns the processes that did not end.
pub(super) fn end_below(keeper: i32) -> Vec<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let alive = descendants(keeper);
        if alive.is_empty() || Instant::now() > deadline {
            return alive.iter().map(|process| process.pid).collect();
        }
        alive.iter().for_each(|process| kill(*process));
        thread::sleep(PAUSE);
    }
}

/// Living processes below `keeper`; zombies only wait to be collected.
pub(super) fn descendants(keeper: i32) -> Vec<Known> {
    let stats = sampling::living_stats();
    let parents: HashMap<i32, i32> = stats.iter().map(|stat| (stat.pid, stat.ppid)).collect();
    let is_below = |pid: i32| {
        let above = std::iter::successors(parents.get(&pid), |parent| parents.get(parent));
        above.take(parents.len()).any(|parent| *parent == keeper)
    };
    let below = stats.iter().filter(|stat| is_below(stat.pid));
    below.map(|stat| Known { pid: stat.pid, born: stat.starttime }).collect()
}

fn kill(known: Known) {
    let Some(handle) = Pid::from_raw(known.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    let still_the_same = Process::new(known.pid)
        .and_then(|process| process.stat())
        .is_ok_and(|stat| stat.starttime == known.born);
    if still_the_same {
        // It may end by itself in this very moment.
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
}
