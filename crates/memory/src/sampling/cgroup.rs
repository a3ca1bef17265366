//! The control group of a process, version 1 or 2: its limit, and how much of it is used.
//!
//! Of all groups between the process and the top of what is visible, the one with the lowest limit counts,
//! because the kernel acts there first. Page cache that the kernel can drop is subtracted from the usage.

use procfs::{
    ProcessCGroup,
    process::{MountInfo, Process},
};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Version 1 writes "no limit" as the largest multiple of a page; no machine has this much.
const UNLIMITED: u64 = 1 << 60;

/// Limit and usage of a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CgroupMemory {
    /// Bytes at which the kernel kills, if there is a limit.
    pub limit: Option<u64>,
    /// Bytes in use, without page cache that can be dropped.
    pub usage: u64,
}

impl CgroupMemory {
    /// What the group can still give, if it has a limit.
    pub(crate) fn available(self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.usage))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    fn usage_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }

    /// The line of `memory.stat` that counts what can be dropped, children included.
    fn droppable(self) -> &'static str {
        match self {
            Self::V1 => "total_inactive_file",
            Self::V2 => "inactive_file",
        }
    }
}

/// Reads the group that binds a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cgroup {
    directory: PathBuf,
    version: Version,
}

impl Cgroup {
    /// `None` where no memory controller is in sight.
    pub fn of(process: &Process) -> Option<Self> {
        let groups = process.cgroups().ok()?;
        let mounts = Process::myself().ok()?.mountinfo().ok()?;
        let find = |version| {
            let group = groups.0.iter().find(|group| controls_memory(group, version))?;
            let mount = mounts.0.iter().find(|mount| carries_memory(mount, version))?;
            Self::binding(&mount.mount_point, &directory_of(mount, &group.pathname), version)
        };
        find(Version::V2).or_else(|| find(Version::V1))
    }

    /// The directory with the lowest limit between `leaf` and `top`, or the leaf if there is none.
    fn binding(top: &Path, leaf: &Path, version: Version) -> Option<Self> {
        let visible = leaf.ancestors().take_while(|directory| directory.starts_with(top));
        let accounted = visible.filter(|directory| directory.join(version.usage_file()).exists());
        let lowest = accounted.min_by_key(|directory| read_limit(directory, version).unwrap_or(u64::MAX))?;
        Some(Self { directory: lowest.to_owned(), version })
    }

    /// Limit and usage of this moment; `None` once the group is gone.
    pub fn read(&self) -> Option<CgroupMemory> {
        let used: u64 = read_number(&self.directory.join(self.version.usage_file()))?;
        let droppable = read_stat(&self.directory, self.version.droppable()).unwrap_or(0);
        Some(CgroupMemory {
            limit: read_limit(&self.directory, self.version),
            usage: used.saturating_sub(droppable),
        })
    }
}

/// The directory of our own group in the unified hierarchy, whether or not it controls memory.
pub(crate) fn own_unified_group() -> Option<PathBuf> {
    let own = Process::myself().ok()?;
    let (groups, mounts) = (own.cgroups().ok()?, own.mountinfo().ok()?);
    let group = groups.0.iter().find(|group| controls_memory(group, Version::V2))?;
    let mount = mounts.0.iter().find(|mount| carries_memory(mount, Version::V2))?;
    Some(directory_of(mount, &group.pathname))
}

fn controls_memory(group: &ProcessCGroup, version: Version) -> bool {
    match version {
        Version::V1 => group.controllers.iter().any(|controller| controller == "memory"),
        Version::V2 => group.hierarchy == 0,
    }
}

fn carries_memory(mount: &MountInfo, version: Version) -> bool {
    match version {
        Version::V1 => mount.fs_type == "cgroup" && mount.super_options.contains_key("memory"),
        Version::V2 => mount.fs_type == "cgroup2",
    }
}

/// In a container the mount shows only a part of the hierarchy, while the group's name may start at the
/// host's root.
fn directory_of(mount: &MountInfo, group: &str) -> PathBuf {
    let inside = group.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or("");
    mount.mount_point.join(inside.trim_start_matches('/'))
}

fn read_limit(directory: &Path, version: Version) -> Option<u64> {
    read_number(&directory.join(version.limit_file())).filter(|limit| *limit < UNLIMITED)
}

/// `None` also for `max`, which is how version 2 writes "no limit".
fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_stat(directory: &Path, key: &str) -> Option<u64> {
    let stat = fs::read_to_string(directory.join("memory.stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hierarchy of groups as files, each with its limit.
    fn hierarchy(version: Version, groups: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (group, limit) in groups {
            let directory = top.path().join(group);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(version.limit_file()), format!("{limit}\n")).unwrap();
            fs::write(directory.join(version.usage_file()), "900\n").unwrap();
            fs::write(directory.join("memory.stat"), "anon 1\ntotal_inactive_file 100\ninactive_file 200\n")
                .unwrap();
        }
        top
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_binds() {
        let top =
            hierarchy(Version::V2, &[("slice", "1000"), ("slice/job", "5000"), ("slice/job/leaf", "max")]);
        let group = Cgroup::binding(top.path(), &top.path().join("slice/job/leaf"), Version::V2).unwrap();
        assert_eq!(group.directory, top.path().join("slice"));
        assert_eq!(group.read(), Some(CgroupMemory { limit: Some(1000), usage: 700 }));
    }

    #[test]
    fn version_1_knows_no_limit_as_a_huge_number() {
        let top = hierarchy(Version::V1, &[("job", "9223372036854771712")]);
        let group = Cgroup::binding(top.path(), &top.path().join("job"), Version::V1).unwrap();
        assert_eq!(group.read(), Some(CgroupMemory { limit: None, usage: 800 }));
    }

    #[test]
    fn a_hierarchy_without_the_memory_controller_is_none() {
        let top = tempfile::tempdir().unwrap();
        assert_eq!(Cgroup::binding(top.path(), top.path(), Version::V2), None);
    }

    #[test]
    fn a_group_that_vanished_reads_as_none() {
        let top = hierarchy(Version::V2, &[("job", "1000")]);
        let group = Cgroup::binding(top.path(), &top.path().join("job"), Version::V2).unwrap();
        fs::remove_dir_all(top.path().join("job")).unwrap();
        assert_eq!(group.read(), None);
    }
}
