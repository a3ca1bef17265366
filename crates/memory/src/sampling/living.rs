//! Reads one living process: counters, page faults, and where the kernel put the program.
//!
//! A process that ends while it is read is left out completely. Half of its figures would mislead: memory
//! without a program would count as another program's, and so be counted twice.

use super::{
    command_of, counters,
    kin::{Image, Look},
    shares::Subject,
    tree::{self, Member},
};
use procfs::process::{Process, Stat, Status};

/// A process that holds memory.
pub(super) struct Living<'a> {
    pub member: &'a Member,
    /// Another thread of a process whose main thread has ended.
    pub thread: Option<Process>,
    pub status: Status,
    layout: Layout,
}

impl Living<'_> {
    /// `None` for a process that ended or is giving its memory back: its zeros would mislead.
    pub fn read(member: &Member) -> Option<Living<'_>> {
        let status = member.process.status().ok()?;
        if status.vmrss.is_some() {
            // Memory that came after that look belongs to a program that is just being loaded: nothing is
            // known of it.
            let layout = Layout::of(&member.stat).unwrap_or(Layout::Hidden);
            return Some(Living { member, thread: None, status, layout });
        }
        let (thread, status) = tree::living_thread(&member.process)?;
        // The order matters: memory that has gone after that look belongs to a process that ends.
        let layout = Layout::of(&thread.stat().ok()?)?;
        Some(Living { member, thread: Some(thread), status, layout })
    }

    pub fn pid(&self) -> i32 {
        self.member.stat.pid
    }

    pub fn subject(&self) -> Subject<'_> {
        let process = self.thread.as_ref().unwrap_or(&self.member.process);
        Subject { pid: self.pid(), process, counters: counters(&self.status) }
    }

    pub fn look(&self) -> Look {
        let memory = counters(&self.status);
        Look {
            pid: self.pid(),
            parent: self.member.stat.ppid,
            image: match self.layout {
                Layout::Shown(layout) => Image::Layout(layout),
                Layout::Hidden => Image::Hidden(command_of(self.member)),
            },
            bytes: memory.anon + memory.swap,
            faults: self.member.stat.minflt,
        }
    }
}

/// Where the kernel put the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Beginnings of code, stack and heap.
    Shown([u64; 3]),
    /// The process is not ours to look into.
    Hidden,
}

impl Layout {
    /// `None` if the process has no program: it has given its memory back, or is just loading another. The
    /// kernel then shows its code at 0. To those who may not read the process it shows code at 1 with a stack
    /// at 0.
    fn of(stat: &Stat) -> Option<Self> {
        match [stat.startcode, stat.startstack, stat.start_brk.unwrap_or(0)] {
            [0, ..] => None,
            [_, 0, _] => Some(Self::Hidden),
            layout => Some(Self::Shown(layout)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead;

    /// `/proc/PID/stat` as the kernel shows a process with this code, stack and heap.
    fn layout(code: u64, stack: u64, heap: u64) -> Option<Layout> {
        let line = format!(
            "7 (pt_data_worker) S 1 7 7 0 -1 4194304 9 0 0 0 1 2 0 0 20 0 2 0 500 1000 50 18446744073709551615 \
             {code} 9 {stack} 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 8 9 {heap} 11 12 13 14 0\n"
        );
        Layout::of(&Stat::from_read(line.as_bytes()).unwrap())
    }

    #[test]
    fn a_process_without_its_memory_is_none_and_not_one_that_may_not_be_looked_into() {
        assert_eq!(layout(4096, 8192, 16384), Some(Layout::Shown([4096, 8192, 16384])));
        assert_eq!(layout(1, 0, 0), Some(Layout::Hidden));
        assert_eq!(layout(0, 0, 0), None, "else a worker that ends would count as a program of its own");
    }
}
