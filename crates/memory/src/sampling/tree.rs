//! Who belongs to a watched process tree, tick after tick.
//!
//! Gives the members that live now, each with an open handle that a reused PID cannot fool. A member stays
//! one until it ends, whoever adopts it in the meantime. A process group or session that a member leads
//! belongs to the tree, even where the parents in between are gone.

use procfs::{
    ProcError,
    process::{Process, Stat, Status},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    time::{Duration, Instant},
};

/// Processes outside the tree are remembered, so that a tick costs one directory listing and not a read of
/// every process. They are checked again after this long, in case a PID was reused.
const FORGET_STRANGERS: Duration = Duration::from_secs(30);

/// A living process of the tree.
pub(super) struct Member {
    pub process: Process,
    pub stat: Stat,
}

/// The part of a process's state that decides where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
}

/// A new process: where it belongs, and when it started, by which it is recognised.
///
/// It holds no handle, because a machine may run more processes than we may open files.
#[derive(Debug, Clone, Copy)]
struct Newcomer {
    place: Place,
    start: u64,
}

impl Newcomer {
    fn read(pid: i32) -> Option<Self> {
        let stat = read_member(pid).ok()?.stat;
        is_alive(&stat).then(|| Self { place: Place::from(&stat), start: stat.starttime })
    }

    /// Opens it, unless it has ended; another process may have its PID by now.
    fn open(self) -> Option<Member> {
        read_member(self.place.pid).ok().filter(|member| member.stat.starttime == self.start)
    }
}

impl From<&Stat> for Place {
    fn from(stat: &Stat) -> Self {
        Self { pid: stat.pid, parent: stat.ppid, group: stat.pgrp, session: stat.session }
    }
}

/// The members of a tree and how to find new ones.
pub(super) struct Tree {
    members: BTreeMap<i32, Member>,
    /// Groups and sessions (by their number) that a member leads or led.
    led: HashSet<i32>,
    /// A process whose descendants belong to the tree while it does not itself.
    keeper: Option<i32>,
    strangers: HashSet<i32>,
    strangers_since: Instant,
}

impl Tree {
    /// The tree of `root`, root included.
    pub fn of(root: i32) -> Result<Self, ProcError> {
        let mut tree = Self::empty(None);
        tree.members.insert(root, read_member(root)?);
        Ok(tree)
    }

    /// Everything below `keeper`, which is left out itself.
    pub fn below(keeper: i32) -> Self {
        Self::empty(Some(keeper))
    }

    fn empty(keeper: Option<i32>) -> Self {
        Self {
            members: BTreeMap::new(),
            led: HashSet::new(),
            keeper,
            strangers: HashSet::new(),
            strangers_since: Instant::now(),
        }
    }

    /// Reads the table again: drops those that ended and returns them, takes in those that came.
    pub fn refresh(&mut self) -> io::Result<Vec<Stat>> {
        // From the members of the tick before, the dead among them included: a child that was forked and
        // orphaned since then still carries their group or session.
        self.led = led_by(self.members.values().map(|member| Place::from(&member.stat)), &self.led);
        let ended = self.drop_ended()?;
        let mut newcomers = self.read_newcomers()?;
        let mut adopted = HashMap::new();
        while let Some(found) = newcomers.iter().position(|new| self.adopts(new.place, &adopted)) {
            let new = newcomers.swap_remove(found);
            adopted.insert(new.place.pid, new);
        }
        self.members.extend(adopted.into_iter().filter_map(|(pid, new)| Some((pid, new.open()?))));
        self.strangers.extend(newcomers.iter().map(|stranger| stranger.place.pid));
        Ok(ended)
    }

    /// Living members, in order of their PID.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    /// A member that cannot be read for lack of files or memory has not ended.
    fn drop_ended(&mut self) -> io::Result<Vec<Stat>> {
        let mut ended = Vec::new();
        let mut unread = None;
        self.members.retain(|_, member| match member.process.stat() {
            Ok(stat) if is_alive(&stat) => {
                member.stat = stat;
                true
            }
            Err(error) if !is_gone(&error) => {
                unread = Some(error);
                true
            }
            _ => {
                ended.push(member.stat.clone());
                false
            }
        });
        unread.map_or(Ok(ended), |error| Err(io::Error::other(error.to_string())))
    }

    fn read_newcomers(&mut self) -> io::Result<Vec<Newcomer>> {
        if self.strangers_since.elapsed() > FORGET_STRANGERS {
            self.strangers.clear();
            self.strangers_since = Instant::now();
        }
        let present = all_pids()?;
        self.strangers.retain(|pid| present.contains(pid));
        let unknown =
            present.iter().filter(|pid| !self.strangers.contains(pid) && !self.members.contains_key(pid));
        // One that ends between the listing and the reading is simply not there.
        Ok(unknown.filter_map(|pid| Newcomer::read(*pid)).collect())
    }

    /// Whether a process belongs to the tree, counting those just `adopted`, even one that has ended since.
    fn adopts(&self, place: Place, adopted: &HashMap<i32, Newcomer>) -> bool {
        if self.keeper == Some(place.pid) {
            return false;
        }
        self.keeper == Some(place.parent)
            || self.members.contains_key(&place.parent)
            || adopted.contains_key(&place.parent)
            || self.led.contains(&place.group)
            || self.led.contains(&place.session)
    }
}

/// The groups and sessions of `members` that one of them leads, or that were led by one before.
fn led_by(members: impl Iterator<Item = Place> + Clone, before: &HashSet<i32>) -> HashSet<i32> {
    let own: HashSet<i32> = members.clone().map(|place| place.pid).collect();
    let is_led = |id: &i32| own.contains(id) || before.contains(id);
    members.flat_map(|place| [place.group, place.session]).filter(is_led).collect()
}

/// Whether a process could not be read because it has ended, or hides from us.
fn is_gone(error: &ProcError) -> bool {
    match error {
        ProcError::NotFound(_) | ProcError::PermissionDenied(_) => true,
        ProcError::Io(error, _) => error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()),
        _ => false,
    }
}

/// A zombie holds no memory: it has ended, only its parent has not looked yet. One with threads left is a
/// process whose main thread alone has ended (`pthread_exit`).
pub(super) fn is_alive(stat: &Stat) -> bool {
    match stat.state {
        'Z' => stat.num_threads > 1,
        state => !matches!(state, 'X' | 'x'),
    }
}

/// A thread that still holds the memory of a process whose main thread has ended; `/proc` shows nothing under
/// the process's own PID.
pub(super) fn living_thread(process: &Process) -> Option<(Process, Status)> {
    let threads = process.tasks().ok()?.filter_map(Result::ok).filter(|task| task.tid != process.pid);
    threads.filter_map(|task| Process::new(task.tid).ok()).find_map(|thread| {
        let status = thread.status().ok().filter(|status| status.vmrss.is_some())?;
        Some((thread, status))
    })
}

pub(super) fn read_member(pid: i32) -> Result<Member, ProcError> {
    let process = Process::new(pid)?;
    let stat = process.stat()?;
    Ok(Member { process, stat })
}

/// The state of every living process of the machine.
pub(crate) fn living_stats() -> Vec<Stat> {
    let pids = all_pids().unwrap_or_default();
    pids.into_iter().filter_map(|pid| Some(read_member(pid).ok()?.stat)).filter(is_alive).collect()
}

/// Every PID of the machine that we may see.
pub(super) fn all_pids() -> io::Result<HashSet<i32>> {
    let names = fs::read_dir("/proc")?;
    Ok(names.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn place(pid: i32, parent: i32, group: i32, session: i32) -> Place {
        Place { pid, parent, group, session }
    }

    #[test]
    fn a_group_counts_only_if_a_member_leads_it() {
        // 20 runs inside the group of a shell (10) that is no member; 21 leads its own group and session.
        let members = [place(20, 10, 10, 10), place(21, 20, 21, 21)];
        assert_eq!(led_by(members.into_iter(), &HashSet::new()), HashSet::from([21]));
    }

    #[test]
    fn a_group_outlives_its_leader_but_not_its_last_member() {
        let before = HashSet::from([21]);
        assert_eq!(led_by([place(22, 1, 21, 21)].into_iter(), &before), HashSet::from([21]));
        assert_eq!(led_by([place(20, 10, 10, 10)].into_iter(), &before), HashSet::new());
    }

    #[test]
    fn an_orphan_of_a_group_that_is_ours_belongs_to_us() {
        let mut tree = Tree::below(5);
        tree.led = HashSet::from([21]);
        let adopts = |place| tree.adopts(place, &HashMap::new());
        assert!(adopts(place(30, 1, 21, 7)), "by its group");
        assert!(adopts(place(30, 1, 30, 21)), "by its session");
        assert!(adopts(place(30, 5, 30, 30)), "by its parent");
        assert!(!adopts(place(30, 1, 30, 30)), "a stranger");
        assert!(!adopts(place(5, 1, 21, 21)), "the keeper itself");
    }

    #[test]
    fn a_child_belongs_to_us_with_its_parent_even_if_that_has_ended() {
        let tree = Tree::below(5);
        let parent = Newcomer { place: place(i32::MAX, 5, 7, 7), start: 1 };
        assert!(parent.open().is_none());
        let adopted = HashMap::from([(parent.place.pid, parent)]);
        assert!(tree.adopts(place(30, i32::MAX, 7, 7), &adopted));
    }

    #[test]
    fn the_processes_of_the_machine_are_not_held_open() {
        const PROCESSES: usize = 60;
        let sleep = || Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
        let mut children: Vec<Child> = (0..PROCESSES).map(|_| sleep()).collect();
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let newcomers = Tree::below(i32::MAX).read_newcomers().unwrap();
        let after = open();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(newcomers.len() > PROCESSES, "{}", newcomers.len());
        // Other tests open a few files meanwhile.
        assert!(after < before + PROCESSES / 2, "from {before} to {after} open files");
    }

    #[test]
    fn a_number_that_was_given_to_another_is_not_opened() {
        let own = Newcomer::read(std::process::id().cast_signed()).unwrap();
        assert!(own.open().is_some());
        assert!(Newcomer { start: own.start + 1, ..own }.open().is_none());
    }
}
