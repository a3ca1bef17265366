//! The probe: what a process tree holds in memory at this moment.
//!
//! Attach a [`Probe`] to a PID; each call gives a [`Snapshot`] with the tree's totals as a [`Sample`] and a
//! row per process. Memory that processes of the tree share is counted once (see `shares`). A probe keeps
//! nothing that grows with time. A tree that has ended is `None`, not an error.

mod cgroup;
mod find;
mod gpu;
mod high_water;
mod kin;
mod level;
mod living;
mod machine;
mod mapped;
mod shares;
mod tree;

pub use cgroup::CgroupMemory;
pub use find::{Candidate, Evidence, Found, find_training};
pub use gpu::{GpuDevice, gpu_devices};
pub use high_water::Spike;
pub use level::Level;
pub use machine::{Machine, memory_available, memory_ceiling};
pub use shares::Kinds;

use crate::{
    Sample,
    sample::{Holder, Moment},
};
use cgroup::Cgroup;
use gpu::Gpu;
use high_water::HighWater;
use kin::Ledger;
use living::Living;
use mapped::{Mapped, Then};
use procfs::{
    ProcError,
    process::{Stat, Status},
};
use serde::Serialize;
use shares::{Shares, Subject};
use std::time::Instant;
use tree::{Member, Tree};

use tree::all_pids;

pub(crate) use cgroup::own_unified_group;
pub(crate) use tree::living_stats;

/// Command lines are cut at this length: a longer one tells a person no more.
const COMMAND_LENGTH: usize = 200;
/// Before a limit is acted upon, the tree is measured, at the cost of at most this share of a core ...
const PRESSING_SHARE: f64 = 0.1;
/// ... or of this share, where the limit is reached only if all uncertain memory exists.
const CAREFUL_SHARE: f64 = 0.02;

/// How much a measurement matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// As the budget allows.
    Usual,
    /// The limit may be near.
    Careful,
    /// The limit is near by the best estimate.
    Pressing,
}

/// A process that cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No process has this PID.
    #[error("there is no process {pid}: it has ended, or it lives in another PID namespace")]
    NoSuchProcess {
        /// The PID asked for.
        pid: i32,
    },
    /// It belongs to somebody else.
    #[error("process {pid} may not be read: run as its owner or as root")]
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
         loaded or steps in their log, and for model-garden{}",
        but(passed_over)
    )]
    NothingFound {
        /// Processes that may train, going by their name alone; the largest first.
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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// The tree's totals.
    pub sample: Sample,
    /// How well the tree's own memory is known.
    pub level: Level,
    /// Whether the tree was measured for this.
    #[serde(skip)]
    pub measured: bool,
    /// The highest level of the tree's own memory so far.
    pub peak: u64,
    /// The largest process between two looks.
    pub spike: Option<Spike>,
    /// Page faults without disk of the tree, ended processes included.
    pub minor_faults: u64,
    /// A row per process, parents before their children.
    pub processes: Vec<ProcessRow>,
    /// The machine.
    pub machine: Machine,
    /// The control group that binds the tree.
    pub cgroup: Option<CgroupMemory>,
}

impl Snapshot {
    /// What the tree could still get, from the machine or from its control group, whichever is less.
    pub(crate) fn available(&self) -> Option<u64> {
        let group = self.cgroup.and_then(CgroupMemory::available);
        self.machine.available.into_iter().chain(group).min()
    }

    /// This moment, `t` seconds after the start: who holds what.
    pub(crate) fn moment(&self, t: f64) -> Moment {
        let owned = |row: &ProcessRow| row.share.anon + row.share.shmem + row.share.swap;
        let mut rows: Vec<&ProcessRow> = self.processes.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(owned(row)));
        rows.truncate(Moment::MOST_NAMED);
        let holder =
            |row: &ProcessRow| Holder { pid: row.pid, command: row.command.clone(), owned: owned(row) };
        Moment { t, owned: self.sample.owned(), held: rows.into_iter().map(holder).collect() }
    }
}

/// Samples one process tree.
pub struct Probe {
    tree: Tree,
    main: i32,
    /// Whether the tree counts as ended once the main process has.
    ends_with_main: bool,
    shares: Shares,
    ledger: Ledger,
    high_water: HighWater,
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
        if status.vmrss.is_none() && tree::living_thread(&member.process).is_none() {
            return Err(ProbeError::NoMemory { pid, name: status.name });
        }
        let tree = Tree::of(pid).map_err(|error| ProbeError::of(pid, error))?;
        Ok(Self::new(tree, pid, false, Cgroup::of(&member.process)))
    }

    /// Watches everything below `keeper`, without the keeper, until `main` ends.
    ///
    /// What is left of a tree after its command has ended no longer belongs to the run: it would look like a
    /// level.
    pub(crate) fn below(keeper: i32, main: i32) -> Self {
        let cgroup = tree::read_member(main).ok().and_then(|member| Cgroup::of(&member.process));
        Self::new(Tree::below(keeper), main, true, cgroup)
    }

    fn new(tree: Tree, main: i32, ends_with_main: bool, cgroup: Option<Cgroup>) -> Self {
        Self {
            tree,
            main,
            ends_with_main,
            shares: Shares::new(),
            ledger: Ledger::default(),
            high_water: HighWater::default(),
            cgroup,
            gpu: Gpu::load(),
            start: Instant::now(),
            peak: 0,
            ended_faults: Faults::default(),
        }
    }

    /// The tree at this moment; `None` once it has ended.
    pub fn snapshot(&mut self) -> Result<Option<Snapshot>, ProbeError> {
        self.look(Need::Usual)
    }

    /// The same, measured if it is needed and the cost allows.
    pub(crate) fn look(&mut self, need: Need) -> Result<Option<Snapshot>, ProbeError> {
        let ended = self.tree.refresh().map_err(|error| ProbeError::Proc(error.to_string()))?;
        ended.iter().for_each(|stat| self.ended_faults.add(stat));
        let living: Vec<Living<'_>> = self.tree.members().filter_map(Living::read).collect();
        let main_lives = living.iter().any(|process| process.pid() == self.main);
        if living.is_empty() || (self.ends_with_main && !main_lives) {
            return Ok(None);
        }
        self.ledger.follow(&living.iter().map(Living::look).collect::<Vec<_>>());
        let gpu = self.gpu.as_mut().map(Gpu::by_process);
        let rows = living.iter().map(|process| {
            let mut row = row_of(process);
            row.gpu = gpu.as_ref().and_then(|by_process| by_process.get(&row.pid).copied());
            row
        });
        let mut rows = parents_first(rows.collect());
        let (mut total, mut level) = divide(&mut rows, &self.shares, &self.ledger);
        let measures = match need {
            Need::Usual => self.shares.may_measure(level.doubt()),
            Need::Careful => self.shares.costs_at_most(CAREFUL_SHARE),
            Need::Pressing => self.shares.costs_at_most(PRESSING_SHARE),
        };
        let subjects: Vec<Subject<'_>> = living.iter().map(Living::subject).collect();
        let found = measures.then(|| self.shares.measure(&subjects, need != Need::Usual)).flatten();
        let measured = found.is_some();
        if let Some(found) = found {
            self.ledger.measure(&found);
            (total, level) = divide(&mut rows, &self.shares, &self.ledger);
        }
        Ok(Some(self.sum_up(rows, total, level, measured)))
    }

    fn sum_up(&mut self, processes: Vec<ProcessRow>, total: Kinds, level: Level, measured: bool) -> Snapshot {
        let machine = Machine::read();
        let all = |value: fn(&ProcessRow) -> Option<u64>| {
            measured.then(|| processes.iter().map(value).sum::<Option<u64>>())
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
            pss: all(|row| row.pss).flatten(),
            uss: all(|row| row.uss).flatten(),
            main_rss: processes.iter().find(|row| row.pid == self.main).map(|row| row.memory.resident()),
            procs: u32::try_from(processes.len()).ok(),
            threads: Some(processes.iter().map(|row| row.threads).sum()),
            major_faults: Some(self.ended_faults.major + sum(|row| row.major_faults)),
            gpu: (!gpu.is_empty()).then(|| gpu.iter().sum()),
            available: machine.available,
            ..Sample::default()
        };
        self.peak = self.peak.max(sample.owned());
        self.high_water.follow(&processes, sample.rss, !self.ends_with_main);
        Snapshot {
            peak: self.peak,
            spike: self.high_water.highest(),
            minor_faults: self.ended_faults.minor + sum(|row| row.minor_faults),
            sample,
            level,
            measured,
            processes,
            machine,
            cgroup: self.cgroup.as_ref().and_then(Cgroup::read),
        }
    }

    /// The highest mark since the last call; see [`Sample::spike`].
    pub(crate) fn take_spike(&mut self) -> Option<u64> {
        self.high_water.take_fresh()
    }
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

/// A row without its part of the tree's memory, which depends on the others.
fn row_of(process: &Living<'_>) -> ProcessRow {
    let Living { member, status, .. } = process;
    ProcessRow {
        pid: member.stat.pid,
        parent: member.stat.ppid,
        depth: 0,
        command: command_of(member),
        threads: u32::try_from(status.threads).unwrap_or(u32::MAX),
        memory: counters(status),
        share: Kinds::default(),
        peak: status.vmhwm.unwrap_or(0) * 1024,
        pss: None,
        uss: None,
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

/// Gives each row its part of the tree's memory, each page once; the parts add up to the total that is
/// returned.
///
/// Anonymous and swapped memory are divided by their accounts (`kin`), files and shared memory by what was
/// measured of them (`mapped`). What was not measured (a new worker, another user's process) adds nothing to
/// these, since the processes of one job map the same segments and files.
fn divide(rows: &mut [ProcessRow], shares: &Shares, ledger: &Ledger) -> (Kinds, Level) {
    let (mut files, mut shared) = (Mapped::default(), Mapped::default());
    let mut weights = Vec::with_capacity(rows.len());
    let mut weight = Kinds::default();
    for row in rows.iter_mut() {
        let known = shares.of(row.pid);
        (row.pss, row.uss) = (known.map(|share| share.rollup.pss), known.map(|share| share.rollup.uss));
        let (file, shmem) = known.map_or((None, None), |share| (share.file, share.shmem));
        files.add(row.memory.file, file);
        shared.add(row.memory.shmem, shmem);
        let mine = |now: u64, then: Option<Then>| then.map_or(now, |then| then.part(now));
        let mapped = Kinds {
            file: mine(row.memory.file, file),
            shmem: mine(row.memory.shmem, shmem),
            ..Kinds::default()
        };
        weight.add(&mapped);
        weights.push(mapped);
    }
    let mut total = Kinds { file: files.likely(), shmem: shared.likely(), ..Kinds::default() };
    let part = |total: u64, mine: u64, all: u64| {
        (total as f64 * (mine as f64 / (all as f64).max(1.0))).round() as u64
    };
    for (row, mapped) in rows.iter_mut().zip(weights) {
        let private = ledger.share(row.pid).unwrap_or(0);
        let swap = part(private, row.memory.swap, row.memory.anon + row.memory.swap);
        row.share = Kinds {
            anon: private - swap,
            swap,
            file: part(total.file, mapped.file, weight.file),
            shmem: part(total.shmem, mapped.shmem, weight.shmem),
        };
        (total.anon, total.swap) = (total.anon + row.share.anon, total.swap + row.share.swap);
    }
    let mut level = Level::of(ledger.known(), &shared);
    // The parts were rounded; the level is what the sample says.
    level.owned = total.anon + total.swap + total.shmem;
    (total, level)
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
