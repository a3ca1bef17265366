//! The index of a text file: where each row begins, 8 bytes a row, read in place.
//!
//! Takes a JSON Lines or JSON array file and gives the span of any of its rows by one positioned read. The
//! index is built in one pass and kept beside the data, or in the cache folder where that is not writable. It
//! is rebuilt when the data change: it records the size, the time and a hash of both ends of its file.

use crate::{
    error::DataError,
    progress::{Progress, ProgressUnit},
    scan::{self, Layout, ScanError},
};
use std::{
    env,
    fs::{self, File},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

const MAGIC: u64 = u64::from_le_bytes(*b"GARDNIX1");
/// Magic, layout, size, time, hash, rows, end of the rows, and a hash of these seven.
const HEADER: u64 = 8 * 8;
/// Bytes that are hashed at each end of the data: enough to notice a rewritten file of the same size and
/// time.
const HASHED: u64 = 64 << 10;

/// An open index with its data file.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    file: File,
    data: File,
    header: Header,
}

/// What an index records about itself and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    stamp: Stamp,
    rows: u64,
    /// Where the last row ends.
    end: u64,
}

/// Which data an index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    layout: Layout,
    size: u64,
    time: u64,
    ends: u64,
}

impl Index {
    /// Opens the index of a data file, and builds it first where there is none or the data changed. Where
    /// `folder` is given, the index is kept there and never beside the data.
    pub fn open(path: &Path, folder: Option<&Path>, progress: &dyn Progress) -> Result<Self, DataError> {
        let data = File::open(path).map_err(DataError::io(path))?;
        let (stamp, head) = Stamp::and_head(&data).map_err(DataError::io(path))?;
        if let Some(fault) = scan::fault(&head) {
            return Err(DataError::File { path: path.to_owned(), reason: fault.into() });
        }
        let cached = cached_path(path, folder).map_err(DataError::io(path))?;
        let beside = folder.is_none().then(|| beside_path(path));
        let places: Vec<_> = beside.into_iter().chain(cached).collect();
        if let Some((place, file, header)) = places.iter().find_map(|place| read(place, stamp)) {
            return Ok(Self { path: place, file, data, header });
        }
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for place in &places {
            match build(path, &data, stamp, place, progress) {
                Ok(()) => {
                    let (path, file, header) = read(place, stamp).ok_or_else(|| changed(path))?;
                    return Ok(Self { path, file, data, header });
                }
                Err(BuildError::Data(error)) => return Err(error),
                Err(BuildError::Write(error)) => refused = error,
            }
        }
        let place = places.last().cloned().unwrap_or_else(|| path.to_owned());
        Err(DataError::Io { path: place, source: refused })
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.header.rows
    }

    /// How the rows are laid out in the data.
    pub fn layout(&self) -> Layout {
        self.header.stamp.layout
    }

    /// A number that changes with the data.
    pub fn fingerprint(&self) -> u64 {
        let stamp = self.header.stamp;
        fnv1a(&[stamp.size, stamp.ends, self.header.rows].map(u64::to_le_bytes).concat())
    }

    /// Where a row is; `None` past the last one.
    pub fn span(&self, row: u64) -> Result<Option<Range<u64>>, DataError> {
        if row >= self.header.rows {
            return Ok(None);
        }
        let mut offsets = [0; 16];
        let wanted = if row + 1 == self.header.rows { 8 } else { 16 };
        let place = HEADER + row * 8;
        self.file.read_exact_at(&mut offsets[..wanted], place).map_err(DataError::io(&self.path))?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| offsets[at + i]));
        let end = if wanted == 16 { number(8) } else { self.header.end };
        let span = number(0)..end;
        if span.start > span.end || span.end > self.header.stamp.size {
            let reason = "the index is damaged: delete it, and it is built again".into();
            return Err(DataError::File { path: self.path.clone(), reason });
        }
        Ok(Some(span))
    }

    /// Reads a span of the data.
    pub fn read(&self, span: Range<u64>, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.resize((span.end - span.start) as usize, 0);
        self.data.read_exact_at(buffer, span.start)
    }
}

impl Stamp {
    fn of(data: &File) -> io::Result<Self> {
        Self::and_head(data).map(|(stamp, _)| stamp)
    }

    /// The same, with what the data begins with.
    fn and_head(data: &File) -> io::Result<(Self, Vec<u8>)> {
        let about = data.metadata()?;
        let size = about.len();
        let hashed = HASHED.min(size);
        let (mut head, mut end) = (vec![0; hashed as usize], vec![0; hashed as usize]);
        data.read_exact_at(&mut head, 0)?;
        data.read_exact_at(&mut end, size - hashed)?;
        let time = (about.mtime() as u64).wrapping_mul(1_000_000_000).wrapping_add(about.mtime_nsec() as u64);
        let stamp =
            Self { layout: Layout::of(&head), size, time, ends: fnv1a(&head).rotate_left(1) ^ fnv1a(&end) };
        Ok((stamp, head))
    }
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER as usize] {
        let Stamp { layout, size, time, ends } = self.stamp;
        let layout = match layout {
            Layout::Lines => 0,
            Layout::Array => 1,
        };
        let mut bytes = [0; HEADER as usize];
        let numbers = [MAGIC, layout, size, time, ends, self.rows, self.end];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = fnv1a(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// Opens the index at a place, if it is whole and belongs to the data.
fn read(place: &Path, stamp: Stamp) -> Option<(PathBuf, File, Header)> {
    let file = File::open(place).ok()?;
    let mut bytes = [0; HEADER as usize];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at * 8 + i]));
    let header = Header { stamp, rows: number(5), end: number(6) };
    let length = header.rows.checked_mul(8)?.checked_add(HEADER)?;
    let whole = header.to_bytes() == bytes && file.metadata().ok()?.len() == length;
    whole.then(|| (place.to_owned(), file, header))
}

enum BuildError {
    /// The data are at fault: keeping the index elsewhere would not help.
    Data(DataError),
    /// The index could not be written here.
    Write(io::Error),
}

impl From<io::Error> for BuildError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// What stops a scan: the data, or the index that is written on the way.
enum ScanStop {
    Scan(ScanError),
    Write(io::Error),
}

impl From<ScanError> for ScanStop {
    fn from(error: ScanError) -> Self {
        Self::Scan(error)
    }
}

fn build(
    path: &Path,
    data: &File,
    stamp: Stamp,
    place: &Path,
    progress: &dyn Progress,
) -> Result<(), BuildError> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    garden_files::write_with(place, BuildError::Write, |file| {
        let mut reader = data;
        reader.seek(SeekFrom::Start(0)).map_err(|error| BuildError::Data(DataError::io(path)(error)))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        progress.begin(&format!("Indexing {name}"), ProgressUnit::Bytes, stamp.size);
        let mut writer = BufWriter::new(&mut *file);
        writer.write_all(&[0; HEADER as usize])?;
        let mut rows = 0;
        let row = |offset: u64| {
            rows += 1;
            writer.write_all(&offset.to_le_bytes()).map_err(ScanStop::Write)
        };
        let end = scan::scan(reader, stamp.layout, row, |bytes| progress.advance(bytes));
        progress.end();
        let end = end.map_err(|stop| match stop {
            ScanStop::Write(error) => BuildError::Write(error),
            ScanStop::Scan(ScanError::Read(error)) => BuildError::Data(DataError::io(path)(error)),
            ScanStop::Scan(error) => {
                BuildError::Data(DataError::File { path: path.to_owned(), reason: error.to_string() })
            }
        })?;
        writer.flush()?;
        drop(writer);
        let unchanged = Stamp::of(data).is_ok_and(|now| now == stamp);
        if !unchanged {
            return Err(BuildError::Data(changed(path)));
        }
        Ok(file.write_all_at(&Header { stamp, rows, end }.to_bytes(), 0)?)
    })
}

fn changed(path: &Path) -> DataError {
    DataError::File { path: path.to_owned(), reason: "the file changed while it was read".into() }
}

fn beside_path(data: &Path) -> PathBuf {
    let name = data.file_name().unwrap_or_default().to_string_lossy();
    data.with_file_name(format!(".{name}.garden-index"))
}

/// Where the index is where the data's folder is not writable: the given folder, or the user's cache.
fn cached_path(data: &Path, folder: Option<&Path>) -> io::Result<Option<PathBuf>> {
    let Some(folder) = folder.map(Path::to_owned).or_else(|| cache_folder("index")) else {
        return Ok(None);
    };
    let name = data.file_name().unwrap_or_default().to_string_lossy();
    Ok(Some(folder.join(format!("{:016x}-{name}.garden-index", path_hash(data)?))))
}

/// The folders that are used below the user's cache folder (`XDG_CACHE_HOME`): of rows written out, and of
/// indexes.
pub const CACHE_FOLDERS: [&str; 2] = ["model-garden/rows", "model-garden/index"];

/// A folder of the user's cache, if there is a place for it.
pub(crate) fn cache_folder(name: &str) -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    Some(caches?.join("model-garden").join(name))
}

/// A number for the absolute path of a file.
pub(crate) fn path_hash(path: &Path) -> io::Result<u64> {
    Ok(fnv1a(std::path::absolute(path)?.as_os_str().as_encoded_bytes()))
}

/// A number that changes with a file: its size, its time and both its ends.
pub(crate) fn stamp(data: &File) -> io::Result<u64> {
    let Stamp { size, time, ends, .. } = Stamp::of(data)?;
    Ok(fnv1a(&[size, time, ends].map(u64::to_le_bytes).concat()))
}

/// The FNV-1a hash, which is the same on every machine and in every version.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(data: &Path) -> Index {
        Index::open(data, None, &()).unwrap()
    }

    fn row(index: &Index, row: u64) -> String {
        let mut buffer = Vec::new();
        index.read(index.span(row).unwrap().unwrap(), &mut buffer).unwrap();
        String::from_utf8(scan::trim(&buffer, index.layout()).to_vec()).unwrap()
    }

    #[test]
    fn finds_every_row_and_none_past_the_last() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.jsonl", "{\"n\":0}\n{\"n\":1}\n\n{\"n\":2}"),
            ("a.json", "[{\"n\":0}, {\"n\":1},{\"n\":2}]\n"),
        ] {
            let data = folder.path().join(name);
            fs::write(&data, text).unwrap();
            let index = open(&data);
            assert_eq!(index.rows(), 3);
            for n in 0..3 {
                assert_eq!(row(&index, n), format!("{{\"n\":{n}}}"));
            }
            assert_eq!(index.span(3).unwrap(), None);
        }
    }

    #[test]
    fn takes_eight_bytes_a_row_and_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a.jsonl");
        fs::write(&data, "{}\n".repeat(1000)).unwrap();
        open(&data);
        let place = beside_path(&data);
        assert_eq!(fs::metadata(&place).unwrap().len(), HEADER + 1000 * 8);
        let written = fs::metadata(&place).unwrap().ino();
        open(&data);
        assert_eq!(fs::metadata(&place).unwrap().ino(), written, "a valid index is not written again");
    }

    #[test]
    fn is_built_again_when_the_data_changed_or_the_index_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a.jsonl");
        fs::write(&data, "{\"a\":1}\n{\"b\":2}\n").unwrap();
        let time = fs::metadata(&data).unwrap().modified().unwrap();
        let before = open(&data).fingerprint();
        // Same size and time, other rows.
        fs::write(&data, "{\"a\": \"\"}\n[1]\n ").unwrap();
        File::options().write(true).open(&data).unwrap().set_modified(time).unwrap();
        let index = open(&data);
        assert_eq!(row(&index, 1), "[1]");
        assert_ne!(index.fingerprint(), before);

        let place = beside_path(&data);
        let whole = fs::read(&place).unwrap();
        for damaged in [&whole[..whole.len() - 1], &[0; 200], b""] {
            fs::write(&place, damaged).unwrap();
            assert_eq!(row(&open(&data), 1), "[1]");
        }
    }

    #[test]
    fn lives_in_the_given_folder_instead() {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let data = folder.path().join("a.jsonl");
        fs::write(&data, "{}\n{}\n").unwrap();
        assert_eq!(Index::open(&data, Some(&cache.path().join("index")), &()).unwrap().rows(), 2);
        assert!(!beside_path(&data).exists());
        assert_eq!(fs::read_dir(cache.path().join("index")).unwrap().count(), 1);
    }

    #[test]
    fn a_broken_array_is_an_error_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a.json");
        fs::write(&data, "[{\"a\": 1}, {").unwrap();
        let error = Index::open(&data, None, &()).unwrap_err().to_string();
        assert!(error.contains("a.json") && error.contains("cut off"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn damaged_offsets_are_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a.jsonl");
        fs::write(&data, "{}\n{}\n").unwrap();
        let index = open(&data);
        let place = File::options().write(true).open(beside_path(&data)).unwrap();
        place.write_all_at(&u64::MAX.to_le_bytes(), HEADER).unwrap();
        assert!(index.span(0).unwrap_err().to_string().contains("delete it"));
    }
}
