//! Which process of this machine is the training run.
//!
//! In comes the process table; out comes the largest tree whose root looks like training, with the others it was
//! chosen from, so that a person can see why. Our own process and those above it never count.

use super::{
    Kinds, ProbeError, all_pids, counters,
    tree::{is_alive, read_member},
};
use crate::ByteSize;
use std::{collections::HashMap, fmt};

/// Programs that train; interpreters carry a version (`python3.11`).
const TRAINERS: [&str; 5] = ["python", "torchrun", "accelerate", "deepspeed", "model-garden"];

/// Commands of our own that train; its others watch.
const OWN_TRAINERS: [&str; 3] = ["train-vision", "demo", "serve"];

/// A process tree that could be a training run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The root's PID.
    pub pid: i32,
    /// The root's command line.
    pub command: String,
    /// Resident memory of the tree, shared pages counted for each process.
    pub resident: u64,
    /// Processes in the tree.
    pub processes: usize,
}

/// The tree that was chosen and what it was chosen from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The largest.
    pub chosen: Candidate,
    /// All others, largest first.
    pub others: Vec<Candidate>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Candidate { pid, command, resident, processes } = &self.chosen;
        let plural = if *processes == 1 { "" } else { "es" };
        write!(
            f,
            "picked process {pid} ({command}): {} in {processes} process{plural}",
            ByteSize(*resident)
        )?;
        match self.others.first() {
            None => write!(f, ", the only one that looks like training"),
            Some(next) => write!(
                f,
                ", the largest of {} that look like training; next is {} ({}) with {}",
                self.others.len() + 1,
                next.pid,
                next.command,
                ByteSize(next.resident)
            ),
        }
    }
}

/// What the choice needs to know of a process.
#[derive(Debug, Clone)]
struct Entry {
    parent: i32,
    command: String,
    trains: bool,
    resident: u64,
}

/// Picks the largest tree that looks like training.
pub fn find_training() -> Result<Found, ProbeError> {
    let pids = all_pids().map_err(|error| ProbeError::Proc(error.to_string()))?;
    let table = pids.into_iter().filter_map(|pid| Some((pid, read_entry(pid)?))).collect();
    choose(&table, std::process::id().cast_signed()).ok_or(ProbeError::NothingFound)
}

fn read_entry(pid: i32) -> Option<Entry> {
    let member = read_member(pid).ok().filter(|member| is_alive(&member.stat))?;
    let words = member.process.cmdline().unwrap_or_default();
    let memory: Kinds = member.process.status().map(|status| counters(&status)).unwrap_or_default();
    Some(Entry {
        parent: member.stat.ppid,
        command: super::command_of(&member),
        trains: looks_like_training(&member.stat.comm, &words),
        resident: memory.resident() + memory.swap,
    })
}

/// A launcher script shows up as its interpreter with the script as the first argument.
fn looks_like_training(name: &str, words: &[String]) -> bool {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let is_trainer = |word: &str| {
        let word = base(word);
        TRAINERS.iter().any(|trainer| {
            word.strip_prefix(trainer)
                .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
        })
    };
    // Our own watchers are not what is to be watched.
    let is_watcher = words.first().is_some_and(|word| base(word) == "model-garden")
        && words.get(1).is_some_and(|word| !OWN_TRAINERS.contains(&word.as_str()));
    !is_watcher && (is_trainer(name) || words.iter().take(2).any(|word| is_trainer(word)))
}

fn choose(table: &HashMap<i32, Entry>, own: i32) -> Option<Found> {
    let above: Vec<i32> = ancestors(table, own).collect();
    let is_candidate =
        |pid: i32| pid != own && !above.contains(&pid) && table.get(&pid).is_some_and(|entry| entry.trains);
    let mut trees: HashMap<i32, Candidate> = HashMap::new();
    for (&pid, entry) in table {
        let chain = std::iter::once(pid).chain(ancestors(table, pid));
        let Some(root) = chain.filter(|pid| is_candidate(*pid)).last() else { continue };
        let tree = trees.entry(root).or_insert_with(|| Candidate {
            pid: root,
            command: table[&root].command.clone(),
            resident: 0,
            processes: 0,
        });
        tree.resident += entry.resident;
        tree.processes += 1;
    }
    let mut others: Vec<Candidate> = trees.into_values().collect();
    others.sort_by_key(|tree| (std::cmp::Reverse(tree.resident), tree.pid));
    let mut others = others.into_iter();
    Some(Found { chosen: others.next()?, others: others.collect() })
}

/// The PIDs above `pid`, nearest first; a table read while it changes may hold a loop, so the walk is bounded.
fn ancestors(table: &HashMap<i32, Entry>, pid: i32) -> impl Iterator<Item = i32> {
    let parent = move |pid: &i32| table.get(pid).map(|entry| entry.parent).filter(|parent| *parent > 0);
    std::iter::successors(parent(&pid), parent).take(table.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(parent: i32, command: &str, resident: u64) -> Entry {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        Entry { parent, command: command.to_owned(), trains: looks_like_training("", &words), resident }
    }

    #[test]
    fn the_largest_tree_wins_and_says_why() {
        let table = HashMap::from([
            (1, entry(0, "/sbin/init", 10)),
            (50, entry(1, "bash", 10)),
            (60, entry(50, "/opt/bin/python3.11 /opt/bin/torchrun train.py", 100)),
            (61, entry(60, "/opt/bin/python3.11 train.py", 5_000_000)),
            (62, entry(61, "/opt/bin/python3.11 train.py", 2_000_000)),
            (70, entry(50, "python notebook.py", 4_000_000)),
            (80, entry(50, "/usr/bin/firefox", 90_000_000)),
        ]);
        let found = choose(&table, 50).unwrap();
        assert_eq!((found.chosen.pid, found.chosen.processes, found.chosen.resident), (60, 3, 7_000_100));
        assert_eq!(found.others.iter().map(|other| other.pid).collect::<Vec<_>>(), [70]);
        let why = found.to_string();
        assert!(
            why.contains("7.0 MB in 3 processes") && why.contains("next is 70 (python notebook.py)"),
            "{why}"
        );
    }

    #[test]
    fn those_above_us_do_not_count_but_their_other_children_do() {
        let table = HashMap::from([
            (1, entry(0, "init", 0)),
            (10, entry(1, "python harness.py", 900)),
            (11, entry(10, "model-garden memory watch", 5)),
            (12, entry(10, "python train.py", 50)),
        ]);
        let found = choose(&table, 11).unwrap();
        assert_eq!((found.chosen.pid, found.others.len()), (12, 0));
    }

    #[test]
    fn nothing_that_trains_is_nothing_found() {
        let table = HashMap::from([(1, entry(0, "init", 0)), (2, entry(1, "pythonic-tool", 50))]);
        assert_eq!(choose(&table, 1), None);
    }

    #[test]
    fn a_table_with_a_loop_ends() {
        let table = HashMap::from([(2, entry(3, "python a.py", 1)), (3, entry(2, "bash", 1))]);
        assert_eq!(choose(&table, 99).map(|found| found.chosen.pid), Some(2));
    }

    #[test]
    fn our_watchers_are_not_training() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(!looks_like_training("model-garden", &words("model-garden memory run -- python t.py")));
        assert!(looks_like_training(
            "model-garden",
            &words("/usr/bin/model-garden train-vision --config job.toml")
        ));
        assert!(looks_like_training("python3", &words("python3 -m train")));
    }
}
