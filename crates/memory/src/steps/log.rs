//! Steps from the log of a process that already runs.
//!
//! Follows files that grow, named by the user or found behind the process's standard output and error, and
//! reports to the [`StepBoard`] each time it is asked to catch up. Files are only read, a bounded part at a
//! time. A log that its writer truncates or replaces is read from its beginning.

use super::{OutputParser, StepBoard, StepPatterns};
use procfs::process::{FDTarget, Process};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Enough of the end of a log to find the present step in.
const LOOK_BACK: u64 = 64 << 10;
/// What is read at a time.
const CHUNK: usize = 64 << 10;
/// What is read in one go at most; a log that grows faster is caught up with later, or skipped (see
/// `LOOK_BACK`).
const MOST_AT_ONCE: u64 = 4 << 20;

/// A log that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error("cannot read the log {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not a regular file.
    #[error("{} is not a file: steps can only be read from one that grows, such as the output of `tee`", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
}

/// Follows the logs of one process.
pub struct LogFollower {
    logs: Vec<Log>,
}

struct Log {
    path: PathBuf,
    file: File,
    position: u64,
    parser: OutputParser,
}

impl LogFollower {
    /// Follows the files `given`. Without any, follows the regular files behind the output of the first of
    /// `processes` that has some: the root of a tree is often a shell or a launcher.
    pub fn open(
        processes: &[i32],
        given: Option<&Path>,
        board: StepBoard,
        patterns: &StepPatterns,
    ) -> Result<Self, LogError> {
        let paths = given.map_or_else(|| first_output(processes), |path| vec![path.to_owned()]);
        let mut logs = Vec::new();
        for path in paths {
            match open_file(&path) {
                Ok(None) if given.is_some() => return Err(LogError::NotAFile { path }),
                Ok(None) => {}
                Ok(Some(file)) => logs.push(Log::new(path, file, OutputParser::new(board.clone(), patterns))),
                // A file that was found, not given, may fail to open.
                Err(source) if given.is_some() => return Err(LogError::Io { path, source }),
                Err(_) => {}
            }
        }
        Ok(Self { logs })
    }

    /// The files that are followed.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.logs.iter().map(|log| log.path.as_path())
    }

    /// Reads what was written since.
    pub(crate) fn catch_up(&mut self) {
        self.logs.iter_mut().for_each(Log::catch_up);
    }
}

/// `None` for anything but a regular file: opening a pipe without a writer would block, and reading one would
/// take lines from its reader.
fn open_file(path: &Path) -> io::Result<Option<File>> {
    let is_file = fs::metadata(path)?.is_file();
    is_file.then(|| File::open(path)).transpose()
}

impl Log {
    fn new(path: PathBuf, file: File, parser: OutputParser) -> Self {
        let position = file.metadata().map_or(0, |file| file.len()).saturating_sub(LOOK_BACK);
        Self { path, file, position, parser }
    }

    fn catch_up(&mut self) {
        let Ok(length) = self.file.metadata().map(|file| file.len()) else { return };
        if length < self.position {
            self.position = 0;
        }
        if length - self.position > MOST_AT_ONCE {
            self.position = length - LOOK_BACK;
        }
        let mut buffer = vec![0; CHUNK.min((length - self.position) as usize)];
        while self.position < length {
            match self.file.read_at(&mut buffer, self.position) {
                Ok(read) if read > 0 => {
                    self.parser.feed(&buffer[..read]);
                    self.position += read as u64;
                }
                _ => return,
            }
        }
    }
}

fn first_output(processes: &[i32]) -> Vec<PathBuf> {
    processes.iter().map(|pid| output_files(*pid)).find(|files| !files.is_empty()).unwrap_or_default()
}

/// Regular files behind standard output and error; none if we may not look, or if they are terminals or
/// pipes.
fn output_files(pid: i32) -> Vec<PathBuf> {
    let file_behind = |descriptor| {
        let found = Process::new(pid).ok()?.fd_from_fd(descriptor).ok()?;
        let FDTarget::Path(path) = found.target else { return None };
        path.is_file().then_some(path)
    };
    let mut files: Vec<PathBuf> = [1, 2].into_iter().filter_map(file_behind).collect();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunFacts;
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    fn step(board: &StepBoard) -> Option<u64> {
        board.now(&RunFacts::default()).step
    }

    #[test]
    fn a_log_is_followed_as_it_grows_and_when_it_starts_over() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let board = StepBoard::default();
        writeln!(file, "{}\nstep 3", "x".repeat(2 * LOOK_BACK as usize)).unwrap();
        let mut logs =
            LogFollower::open(&[], Some(file.path()), board.clone(), &StepPatterns::default()).unwrap();
        logs.catch_up();
        assert_eq!(step(&board), Some(3), "what stood at its end");
        writeln!(file, "step 4").unwrap();
        logs.catch_up();
        assert_eq!(step(&board), Some(4));
        fs::write(file.path(), "step 1\n").unwrap();
        logs.catch_up();
        assert_eq!(step(&board), Some(1));
    }

    #[test]
    fn the_file_behind_the_output_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let output = Stdio::from(file.reopen().unwrap());
        let mut sleeper =
            Command::new("sleep").arg("60").stdout(output).stderr(Stdio::null()).spawn().unwrap();
        let logs = LogFollower::open(
            &[i32::MAX, sleeper.id().cast_signed()],
            None,
            StepBoard::default(),
            &StepPatterns::default(),
        );
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(logs.unwrap().files().collect::<Vec<_>>(), [file.path()]);
    }

    #[test]
    fn a_log_that_was_asked_for_must_be_there() {
        let missing = LogFollower::open(
            &[],
            Some(Path::new("/nowhere/log")),
            StepBoard::default(),
            &StepPatterns::default(),
        );
        assert!(matches!(missing, Err(LogError::Io { .. })));
    }

    #[test]
    fn a_pipe_a_device_or_a_folder_is_refused_by_name_instead_of_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            let refused = LogFollower::open(&[], Some(path), StepBoard::default(), &StepPatterns::default())
                .err()
                .unwrap();
            let said = refused.to_string();
            assert!(said.contains("is not a file") && said.contains(path.to_str().unwrap()), "{said}");
        }
    }
}
