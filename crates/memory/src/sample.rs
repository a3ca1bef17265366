//! One reading of a process tree's memory, and what is known of the run it belongs to.
//!
//! A [`Sample`] is what a probe produces and a trace stores, one JSON object a line; all sizes are bytes.
//! Fields that a source cannot know are `None` and are left out of the file.

use serde::{Deserialize, Serialize};

/// Memory of a whole process tree at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the trace.
    pub t: f64,
    /// Optimizer step, once the first one was seen.
    pub step: Option<u64>,
    /// Epoch, fractional where the source says so.
    pub epoch: Option<f64>,
    /// Resident memory of all kinds.
    pub rss: u64,
    /// Anonymous resident memory: heap, stacks, private writable pages.
    #[serde(default)]
    pub anon: u64,
    /// File-backed resident memory, which the kernel can drop.
    #[serde(default)]
    pub file: u64,
    /// Shared memory (`/dev/shm`, memfd, SysV), counted once for the tree where that can be told.
    #[serde(default)]
    pub shmem: u64,
    /// Swapped-out memory.
    #[serde(default)]
    pub swap: u64,
    /// Proportional set size, summed over the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss: Option<u64>,
    /// Unique set size, summed over the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uss: Option<u64>,
    /// Resident memory of the root process alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_rss: Option<u64>,
    /// Processes in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procs: Option<u32>,
    /// Threads in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Major page faults since the start of the processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// GPU memory of the tree, where NVML tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u64>,
    /// Memory the machine could still give (`MemAvailable`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// The highest level between the previous reading and this one, where it is above both; or the level at
    /// which the limit was acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Moment>,
    /// The most that one process had resident since the previous reading, by its own high-water mark
    /// (`VmHWM`, file-backed pages included), where no look saw as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spike: Option<u64>,
    /// Why the limit was acted upon at this moment, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acted: Option<String>,
}

impl Sample {
    /// The memory that a verdict is about: what the process must give back itself.
    ///
    /// For a source that knows only resident memory (a log, another tool), it is the resident memory.
    pub fn owned(&self) -> u64 {
        if self.is_split() {
            self.anon.saturating_add(self.shmem).saturating_add(self.swap)
        } else {
            self.rss
        }
    }

    /// Whether the source told the kinds of memory apart.
    pub(crate) fn is_split(&self) -> bool {
        self.anon != 0 || self.file != 0 || self.shmem != 0 || self.swap != 0
    }
}

/// How much memory a tree had of its own at a moment that matters, and who held it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the start of the trace.
    pub t: f64,
    /// The tree's own memory.
    pub owned: u64,
    /// The processes that held the most of it, the largest first.
    #[serde(default)]
    pub held: Vec<Holder>,
}

/// A process and its part of the tree's own memory, shared pages divided among those that share them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its number.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Its part.
    pub owned: u64,
}

impl Moment {
    /// At most this many processes are named; the others together hold `owned` less their sum.
    pub(crate) const MOST_NAMED: usize = 8;

    /// Bytes held by the processes that are not named.
    pub fn others(&self) -> u64 {
        self.owned.saturating_sub(self.held.iter().map(|holder| holder.owned).sum())
    }
}

/// What is known of a run besides its samples; everything is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// Rows in the dataset.
    pub dataset_size: Option<u64>,
    /// Rows used by one optimizer step (batch size x accumulation x ranks).
    pub samples_per_step: Option<u64>,
    /// Steps in an epoch, where it is given directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_epoch: Option<f64>,
    /// Bytes that must not be exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Bytes that must stay available to others. In a live watch the limit follows from it at each reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave_free: Option<u64>,
}

impl RunFacts {
    /// The number of steps after which every row was seen once, where it is known.
    pub(crate) fn epoch_steps(&self) -> Option<f64> {
        let derived = || match (self.dataset_size, self.samples_per_step) {
            (Some(rows), Some(per_step)) if rows > 0 && per_step > 0 => Some(rows as f64 / per_step as f64),
            _ => None,
        };
        self.steps_per_epoch.filter(|steps| *steps > 0.0).or_else(derived)
    }
}
