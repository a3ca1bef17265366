//! The one way to write a file.
//!
//! Takes a path and its bytes, at once or as a stream. The file gets its name when all of it is on disk. A writer that
//! fails leaves nothing; what a killed writer left is removed by the next writer of the same file.

use crate::folder::{parent, sync_folder};
use std::{
    ffi::{OsStr, OsString},
    fs::{File, TryLockError},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::{NamedTempFile, TempPath};

const SUFFIX: &str = ".partial";
/// What is younger may belong to a writer that has not locked it yet.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = PartialFile::create(path)?;
    file.write_all(bytes)?;
    file.keep()
}

/// Copies a whole file.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut file = PartialFile::create(to)?;
    io::copy(&mut source, file.file_mut())?;
    file.keep()
}

/// Writes a whole file by `fill`. `refused` makes the caller's error of what the system says on the way.
pub fn write_with<E>(
    path: &Path,
    refused: impl Fn(io::Error) -> E,
    fill: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let mut file = PartialFile::create(path).map_err(&refused)?;
    fill(file.file_mut())?;
    file.keep().map_err(refused)
}

/// A file in the making: it gets its name with [`PartialFile::keep`], and is removed if it is dropped before.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    file: NamedTempFile,
}

impl PartialFile {
    /// Begins the file `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let file = (0..)
            .find_map(|number| claim(&parent(path).join(temporary(name, number))).transpose())
            .ok_or(io::ErrorKind::AlreadyExists)??;
        // Some network file systems have no locks; what is abandoned there stays.
        let _ = file.as_file().try_lock();
        Ok(Self { path: path.to_owned(), file })
    }

    /// The open file.
    pub fn file_mut(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Puts the file on disk and gives it its name.
    pub fn keep(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path).map_err(|error| error.error)?;
        sync_folder(parent(&self.path))
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file_mut().flush()
    }
}

/// Bytes of a file's name that its temporary name repeats: with what is added, no name is longer than the 255 bytes that
/// file systems allow.
const REPEATED: usize = 200;

fn temporary(name: &OsStr, number: u32) -> OsString {
    let mut temporary = OsString::from(".");
    let name = name.as_bytes();
    temporary.push(OsStr::from_bytes(&name[..name.len().min(REPEATED)]));
    temporary.push(format!(".{number}{SUFFIX}"));
    temporary
}

/// Makes a temporary file of this name, in the place of one that a killed writer left; `None` if a living writer has
/// the name. The umask takes away the permissions that it should, as for any other new file.
fn claim(path: &Path) -> io::Result<Option<NamedTempFile>> {
    if is_abandoned(path).unwrap_or(false) {
        let _ = std::fs::remove_file(path);
    }
    match File::options().read(true).write(true).create_new(true).open(path) {
        Ok(file) => Ok(Some(NamedTempFile::from_parts(file, TempPath::try_from_path(path)?))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_abandoned(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    match file.try_lock() {
        Ok(()) => Ok(age > ABANDONED_AFTER),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt, time::SystemTime};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_writer_that_fails_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"old").unwrap();
        let mut file = PartialFile::create(&path).unwrap();
        file.write_all(b"ne").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["a.json"]);
    }

    #[test]
    fn the_longest_name_that_a_file_may_have_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ä".repeat(127));
        write(&path, b"x").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn others_may_read_what_is_written_as_far_as_the_umask_allows() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        fs::write(folder.path().join("plain"), "x").unwrap();
        write(&folder.path().join("ours"), b"x").unwrap();
        assert_eq!(mode("ours"), mode("plain"));
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let long_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
        let mut living = PartialFile::create(&path).unwrap();
        living.write_all(b"living").unwrap();
        living.file_mut().set_modified(long_ago).unwrap();
        for (name, time) in [(".a.json.1.partial", SystemTime::now()), (".a.json.2.partial", long_ago)] {
            File::create(folder.path().join(name)).unwrap().set_modified(time).unwrap();
        }
        write(&path, b"mine").unwrap();
        let left = [".a.json.0.partial", ".a.json.1.partial", "a.json"];
        assert_eq!(names(folder.path()), left, "the living one's, one that may be, and the file");
        living.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"living");
    }
}
