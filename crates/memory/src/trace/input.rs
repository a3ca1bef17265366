//! Opens a file or standard input: plain or compressed, UTF-8 or UTF-16.
//!
//! Gives the text as UTF-8 bytes, as often as it is asked for: a format that must know the whole file looks
//! through it in a pass of its own. Input that can be read only once (a pipe) is first copied to an unnamed
//! file, so memory does not grow with its length.

use super::TraceError;
use flate2::read::MultiGzDecoder;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// The name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Forms that are recognised but not read, by their first bytes.
const REFUSED: [(&[u8], &str); 5] = [
    (b"\xfd7zXZ\0", "xz-compressed; unpack it with `xz -d` first"),
    (b"BZh", "bzip2-compressed; unpack it with `bzip2 -d` first"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"PAR1", "a Parquet file; write it as CSV first"),
    (b"SQLite format 3\0", "an SQLite database; export its table as CSV first"),
];
/// Enough of a file to tell its form.
const OPENING: usize = 64;

/// A text that can be read again and again.
#[derive(Debug)]
pub(super) struct Input {
    path: PathBuf,
    file: File,
}

impl Input {
    /// Opens a file, or standard input for `-`.
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let io_error = |source| TraceError::Io { path: path.to_owned(), source };
        let is_standard = path.as_os_str() == STANDARD_INPUT;
        let path = if is_standard { PathBuf::from("standard input") } else { path.to_owned() };
        let file = if is_standard {
            copied(io::stdin().lock()).map_err(io_error)?
        } else {
            let file = File::open(&path).map_err(io_error)?;
            let kind = file.metadata().map_err(io_error)?.file_type();
            if kind.is_dir() {
                return Err(io_error(io::ErrorKind::IsADirectory.into()));
            }
            if kind.is_file() { file } else { copied(file).map_err(io_error)? }
        };
        Ok(Self { path, file })
    }

    /// What the input is called in messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The text from its beginning, as UTF-8.
    pub(super) fn text(&self) -> io::Result<Box<dyn BufRead + Send>> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        decoded(unpacked(file)?)
    }
}

fn copied(mut from: impl Read) -> io::Result<File> {
    let mut copy = tempfile::tempfile()?;
    io::copy(&mut from, &mut copy)?;
    Ok(copy)
}

/// Decompresses by what the first bytes say, whatever the name.
fn unpacked(file: File) -> io::Result<Box<dyn Read + Send>> {
    let (opening, whole) = peek(file)?;
    if opening.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(MultiGzDecoder::new(BufReader::new(whole))));
    }
    if opening.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Ok(Box::new(zstd::stream::read::Decoder::new(whole)?));
    }
    match REFUSED.iter().find(|(magic, _)| opening.starts_with(magic)) {
        Some((_, what)) => Err(invalid(format!("this is {what}"))),
        None => Ok(Box::new(whole)),
    }
}

/// Turns UTF-16 into UTF-8, by its byte order mark. The mark of UTF-8 is left to the reader of lines.
fn decoded(bytes: Box<dyn Read + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let (opening, whole) = peek(bytes)?;
    let order: Option<fn([u8; 2]) -> u16> = match opening.as_slice() {
        [0xff, 0xfe, ..] => Some(u16::from_le_bytes),
        [0xfe, 0xff, ..] => Some(u16::from_be_bytes),
        _ => None,
    };
    match order {
        Some(order) => Ok(Box::new(BufReader::with_capacity(
            1 << 16,
            Utf16 { bytes: BufReader::new(whole), order, ready: Cursor::default() },
        ))),
        None if opening.contains(&0) => Err(invalid(
            "this is not text, or it is UTF-16 without a byte order mark: write it as UTF-8 first".to_owned(),
        )),
        None => Ok(Box::new(BufReader::with_capacity(1 << 16, whole))),
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What was peeked at and what follows.
type Whole<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// The first bytes, and everything including them.
fn peek<R: Read>(mut from: R) -> io::Result<(Vec<u8>, Whole<R>)> {
    let mut opening = Vec::with_capacity(OPENING);
    from.by_ref().take(OPENING as u64).read_to_end(&mut opening)?;
    Ok((opening.clone(), Cursor::new(opening).chain(from)))
}

/// UTF-16 as UTF-8, a piece at a time. What is no character becomes the replacement character.
struct Utf16<R> {
    bytes: R,
    order: fn([u8; 2]) -> u16,
    ready: Cursor<Vec<u8>>,
}

impl<R: BufRead> Utf16<R> {
    /// Decodes the next piece; a surrogate that a piece would cut is read with its partner.
    fn decode(&mut self) -> io::Result<()> {
        const PIECE: u64 = 8 << 10;
        let mut piece = Vec::new();
        self.bytes.by_ref().take(PIECE).read_to_end(&mut piece)?;
        let ends_high = |piece: &[u8]| match piece {
            [.., a, b] => (0xd800..0xdc00).contains(&(self.order)([*a, *b])),
            _ => false,
        };
        if piece.len() as u64 == PIECE && ends_high(&piece) {
            self.bytes.by_ref().take(2).read_to_end(&mut piece)?;
        }
        let units = piece.chunks(2).map(|pair| match pair {
            [a, b] => (self.order)([*a, *b]),
            // Half a character at the end of the file.
            _ => u16::from(b'\n'),
        });
        let text: String =
            char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        self.ready = Cursor::new(text.into_bytes());
        Ok(())
    }
}

impl<R: BufRead> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ready.position() == self.ready.get_ref().len() as u64 {
            self.decode()?;
        }
        self.ready.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn text(bytes: &[u8]) -> io::Result<String> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(bytes)?;
        let mut text = String::new();
        Input::open(file.path()).expect("a file").text()?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn utf_16_of_either_order_becomes_utf_8_piece_by_piece() {
        // Long enough for several pieces, with a pair of surrogates across their border.
        let line = format!("{}🌱 5552 MB\n", "x".repeat(4095)).repeat(3);
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            let bytes: Vec<u8> = std::iter::once('\u{feff}')
                .chain(line.chars())
                .flat_map(|c| c.encode_utf16(&mut [0; 2]).to_vec())
                .flat_map(order)
                .collect();
            assert_eq!(text(&bytes).expect("text").trim_start_matches('\u{feff}'), line);
        }
    }

    #[test]
    fn what_is_not_read_is_refused_by_its_name() {
        for (bytes, named) in [
            (&b"\xfd7zXZ\0rest"[..], "xz-compressed"),
            (b"PK\x03\x04rest", "zip archive"),
            (b"PAR1rest", "Parquet"),
            (b"S\0t\0e\0p\0", "UTF-16 without a byte order mark"),
        ] {
            let error = text(bytes).expect_err("an error").to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
