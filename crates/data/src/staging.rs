//! Data files whose rows cannot be read by offset, written out once: compressed files and CSV.
//!
//! Takes `.gz` and `.zst` files and CSV, and gives the path of the same rows as JSON Lines (or as the JSON
//! array that was compressed) in the cache folder. The copy is made in a stream of bounded memory, kept for
//! the next run, and made again when the data changed. So a row costs one read, whatever the file was.

use crate::{
    error::DataError,
    index,
    progress::{Progress, ProgressUnit},
    split,
};
use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

mod csv;

/// How many times larger than its file the text may be. Rows compress 3 to 20 times; a file made to fill
/// disks compresses 1000 times.
const MOST_EXPANSION: u64 = 200;
/// How many bytes any file may expand to, however small it is.
const SMALL: u64 = 64 << 20;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

/// What a file holds, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    packing: Packing,
    csv: bool,
}

/// The names that rows of text have, compressed or not.
const TEXT: [&str; 3] = [".jsonl", ".ndjson", ".json"];

impl Form {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let packings = [(".gz", Packing::Gzip), (".zst", Packing::Zstd)];
        let packed = packings.iter().find_map(|(end, packing)| Some((name.strip_suffix(end)?, *packing)));
        let (name, packing) = packed.unwrap_or((&name, Packing::None));
        let csv = name.ends_with(".csv");
        (csv || TEXT.iter().any(|end| name.ends_with(end))).then_some(Self { packing, csv })
    }

    /// Whether the rows can be read where they are.
    fn is_plain(self) -> bool {
        self.packing == Packing::None && !self.csv
    }
}

/// Whether a file holds rows as text, by its name.
pub(crate) fn is_text(path: &Path) -> bool {
    Form::of(path).is_some()
}

/// Whether a file of a folder holds rows as text. Of CSV files, only the metadata of an image folder and
/// files named after a split count: others may be anything.
pub(crate) fn is_text_of_folder(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let stem = name.split_once(".csv").map_or(&*name, |(stem, _)| stem);
    Form::of(path).is_some_and(|form| !form.csv || stem == "metadata" || split::is_split_name(stem))
}

/// The path of a file's rows as text: its own, or that of the copy in the cache (in `folder` where one is
/// given).
pub(crate) fn staged(
    path: &Path,
    folder: Option<&Path>,
    progress: &dyn Progress,
) -> Result<PathBuf, DataError> {
    let Some(form) = Form::of(path).filter(|form| !form.is_plain()) else { return Ok(path.to_owned()) };
    let failed = |reason: String| DataError::File { path: path.to_owned(), reason };
    let file = File::open(path).map_err(DataError::io(path))?;
    let stamp = index::stamp(&file).map_err(DataError::io(path))?;
    let folder = match folder {
        Some(folder) => folder.join("rows"),
        None => index::cache_folder("rows").ok_or_else(|| {
            failed("compressed files and CSV are written out in the cache folder: set XDG_CACHE_HOME".into())
        })?,
    };
    fs::create_dir_all(&folder).map_err(DataError::io(&folder))?;
    let owner = cached_as(path).map_err(DataError::io(path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let place = folder.join(format!("{owner}{stamp:016x}-{name}.rows"));
    if !place.exists() {
        remove_older(&folder, &owner);
        write_out(path, file, form, &place, progress)?;
    }
    Ok(place)
}

/// How the names of everything begin that the cache holds of a file, after the dot of a hidden name.
pub fn cached_as(path: &Path) -> io::Result<String> {
    Ok(format!("{:016x}-", index::path_hash(path)?))
}

/// Removes what was written out of an older version of the same file, and its index.
fn remove_older(folder: &Path, owner: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Another process may be writing the same file: what is unfinished is the business of its writer.
        let unfinished = name.ends_with(".partial");
        if !unfinished && name.strip_prefix('.').unwrap_or(&name).starts_with(owner) {
            // If it stays behind, it only costs disk space.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write_out(
    path: &Path,
    file: File,
    form: Form,
    place: &Path,
    progress: &dyn Progress,
) -> Result<(), DataError> {
    let size = file.metadata().map_err(DataError::io(path))?.len();
    let limit = size.saturating_mul(MOST_EXPANSION).max(SMALL);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    progress.begin(&format!("Writing out {name}"), ProgressUnit::Bytes, size);
    let counted = Counted { inner: file, progress };
    let broken = |error: io::Error| DataError::File { path: path.to_owned(), reason: error.to_string() };
    let unpacked: Box<dyn Read> = match form.packing {
        Packing::None => Box::new(counted),
        Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(counted))),
        Packing::Zstd => Box::new(zstd::stream::read::Decoder::new(counted).map_err(broken)?),
    };
    let limited = Limited::new(unpacked, limit);
    let written = garden_files::write_with(
        place,
        |error| DataError::io(place)(error),
        |out| {
            // A line of CSV repeats the names of all columns: it may be far longer than its record.
            let mut out = Limited::new(BufWriter::new(out), limit);
            if form.csv { csv::to_lines(limited, &mut out) } else { copy(limited, &mut out) }.map_err(
                |error| match error {
                    Failure::Read(error) => broken(error),
                    Failure::Write(error) if Expands::is_in(&error) => broken(error),
                    Failure::Write(error) => DataError::io(place)(error),
                },
            )?;
            out.flush().map_err(DataError::io(place))
        },
    );
    progress.end();
    written
}

/// Which side of a copy failed: the data, or the disk.
enum Failure {
    Read(io::Error),
    Write(io::Error),
}

fn copy(mut from: impl Read, to: &mut impl Write) -> Result<(), Failure> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => to.write_all(&buffer[..read]).map_err(Failure::Write)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Read(error)),
        }
    }
}

/// Tells how much of a file was read.
struct Counted<'a> {
    inner: File,
    progress: &'a dyn Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.progress.advance(read as u64);
        Ok(read)
    }
}

/// A file has more text than one of its size should have.
#[derive(Debug, thiserror::Error)]
#[error(
    "it expands to more than {limit} bytes, {MOST_EXPANSION} times its size: write it out yourself \
     if that is meant"
)]
struct Expands {
    limit: u64,
}

impl Expands {
    fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Stops a file that expands beyond its limit, where it is read and where it is written.
struct Limited<T> {
    inner: T,
    left: u64,
    limit: u64,
}

impl<T> Limited<T> {
    fn new(inner: T, limit: u64) -> Self {
        Self { inner, left: limit, limit }
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        let expands = Expands { limit: self.limit };
        self.left = self.left.checked_sub(bytes as u64).ok_or_else(|| io::Error::other(expands))?;
        Ok(())
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count(read)?;
        Ok(read)
    }
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.count(bytes.len())?;
        self.inner.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
