//! The probe: what a process tree holds in memory at this moment.
//!
//! In comes a PID; out comes a [`Snapshot`] per call, the tree's totals as a [`Sample`] and a row per process. Memory
//! that processes of the tree share is counted once (see `shares`), nothing is kept that grows with time, and a tree
//! that ended yields `None` rather than an error.

mod cgroup;
mod find;
mod gpu;
mod machine;
mod shares;
mod tree;

pub use cgroup::CgroupMemory;
pub use find::{Candidate, Evidence, Found, find_training};
pub use machine::Machine;
pub use shares::Kinds;

use crate::Sample;
use cgroup::Cgroup;
use gpu::Gpu;
use procfs::{
    ProcError,
    process::{Stat, Status},
};
use serde::Serialize;
use shares::Shares;
use std::time::Instant;
use tree::{Member, Tree};

use tree::all_pids;

pub(crate) use cgroup::own_unified_group;
pub(crate) use tree::living_stats;

/// A command line is shown, not run: more than this says nothing more.
const COMMAND_LENGTH: usize = 200;

/// A process that cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is none of this number.
    #[error("there is no process {pid}: it has ended, or it lives in another PID namespace")]
    NoSuchProcess {
        /// The PID asked for.
        pid: i32,
    },
    /// It belongs to somebody else.
    #[error("process {pid} is not ours to read: run as its owner or as root")]
    NotOurs {
        /// The PID asked for.
        pid: i32,
    },
    /// It has no memory of its own.
    #[error("process {pid} ({name}) has no memory of its own: it is a kernel thread or has just ended")]
    NoMemory {
        /// The PID asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// No process shows that it trains.
    #[error(
        "no training found: looked for python, torchrun, accelerate or deepspeed with PyTorch, TensorFlow, JAX or CUDA \
         loaded or steps in their log, and for model-garden{}; watch one by its number with --pid",
        but(passed_over)
    )]
    NothingFound {
        /// Those that could train by their name alone, the largest first.
        passed_over: Vec<String>,
    },
    /// `/proc` cannot be read.
    #[error("cannot read /proc: {0}")]
    Proc(String),
}

/// What was seen and not taken.
fn but(passed_over: &[String]) -> String {
    match passed_over {
        [] => String::new(),
        [one] => format!("; only {one} is there"),
        [first, rest @ ..] => format!("; only {first} and {} more are there", rest.len()),
    }
}

impl ProbeError {
    fn of(pid: i32, error: ProcError) -> Self {
        match error {
            ProcError::NotFound(_) => Self::NoSuchProcess { pid },
            ProcError::PermissionDenied(_) => Self::NotOurs { pid },
            // A process that ends between two reads.
            ProcError::Io(error, _)
                if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
            {
                Self::NoSuchProcess { pid }
            }
            other => Self::Proc(other.to_string()),
        }
    }
}

/// One process of the tree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessRow {
    /// Its number.
    pub pid: i32,
    /// The number of its parent.
    pub parent: i32,
    /// How many members stand above it.
    pub depth: usize,
    /// Its command line, or its name where that is empty.
    pub command: String,
    /// Threads.
    pub threads: u32,
    /// Memory by kind, as the kernel counts it for this process alone.
    pub memory: Kinds,
    /// Its part of the tree's memory, shared pages divided among those that share them.
    pub share: Kinds,
    /// The most that was ever resident.
    pub peak: u64,
    /// Proportional set size at the last reading.
    pub pss: Option<u64>,
    /// Unique set size at the last reading.
    pub uss: Option<u64>,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// GPU memory.
    pub gpu: Option<u64>,
}

/// Everything known of a tree at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// The tree's totals.
    pub sample: Sample,
    /// The most memory of the tree's own that was seen so far.
    pub peak: u64,
    /// Page faults without disk of the tree, ended processes included.
    pub minor_faults: u64,
    /// A row per process, parents before their children.
    pub processes: Vec<ProcessRow>,
    /// The machine.
    pub machine: Machine,
    /// The control group that binds the tree.
    pub cgroup: Option<CgroupMemory>,
}

/// Samples one process tree.
pub struct Probe {
    tree: Tree,
    main: i32,
    /// Whether the tree counts as ended once the main process has.
    ends_with_main: bool,
    shares: Shares,
    cgroup: Option<Cgroup>,
    gpu: Option<Gpu>,
    start: Instant,
    peak: u64,
    ended_faults: Faults,
}

#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    minor: u64,
    major: u64,
}

impl Faults {
    fn add(&mut self, stat: &Stat) {
        self.minor += stat.minflt;
        self.major += stat.majflt;
    }
}

impl Probe {
    /// Watches `pid` and everything below it.
    pub fn attach(pid: i32) -> Result<Self, ProbeError> {
        let member = tree::read_member(pid).map_err(|error| ProbeError::of(pid, error))?;
        let status = member.process.status().map_err(|error| ProbeError::of(pid, error))?;
        if status.vmrss.is_none() {
            return Err(ProbeError::NoMemory { pid, name: status.name });
        }
        let tree = Tree::of(pid).map_err(|error| ProbeError::of(pid, error))?;
        Ok(Self::new(tree, pid, false, Cgroup::of(&member.process)))
    }

    /// Watches everything below `keeper`, without the keeper, until `main` ends.
    ///
    /// What is left of a tree after its command has ended is not the run any more: it would look like a level.
    pub fn below(keeper: i32, main: i32) -> Self {
        let cgroup = tree::read_member(main).ok().and_then(|member| Cgroup::of(&member.process));
        Self::new(Tree::below(keeper), main, true, cgroup)
    }

    fn new(tree: Tree, main: i32, ends_with_main: bool, cgroup: Option<Cgroup>) -> Self {
        Self {
            tree,
            main,
            ends_with_main,
            shares: Shares::new(),
            cgroup,
            gpu: Gpu::load(),
            start: Instant::now(),
            peak: 0,
            ended_faults: Faults::default(),
        }
    }

    /// The tree at this moment; `None` once it has ended.
    pub fn snapshot(&mut self) -> Result<Option<Snapshot>, ProbeError> {
        let before: Vec<i32> = self.tree.members().map(|member| member.stat.pid).collect();
        let ended = self.tree.refresh().map_err(|error| ProbeError::Proc(error.to_string()))?;
        ended.iter().for_each(|stat| self.ended_faults.add(stat));
        let changed = !before.into_iter().eq(self.tree.members().map(|member| member.stat.pid));

        // One whose memory is already gone is exiting: its zeros would mislead.
        let with_memory = |member| Some((member, read_status(member)?));
        let living: Vec<(&Member, Status)> = self.tree.members().filter_map(with_memory).collect();
        let main_lives = living.iter().any(|(member, _)| member.stat.pid == self.main);
        if living.is_empty() || (self.ends_with_main && !main_lives) {
            return Ok(None);
        }
        let counted = living.iter().map(|(member, status)| (&member.process, counters(status)));
        let fresh = self.shares.refresh(counted, changed);
        let gpu = self.gpu.as_mut().map(Gpu::by_process);
        let rows = living.iter().map(|(member, status)| {
            let mut row = row_of(member, status, &self.shares);
            row.gpu = gpu.as_ref().and_then(|by_process| by_process.get(&row.pid).copied());
            row
        });
        let mut rows = parents_first(rows.collect());
        if let [only] = rows.as_mut_slice() {
            // It shares with nobody of the tree.
            only.share = only.memory;
        }
        Ok(Some(self.sum_up(rows, fresh)))
    }

    fn sum_up(&mut self, processes: Vec<ProcessRow>, fresh: bool) -> Snapshot {
        let machine = Machine::read();
        let total = tree_total(&processes);
        let measured = |value: fn(&ProcessRow) -> Option<u64>| {
            fresh.then(|| processes.iter().map(value).sum::<Option<u64>>())
        };
        let gpu: Vec<u64> = processes.iter().filter_map(|row| row.gpu).collect();
        let sum = |value: fn(&ProcessRow) -> u64| processes.iter().map(value).sum::<u64>();
        let sample = Sample {
            t: self.start.elapsed().as_secs_f64(),
            rss: total.resident(),
            anon: total.anon,
            file: total.file,
            shmem: total.shmem,
            swap: total.swap,
            pss: measured(|row| row.pss).flatten(),
            uss: measured(|row| row.uss).flatten(),
            main_rss: processes.iter().find(|row| row.pid == self.main).map(|row| row.memory.resident()),
            procs: u32::try_from(processes.len()).ok(),
            threads: Some(processes.iter().map(|row| row.threads).sum()),
            major_faults: Some(self.ended_faults.major + sum(|row| row.major_faults)),
            gpu: (!gpu.is_empty()).then(|| gpu.iter().sum()),
            available: machine.available,
            ..Sample::default()
        };
        self.peak = self.peak.max(sample.owned());
        Snapshot {
            peak: self.peak,
            minor_faults: self.ended_faults.minor + sum(|row| row.minor_faults),
            sample,
            processes,
            machine,
            cgroup: self.cgroup.as_ref().and_then(Cgroup::read),
        }
    }
}

/// `None` for a process that ended or is giving its memory back.
fn read_status(member: &Member) -> Option<Status> {
    member.process.status().ok().filter(|status| status.vmrss.is_some())
}

/// The kernel counts these in units of 1024 bytes.
fn counters(status: &Status) -> Kinds {
    let bytes = |kib: Option<u64>| kib.unwrap_or(0) * 1024;
    match status.rssanon {
        Some(_) => Kinds {
            anon: bytes(status.rssanon),
            file: bytes(status.rssfile),
            shmem: bytes(status.rssshmem),
            swap: bytes(status.vmswap),
        },
        // Before Linux 4.5 there is no split; all of it may be the process's own.
        None => Kinds { anon: bytes(status.vmrss), swap: bytes(status.vmswap), ..Kinds::default() },
    }
}

fn row_of(member: &Member, status: &Status, shares: &Shares) -> ProcessRow {
    let memory = counters(status);
    let known = shares.of(member.stat.pid);
    ProcessRow {
        pid: member.stat.pid,
        parent: member.stat.ppid,
        depth: 0,
        command: command_of(member),
        threads: u32::try_from(status.threads).unwrap_or(u32::MAX),
        memory,
        share: known.map_or(memory, |share| share.own(&memory)),
        peak: status.vmhwm.unwrap_or(0) * 1024,
        pss: known.map(|share| share.rollup.pss),
        uss: known.map(|share| share.rollup.uss),
        minor_faults: member.stat.minflt,
        major_faults: member.stat.majflt,
        gpu: None,
    }
}

fn command_of(member: &Member) -> String {
    let line = member.process.cmdline().map(|words| words.join(" ")).unwrap_or_default();
    let shown = if line.trim().is_empty() { member.stat.comm.as_str() } else { line.trim() };
    shown.chars().map(|c| if c.is_control() { ' ' } else { c }).take(COMMAND_LENGTH).collect()
}

/// The tree's memory, each page once.
///
/// With shares that is their sum, but never less than the largest process has by its own counters: a share is also
/// divided with strangers that map the same pages (libraries, a parent outside the tree), and falls behind when a
/// worker ends. Without shares (another user's processes, an old kernel) copies on write of forked workers cannot be
/// told from their own pages, so anonymous memory is an upper bound; shared memory is that of the process that maps
/// the most, since the processes of one job map the same segments.
fn tree_total(processes: &[ProcessRow]) -> Kinds {
    let mut total = Kinds::default();
    let mut largest = Kinds::default();
    let mut unshared_shmem = 0;
    for row in processes {
        largest = largest.each_max(&row.memory);
        if row.pss.is_some() {
            total.add(&row.share);
        } else {
            total.add(&Kinds { shmem: 0, ..row.memory });
            unshared_shmem = unshared_shmem.max(row.memory.shmem);
        }
    }
    total.shmem += unshared_shmem;
    total.each_max(&largest)
}

/// Orders rows as a tree is printed and fills in their depth.
fn parents_first(rows: Vec<ProcessRow>) -> Vec<ProcessRow> {
    let is_root =
        |row: &ProcessRow| !rows.iter().any(|other| other.pid == row.parent && other.pid != row.pid);
    let mut pending: Vec<(usize, usize)> =
        (0..rows.len()).rev().filter(|index| is_root(&rows[*index])).map(|index| (index, 0)).collect();
    let mut ordered = Vec::with_capacity(rows.len());
    while let Some((index, depth)) = pending.pop() {
        let pid = rows[index].pid;
        ordered.push(ProcessRow { depth, ..rows[index].clone() });
        let children =
            (0..rows.len()).rev().filter(|child| rows[*child].parent == pid && rows[*child].pid != pid);
        pending.extend(children.map(|child| (child, depth + 1)));
    }
    ordered
}

#[cfg(test)]
mod tests;
