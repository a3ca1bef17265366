//! Families of processes and what is known of their memory, without any process.

use super::*;

const MB: u64 = 1_000_000;
const PARENT: i32 = 10;

fn look(pid: i32, bytes: u64, faulted: u64) -> Look {
    let parent = if pid == PARENT { 1 } else { PARENT };
    Look { pid, parent, image: Image::Layout([1, 2, 3]), bytes, faults: faulted / PAGE }
}

/// A parent, and eight workers that have what it has.
fn epoch(parent: u64, workers: std::ops::Range<i32>, faulted: u64) -> Vec<Look> {
    let workers = workers.map(|pid| look(pid, parent, faulted));
    std::iter::once(look(PARENT, parent, 0)).chain(workers).collect()
}

fn near(found: u64, expected: u64) -> bool {
    found.abs_diff(expected) <= expected / 50
}

#[test]
fn workers_forked_anew_each_epoch_count_once_without_any_measurement() {
    let mut ledger = Ledger::default();
    for number in 0..20 {
        let first = 100 + 8 * number;
        ledger.follow(&epoch(1000 * MB, first..first + 8, 2 * MB));
        let known = ledger.known();
        assert_eq!((known.certain, known.likely), (1000 * MB, 1000 * MB), "epoch {number}");
        assert!(known.most < 1020 * MB, "idle workers cannot have more than their faults: {known:?}");
        ledger.follow(&[look(PARENT, 1000 * MB, 0)]);
        let alone = ledger.known();
        assert_eq!((alone.certain, alone.likely, alone.most), (1000 * MB, 1000 * MB, 1000 * MB));
    }
}

#[test]
fn what_a_worker_allocates_after_the_fork_is_its_own() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..23, 0));
    let grown =
        [look(PARENT, 1000 * MB, 0), look(20, 1100 * MB, 0), look(21, 1200 * MB, 0), look(22, 1000 * MB, 0)];
    ledger.follow(&grown);
    let known = ledger.known();
    assert_eq!((known.certain, known.likely, known.pace), (1300 * MB, 1300 * MB, 1300 * MB));
    assert_eq!(ledger.share(21), Some(200 * MB + 250 * MB), "its own and a quarter of the pool");
}

#[test]
fn a_parent_that_grew_and_then_forks_is_not_counted_twice() {
    let mut ledger = Ledger::default();
    ledger.follow(&[look(PARENT, 100 * MB, 0)]);
    ledger.follow(&[look(PARENT, 1000 * MB, 0)]);
    ledger.follow(&epoch(1000 * MB, 20..28, 0));
    assert_eq!(ledger.known().likely, 1000 * MB);
    // It grows again while they live, and forks once more.
    let mut looks = epoch(1000 * MB, 20..28, 0);
    looks[0].bytes = 1300 * MB;
    ledger.follow(&looks);
    assert_eq!(ledger.known().likely, 1300 * MB);
    looks.push(look(30, 1300 * MB, 0));
    ledger.follow(&looks);
    assert_eq!((ledger.known().certain, ledger.known().likely), (1300 * MB, 1300 * MB));
}

#[test]
fn copies_of_written_pages_are_in_doubt_until_they_are_measured() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..24, 300 * MB));
    let before = ledger.known();
    assert_eq!(before.certain, 1000 * MB);
    assert!(near(before.most, 2200 * MB), "four may have copied 300 MB each: {before:?}");
    let worker = Measured { bytes: 1000 * MB, private: 250 * MB, share: 400 * MB };
    let parent = Measured { bytes: 1000 * MB, private: 0, share: 400 * MB };
    let measured = [(PARENT, parent), (20, worker), (21, worker), (22, worker), (23, worker)];
    ledger.measure(&measured.into());
    let after = ledger.known();
    assert_eq!((after.certain, after.likely, after.most), (2000 * MB, 2000 * MB, 2000 * MB));
    assert_eq!(after.pace, before.pace, "a measurement is no growth");
    // The next workers are taken to copy as much, as soon as their faults allow it.
    ledger.follow(&epoch(1000 * MB, 30..34, 100 * MB));
    let known = ledger.known();
    assert!(near(known.likely, 1400 * MB) && known.certain == 1000 * MB, "{known:?}");
    ledger.follow(&epoch(1000 * MB, 30..34, 900 * MB));
    assert!(near(ledger.known().likely, 2000 * MB), "{:?}", ledger.known());
}

#[test]
fn what_came_between_a_look_and_its_measurement_counts_once() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(100 * MB, 20..21, 0));
    let worker = Measured { bytes: 120 * MB, private: 20 * MB, share: 70 * MB };
    let parent = Measured { bytes: 100 * MB, private: 0, share: 50 * MB };
    ledger.measure(&[(PARENT, parent), (20, worker)].into());
    ledger.follow(&[look(PARENT, 100 * MB, 0), look(20, 120 * MB, 0)]);
    assert_eq!(ledger.known().likely, 120 * MB);
}

#[test]
fn what_went_between_a_look_and_its_measurement_is_gone() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(10 * MB, 20..21, 0));
    ledger.follow(&[look(PARENT, 300 * MB, 0), look(20, 10 * MB, 0)]);
    // The parent has freed what it had just taken.
    let each = Measured { bytes: 10 * MB, private: 0, share: 5 * MB };
    ledger.measure(&[(PARENT, each), (20, each)].into());
    let known = ledger.known();
    assert_eq!((known.certain, known.likely, known.most, known.pace), (10 * MB, 10 * MB, 10 * MB, 10 * MB));
}

#[test]
fn a_worker_that_ends_leaves_the_common_pages_to_the_others() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1300 * MB, 20..24, 300 * MB));
    let worker = Measured { bytes: 1300 * MB, private: 300 * MB, share: 500 * MB };
    let parent = Measured { bytes: 1300 * MB, private: 300 * MB, share: 500 * MB };
    ledger.measure(&[(PARENT, parent), (20, worker), (21, worker), (22, worker), (23, worker)].into());
    assert_eq!(ledger.known().likely, 2500 * MB);
    let left: Vec<Look> = epoch(1300 * MB, 20..22, 300 * MB);
    ledger.follow(&left);
    assert_eq!(ledger.known().likely, 1900 * MB, "three times its own, and the pool");
}

#[test]
fn what_may_have_gone_with_a_worker_is_a_reason_to_measure() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..23, 0));
    let grown = [look(PARENT, 1000 * MB, 0), look(20, 1000 * MB, 0), look(21, 1000 * MB, 0)];
    ledger.follow(&[&grown[..], &[look(22, 1500 * MB, 0)]].concat());
    // It forks, so that it has its 500 MB in common with its child, and both end.
    let child = Look { parent: 22, ..look(30, 1500 * MB, 0) };
    ledger.follow(&[&grown[..], &[look(22, 1500 * MB, 0), child]].concat());
    assert_eq!((ledger.known().likely, ledger.known().unsure), (1500 * MB, 0));
    ledger.follow(&grown);
    let known = ledger.known();
    assert_eq!((known.certain, known.unsure), (1000 * MB, 500 * MB), "{known:?}");
    let each = Measured { bytes: 1000 * MB, private: 0, share: 1000 * MB / 3 };
    ledger.measure(&[(PARENT, each), (20, each), (21, each)].into());
    assert_eq!((ledger.known().likely, ledger.known().unsure), (1000 * MB, 0));
}

#[test]
fn memory_that_all_of_them_give_back_leaves_the_pool() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..22, 0));
    ledger.follow(&epoch(400 * MB, 20..22, 0));
    assert_eq!(ledger.known().likely, 400 * MB);
}

#[test]
fn swapping_common_pages_out_changes_nothing() {
    // Bytes hold both kinds, so a page that moves from one to the other is no growth.
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..28, 0));
    ledger.follow(&epoch(1000 * MB, 20..28, 0));
    assert_eq!(ledger.known().likely, 1000 * MB);
}

#[test]
fn programs_of_their_own_share_nothing() {
    let rank = |pid, start| Look { image: Image::Layout([start, 2, 3]), ..look(pid, 1000 * MB, 500 * MB) };
    let mut ledger = Ledger::default();
    ledger.follow(&[rank(20, 7), rank(21, 8)]);
    let known = ledger.known();
    assert_eq!((known.certain, known.likely, known.most), (2000 * MB, 2000 * MB, 2000 * MB));
}

#[test]
fn a_fork_that_executes_a_program_leaves_the_family() {
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..21, 0));
    let tool = Look { image: Image::Layout([9, 9, 9]), ..look(20, 5 * MB, 0) };
    ledger.follow(&[look(PARENT, 1000 * MB, 0), tool]);
    let known = ledger.known();
    assert_eq!((known.certain, known.likely, known.most), (1005 * MB, 1005 * MB, 1005 * MB));
}

#[test]
fn a_worker_that_hides_or_renames_itself_stays_in_the_family() {
    let named = |pid, name: &str| Look { image: Image::Hidden(name.into()), ..look(pid, 1000 * MB, 0) };
    let mut ledger = Ledger::default();
    ledger.follow(&epoch(1000 * MB, 20..22, 0));
    for name in ["python3 train.py", "pt_data_worker"] {
        ledger.follow(&[look(PARENT, 1000 * MB, 0), named(20, name), look(21, 1000 * MB, 0)]);
        assert_eq!(ledger.known().certain, 1000 * MB, "{name}");
    }
    let tool = Look { bytes: 5 * MB, ..named(20, "sudo") };
    ledger.follow(&[look(PARENT, 1000 * MB, 0), tool, look(21, 1000 * MB, 0)]);
    assert_eq!(ledger.known().certain, 1005 * MB, "what is executed begins anew");
}

#[test]
fn of_hidden_processes_a_child_with_its_parent_s_command_is_a_fork() {
    let hidden = |pid, parent, command: &str| Look {
        image: Image::Hidden(command.to_owned()),
        parent,
        ..look(pid, 1000 * MB, 0)
    };
    let mut ledger = Ledger::default();
    // A launcher, two ranks with one command line, and a worker of the first.
    ledger.follow(&[
        hidden(20, 1, "torchrun train.py"),
        hidden(21, 20, "python train.py"),
        hidden(22, 20, "python train.py"),
        hidden(23, 21, "python train.py"),
    ]);
    assert_eq!(ledger.known().likely, 3000 * MB);
}

#[test]
fn memory_on_huge_pages_at_first_sight_is_in_doubt_though_few_faults_brought_it() {
    let mut ledger = Ledger::default();
    ledger.follow(&[look(PARENT, 1000 * MB, 0)]);
    ledger.follow(&[look(PARENT, 1000 * MB, 0), look(20, 1300 * MB, 0), look(21, 1300 * MB, 0)]);
    let known = ledger.known();
    assert_eq!(known.certain, 1300 * MB);
    assert!(known.most >= 1600 * MB, "{known:?}");
}
