//! How a worker ended, in words.
//!
//! Takes the status of the process and what the kernel counted, and says who ended it: the worker itself, a
//! signal, or the kernel because memory ran out. The last lines of the worker's log stand beside it.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::ExitStatus,
};

/// Lines of the log that an error shows, and the bytes that are looked through for them.
const LINES: usize = 15;
const BYTES: u64 = 8192;
const SIGKILL: i32 = 9;

/// Processes that the kernel has killed because memory ran out, where it says.
pub(super) fn out_of_memory_kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// How a process ended; `before` and `after` are [`out_of_memory_kills`] around its life.
pub(super) fn how(status: ExitStatus, before: Option<u64>, after: Option<u64>) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended by itself with code {code}"),
        (None, Some(SIGKILL)) if before.zip(after).is_some_and(|(before, after)| after > before) => {
            "was killed by the kernel: memory ran out".to_owned()
        }
        (None, Some(SIGKILL)) => "was killed (signal 9)".to_owned(),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => format!("ended with {status}"),
    }
}

/// The last lines of a log from this place on.
pub(super) fn tail(path: &Path, from: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(BYTES))))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ended_it_is_said() {
        let killed = ExitStatus::from_raw(SIGKILL);
        assert_eq!(how(killed, Some(3), Some(4)), "was killed by the kernel: memory ran out");
        assert_eq!(how(killed, Some(3), Some(3)), "was killed (signal 9)");
        assert_eq!(how(killed, None, Some(3)), "was killed (signal 9)");
        assert_eq!(how(ExitStatus::from_raw(11), Some(3), Some(4)), "was ended by signal 11");
        assert_eq!(how(ExitStatus::from_raw(1 << 8), None, None), "ended by itself with code 1");
    }

    #[test]
    fn the_tail_is_that_of_this_worker_and_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.log");
        let lines: String = (1..=1000).map(|line| format!("line {line}\n\n")).collect();
        fs::write(&path, &lines).unwrap();
        let shown = tail(&path, 0);
        assert_eq!(shown.lines().count(), LINES);
        assert!(shown.ends_with("line 1000"));
        assert_eq!(tail(&path, lines.len() as u64), "", "what stood there before is another worker's");
        assert_eq!(tail(&folder.path().join("gone"), 0), "");
    }
}
