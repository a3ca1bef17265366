//! Memory that forked processes have in common, counted once without measuring it at each look.
//!
//! A forked process starts with all pages of its parent, and the kernel counts them for both. Its own are
//! those that came since the fork: new pages, which its counter shows, and copies of written pages, which
//! only a measurement (`shares`) shows but which cannot be more than its page faults. So each process has an
//! account of what is certainly its own. The rest of a family's memory is a pool, which is no smaller than
//! the largest part that one member has of it. Nothing here reads `/proc`.

use std::collections::{BTreeMap, HashMap};

/// A fault that copies a shared page copies one page of the smallest size, also where pages are huge.
const PAGE: u64 = 4096;

/// Where the kernel put a program: a fork has the same as its parent, and the next program another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Image {
    /// Beginnings of code, stack and heap.
    Layout([u64; 3]),
    /// The process is not ours to look into: a child with its parent's command line is taken to be a fork.
    Hidden(String),
}

/// What a look tells of one process.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub pid: i32,
    pub parent: i32,
    pub image: Image,
    /// Anonymous and swapped memory, as the kernel counts it for this process alone. Together, since swapping
    /// a page out moves it from one to the other for each process that has it.
    pub bytes: u64,
    /// Minor page faults since the process began.
    pub faults: u64,
}

/// What a measurement tells of one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    /// Anonymous and swapped memory at that moment: a look was before it, and memory may have come since.
    pub bytes: u64,
    /// Pages that no other process maps.
    pub private: u64,
    /// Those, and its share of the pages that others map too.
    pub share: u64,
}

/// What is known of a tree's anonymous and swapped memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// A lower bound.
    pub certain: u64,
    /// The best estimate.
    pub likely: u64,
    /// An upper bound.
    pub most: u64,
    /// As `certain`, but untouched by measurements: this moves only when memory does.
    pub pace: u64,
    /// What may have gone with processes that ended.
    pub unsure: u64,
}

#[derive(Debug)]
struct Account {
    family: u32,
    image: Image,
    parent: i32,
    bytes: u64,
    /// Certainly nobody else's.
    own: u64,
    /// The part of `own` that came before the last count, which is the fork or a measurement.
    own_then: u64,
    /// What came since the fork, by the counters alone.
    grown: u64,
    faults: u64,
    faults_then: u64,
    /// What it had at first sight beyond what its parent could give it.
    excess: u64,
    measured: bool,
}

impl Account {
    fn new(family: u32, look: &Look, own: u64) -> Self {
        Self {
            family,
            image: look.image.clone(),
            parent: look.parent,
            bytes: look.bytes,
            own,
            own_then: own,
            grown: own,
            faults: look.faults,
            faults_then: 0,
            excess: 0,
            measured: false,
        }
    }

    /// Whether the process still runs the same program. A program may change its name or forbid reading it; a
    /// new program begins with little memory. In doubt it counts as the same, because all memory of a new one
    /// would count as its own.
    fn is_of(&self, look: &Look) -> bool {
        match (&self.image, &look.image) {
            (Image::Layout(_), Image::Hidden(_)) => look.bytes >= self.bytes / 2,
            (Image::Hidden(then), Image::Hidden(now)) => then == now || look.bytes >= self.bytes / 2,
            (then, now) => then == now,
        }
    }

    fn follow(&mut self, look: &Look) {
        self.move_to(look.bytes);
        (self.faults, self.parent) = (look.faults, look.parent);
    }

    /// Growth is its own. What it gives back comes out of its own memory first.
    fn move_to(&mut self, bytes: u64) {
        let moved = |part: u64| {
            (part + bytes.saturating_sub(self.bytes)).saturating_sub(self.bytes.saturating_sub(bytes))
        };
        (self.own, self.grown) = (moved(self.own), moved(self.grown));
        self.own_then = self.own_then.min(self.own);
        self.bytes = bytes;
    }

    /// What else may be its own, besides what is known to be.
    fn allowance(&self) -> u64 {
        let faulted = self.faults.saturating_sub(self.faults_then) * PAGE + self.excess;
        faulted.saturating_sub(self.own - self.own_then).min(self.bytes - self.own)
    }

    /// What is assumed to be its own: as much as its measured siblings had, but no more than its page faults
    /// allow.
    fn assumed(&self, typical: u64) -> u64 {
        if self.measured { 0 } else { self.allowance().min(typical.saturating_sub(self.own)) }
    }

    /// A fork: from here on everything is shared with the child.
    fn fork(&mut self, typical: u64) -> u64 {
        let given = self.own + self.assumed(typical);
        (self.own, self.own_then, self.grown, self.excess) = (0, 0, 0, 0);
        self.faults_then = self.faults;
        given
    }
}

/// Processes that descend from one another without having executed another program.
#[derive(Debug, Default)]
struct Family {
    /// What several of them have, or had before the others ended.
    pool: f64,
    /// What a worker had for itself when the workers were last measured.
    typical: u64,
    /// Members have ended since the last measurement. Pages that they shared with no remaining member are
    /// gone.
    bereaved: bool,
}

/// The accounts of a tree.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: BTreeMap<i32, Account>,
    families: HashMap<u32, Family>,
    families_made: u32,
}

impl Ledger {
    /// Takes in a look at all living processes.
    pub fn follow(&mut self, looks: &[Look]) {
        let seen: HashMap<i32, &Look> = looks.iter().map(|look| (look.pid, look)).collect();
        self.accounts.retain(|pid, account| {
            let stays = seen.get(pid).is_some_and(|look| account.is_of(look));
            if !stays && let Some(family) = self.families.get_mut(&account.family) {
                family.bereaved = true;
            }
            stays
        });
        let before = self.pooled_by_family();
        let parents_then: HashMap<i32, u64> =
            self.accounts.iter().map(|(pid, account)| (*pid, account.bytes)).collect();
        for (pid, account) in &mut self.accounts {
            account.follow(seen[pid]);
        }
        self.drain_pools(&before);
        for look in looks {
            if !self.accounts.contains_key(&look.pid) {
                self.enter(look, &parents_then);
            }
        }
        self.settle();
    }

    /// Takes in a measurement of all living processes; one that could not be measured stays as it was.
    pub fn measure(&mut self, measured: &HashMap<i32, Measured>) {
        for (pid, account) in &mut self.accounts {
            let Some(found) = measured.get(pid) else { continue };
            // Memory also comes and goes between a look and the measurement that follows it.
            account.move_to(found.bytes);
            account.own = found.private.min(account.bytes);
            (account.own_then, account.faults_then, account.excess) = (account.own, account.faults, 0);
            account.measured = true;
        }
        for (number, family) in &mut self.families {
            let members = || self.accounts.iter().filter(|(_, account)| account.family == *number);
            let found: Vec<(&Account, &Measured)> =
                members().filter_map(|(pid, account)| Some((account, measured.get(pid)?))).collect();
            if !found.is_empty() {
                let common =
                    |(account, found): &(&Account, &Measured)| found.share.saturating_sub(account.own);
                family.pool = found.iter().map(common).sum::<u64>() as f64;
                family.bereaved = false;
            }
            let workers: Vec<u64> = found
                .iter()
                .filter(|(account, _)| members().any(|(pid, _)| *pid == account.parent))
                .map(|(account, _)| account.own)
                .collect();
            if !workers.is_empty() {
                family.typical = workers.iter().sum::<u64>() / workers.len() as u64;
            }
        }
        self.settle();
    }

    /// What is known of the whole.
    pub fn known(&self) -> Known {
        let mut known = Known::default();
        for (number, family) in &self.families {
            let mut counted = Counted::default();
            self.members(*number).for_each(|account| counted.add(account, family.typical));
            let pool = counted.pool(family);
            known.likely += counted.own + counted.assumed + pool;
            known.certain += counted.own + counted.largest_rest;
            known.most += (counted.own + counted.assumed + pool + counted.doubt).min(counted.bytes);
            known.pace += counted.grown + counted.largest_ungrown;
            known.unsure += if family.bereaved { pool - counted.largest_shared } else { 0 };
        }
        known
    }

    /// A process's part of the whole; the parts add up to `likely`, but for rounding.
    pub fn share(&self, pid: i32) -> Option<u64> {
        let account = self.accounts.get(&pid)?;
        let family = self.families.get(&account.family)?;
        let mut counted = Counted::default();
        self.members(account.family).for_each(|member| counted.add(member, family.typical));
        let own = account.own + account.assumed(family.typical);
        let part = (account.bytes - own) as f64 / (counted.rest as f64).max(1.0);
        Some(own + (counted.pool(family) as f64 * part).round() as u64)
    }

    fn members(&self, family: u32) -> impl Iterator<Item = &Account> {
        self.accounts.values().filter(move |account| account.family == family)
    }

    fn pooled_by_family(&self) -> HashMap<u32, u64> {
        let mut pooled = HashMap::new();
        for account in self.accounts.values() {
            *pooled.entry(account.family).or_default() += account.bytes - account.own;
        }
        pooled
    }

    /// What members gave back beyond their own came out of the pool.
    fn drain_pools(&mut self, before: &HashMap<u32, u64>) {
        for (number, now) in self.pooled_by_family() {
            let (Some(family), Some(before)) = (self.families.get_mut(&number), before.get(&number)) else {
                continue;
            };
            if now < *before {
                family.pool *= now as f64 / *before as f64;
            }
        }
    }

    fn enter(&mut self, look: &Look, parents_then: &HashMap<i32, u64>) {
        let kin = self.accounts.iter().find(|(pid, account)| match &look.image {
            Image::Layout(_) => account.image == look.image,
            Image::Hidden(_) => **pid == look.parent && account.image == look.image,
        });
        let Some(number) = kin.map(|(_, account)| account.family) else {
            self.families_made += 1;
            self.families.insert(self.families_made, Family::default());
            self.accounts.insert(look.pid, Account::new(self.families_made, look, look.bytes));
            return;
        };
        let Some(family) = self.families.get_mut(&number) else { return };
        let parent_is_kin = self.accounts.get(&look.parent).is_some_and(|parent| parent.family == number);
        let mut account = Account::new(number, look, 0);
        if let Some(parent) = self.accounts.get(&look.parent).filter(|_| parent_is_kin) {
            let then = parents_then.get(&look.parent).copied().unwrap_or(0);
            account.excess = look.bytes.saturating_sub(parent.bytes.max(then));
        }
        // Where the parent is gone, any of them may have forked it.
        let forked = |(pid, member): &(&i32, &mut Account)| {
            member.family == number && (!parent_is_kin || **pid == look.parent)
        };
        for (_, member) in self.accounts.iter_mut().filter(forked) {
            family.pool += member.fork(family.typical) as f64;
        }
        self.accounts.insert(look.pid, account);
    }

    /// A process that is alone in its family shares nothing.
    fn settle(&mut self) {
        let mut sizes: HashMap<u32, usize> = HashMap::new();
        self.accounts.values().for_each(|account| *sizes.entry(account.family).or_default() += 1);
        self.families.retain(|number, _| sizes.contains_key(number));
        for account in self.accounts.values_mut().filter(|account| sizes[&account.family] == 1) {
            (account.own, account.own_then, account.grown) = (account.bytes, account.bytes, account.bytes);
            (account.faults_then, account.excess) = (account.faults, 0);
            if let Some(family) = self.families.get_mut(&account.family) {
                (family.pool, family.bereaved) = (0.0, false);
            }
        }
    }
}

/// The members of one family, added up.
#[derive(Debug, Default)]
struct Counted {
    bytes: u64,
    own: u64,
    assumed: u64,
    /// What is neither known nor assumed to be own, counted for each process.
    rest: u64,
    largest_shared: u64,
    largest_rest: u64,
    grown: u64,
    largest_ungrown: u64,
    doubt: u64,
}

impl Counted {
    fn add(&mut self, account: &Account, typical: u64) {
        let assumed = account.assumed(typical);
        let shared = account.bytes - account.own - assumed;
        self.bytes += account.bytes;
        self.own += account.own;
        self.assumed += assumed;
        self.rest += shared;
        self.largest_shared = self.largest_shared.max(shared);
        self.largest_rest = self.largest_rest.max(account.bytes - account.own);
        self.grown += account.grown;
        self.largest_ungrown = self.largest_ungrown.max(account.bytes - account.grown);
        self.doubt += (account.allowance() - assumed).min(shared);
    }

    fn pool(&self, family: &Family) -> u64 {
        (family.pool.round() as u64).clamp(self.largest_shared, self.rest)
    }
}

#[cfg(test)]
mod tests;
