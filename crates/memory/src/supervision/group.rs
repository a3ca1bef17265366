//! A control group (version 2) for the command alone, where one can be made: the kernel acts where our looks
//! come too late.
//!
//! The launcher joins the group before it becomes the command. `memory.high` slows a runaway down just below
//! the limit, and `memory.max` is the limit. There is no group where the hierarchy is not ours to write,
//! where other processes share our group, or where the memory controller is missing; then the looks alone
//! must do.

use crate::sampling::own_unified_group;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// From this part of the limit on the kernel slows allocations down, which gives the looks time to act.
const SLOW_LEVEL: f64 = 0.98;

/// A group that is removed, with all that is in it, when dropped.
#[derive(Debug)]
pub(super) struct CommandGroup {
    directory: PathBuf,
}

impl CommandGroup {
    /// Makes one for a command that may use `limit` bytes.
    pub fn make(limit: u64) -> Option<Self> {
        let own = own_unified_group()?;
        Self::make_in(&own, std::process::id(), limit).ok().flatten()
    }

    fn make_in(own: &Path, pid: u32, limit: u64) -> io::Result<Option<Self>> {
        if !lists(&own.join("cgroup.controllers"), "memory")? {
            return Ok(None);
        }
        if !lists(&own.join("cgroup.subtree_control"), "memory")? {
            // A group that hands the controller down may hold no process itself; if we are alone in it, we
            // step aside.
            if fs::read_to_string(own.join("cgroup.procs"))?.trim() != pid.to_string() {
                return Ok(None);
            }
            let aside = own.join("model-garden-supervisor");
            if !aside.exists() {
                fs::create_dir(&aside)?;
            }
            fs::write(aside.join("cgroup.procs"), pid.to_string())?;
            fs::write(own.join("cgroup.subtree_control"), "+memory")?;
        }
        let group = Self { directory: own.join(format!("model-garden-command-{pid}")) };
        fs::create_dir(&group.directory)?;
        fs::write(group.directory.join("memory.high"), ((limit as f64 * SLOW_LEVEL) as u64).to_string())?;
        fs::write(group.directory.join("memory.max"), limit.to_string())?;
        Ok(Some(group))
    }

    /// How many processes the kernel has killed in here because the limit was reached.
    pub fn kills(&self) -> u64 {
        let events = fs::read_to_string(self.directory.join("memory.events")).unwrap_or_default();
        let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
        events.lines().find_map(count).unwrap_or(0)
    }

    /// Where the launcher goes.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        // It is empty by then: the supervisor has ended the tree.
        let _ = fs::remove_dir(&self.directory);
    }
}

fn lists(file: &Path, controller: &str) -> io::Result<bool> {
    Ok(fs::read_to_string(file)?.split_whitespace().any(|word| word == controller))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_group(controllers: &str, handed_down: &str, processes: &str) -> tempfile::TempDir {
        let own = tempfile::tempdir().unwrap();
        fs::write(own.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(own.path().join("cgroup.subtree_control"), handed_down).unwrap();
        fs::write(own.path().join("cgroup.procs"), processes).unwrap();
        own
    }

    fn read(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_limit_is_written_where_the_controller_is_handed_down() {
        let own = own_group("cpu memory pids", "memory", "1\n7\n9\n");
        let group = CommandGroup::make_in(own.path(), 7, 1_000_000).unwrap().unwrap();
        assert_eq!(read(group.directory().join("memory.max")), "1000000");
        assert_eq!(read(group.directory().join("memory.high")), "980000");
    }

    #[test]
    fn kills_by_the_kernel_are_counted() {
        let own = own_group("memory", "memory", "7\n");
        let group = CommandGroup::make_in(own.path(), 7, 1_000_000).unwrap().unwrap();
        assert_eq!(group.kills(), 0, "a group that says nothing");
        let events = "low 0\nhigh 17\nmax 5\noom 1\noom_kill 2\noom_group_kill 0\n";
        fs::write(group.directory().join("memory.events"), events).unwrap();
        assert_eq!(group.kills(), 2);
    }

    #[test]
    fn alone_in_our_group_we_step_aside_first() {
        let own = own_group("memory", "", "7\n");
        CommandGroup::make_in(own.path(), 7, 1_000_000).unwrap().unwrap();
        assert_eq!(read(own.path().join("model-garden-supervisor/cgroup.procs")), "7");
        assert_eq!(read(own.path().join("cgroup.subtree_control")), "+memory");
    }

    #[test]
    fn with_others_beside_us_or_no_controller_there_is_none() {
        for own in [own_group("memory", "", "7\n8\n"), own_group("cpu pids", "", "7\n")] {
            assert!(CommandGroup::make_in(own.path(), 7, 1_000_000).unwrap().is_none());
        }
    }
}
