//! Finds where the rows of a JSON file begin, in one pass and a fixed buffer.
//!
//! Takes a file of JSON Lines or one JSON array and gives the offset of each row and, last, the end of the
//! rows. A row reaches from its offset to the next one; [`trim`] removes what separates them. Nothing is
//! parsed here: the contents of a row are judged when it is read.

use std::io::{self, Read};

/// Bytes that are read at once: enough to make the cost of a call small, and little memory.
const BUFFER: usize = 256 << 10;

/// How the rows of a text file are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One row a line.
    Lines,
    /// One array of rows.
    Array,
}

impl Layout {
    /// Tells a JSON array from lines by the first byte of the file that is not white, after a byte order
    /// mark.
    pub fn of(head: &[u8]) -> Self {
        let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
        let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
        if first == Some(&b'[') { Self::Array } else { Self::Lines }
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What is wrong with a file as a whole, as far as its beginning tells.
pub(crate) fn fault(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"\xFF\xFE") || head.starts_with(b"\xFE\xFF") {
        return Some("it is UTF-16: save it as UTF-8");
    }
    let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    let (first, rest) = text.split_at(memchr::memchr(b'\n', text)?);
    let is_cut = || serde_json::from_slice::<serde::de::IgnoredAny>(first).is_err_and(|error| error.is_eof());
    // A line that was cut off is a bad row. A value that goes on in the next line means that the file is not
    // JSON Lines.
    let goes_on = rest.trim_ascii_start().first().is_some_and(|byte| *byte != b'{');
    (first.starts_with(b"{") && goes_on && is_cut()).then_some(
        "its first object goes over several lines: write one row a line, or all rows as one array ([ ... ])",
    )
}

/// Why a file could not be cut into rows.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The array does not end.
    #[error("the file ends before its array does: it was cut off")]
    CutOff,
    /// The array ends before the file does.
    #[error("text follows the end of the array at byte {0}")]
    Trailing(u64),
}

/// Calls `row` with the offset of each row and returns the end of the rows; `read` is told how many bytes
/// were read.
pub fn scan<E: From<ScanError>>(
    mut reader: impl Read,
    layout: Layout,
    mut row: impl FnMut(u64) -> Result<(), E>,
    mut read: impl FnMut(u64),
) -> Result<u64, E> {
    let mut buffer = vec![0; BUFFER];
    let mut scanner = Scanner::new(layout);
    let mut position = 0u64;
    loop {
        let length = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ScanError::Read(error).into()),
        };
        let mut chunk = &buffer[..length];
        if position == 0 {
            let marked = chunk.strip_prefix(BYTE_ORDER_MARK);
            position += (length - marked.unwrap_or(chunk).len()) as u64;
            chunk = marked.unwrap_or(chunk);
        }
        scanner.chunk(chunk, position, &mut row)?;
        position += chunk.len() as u64;
        read(length as u64);
    }
    scanner.end(position).map_err(E::from)
}

/// Where the scan is between two chunks.
enum Scanner {
    /// In lines: whether the current line already holds a row.
    Lines { in_row: bool },
    /// In an array.
    Array(ArrayState),
}

#[derive(Default)]
struct ArrayState {
    /// Open brackets and braces; 1 is between the rows.
    depth: u64,
    in_text: bool,
    escaped: bool,
    /// Whether the row after the last comma has begun.
    in_row: bool,
    /// Where the array ended.
    end: Option<u64>,
}

impl Scanner {
    fn new(layout: Layout) -> Self {
        match layout {
            Layout::Lines => Self::Lines { in_row: false },
            Layout::Array => Self::Array(ArrayState::default()),
        }
    }

    fn chunk<E: From<ScanError>>(
        &mut self,
        chunk: &[u8],
        base: u64,
        row: &mut impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Lines { in_row } => lines(in_row, chunk, base, row),
            Self::Array(state) => state.chunk(chunk, base, row),
        }
    }

    fn end(self, position: u64) -> Result<u64, ScanError> {
        match self {
            Self::Lines { .. } => Ok(position),
            Self::Array(state) => state.end.ok_or(ScanError::CutOff),
        }
    }
}

/// A row begins at the first byte of a line that is not white; blank lines belong to the row before them.
fn lines<E>(
    in_row: &mut bool,
    chunk: &[u8],
    base: u64,
    row: &mut impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    while at < chunk.len() {
        if *in_row {
            match memchr::memchr(b'\n', &chunk[at..]) {
                Some(newline) => at += newline + 1,
                None => return Ok(()),
            }
            *in_row = false;
        } else {
            if !chunk[at].is_ascii_whitespace() {
                row(base + at as u64)?;
                *in_row = true;
            }
            at += 1;
        }
    }
    Ok(())
}

impl ArrayState {
    fn chunk<E: From<ScanError>>(
        &mut self,
        chunk: &[u8],
        base: u64,
        row: &mut impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        while at < chunk.len() {
            if self.in_text {
                at = self.skip_text(chunk, at);
                continue;
            }
            let (byte, position) = (chunk[at], base + at as u64);
            at += 1;
            if byte.is_ascii_whitespace() {
                continue;
            }
            if self.end.is_some() {
                return Err(ScanError::Trailing(position).into());
            }
            if self.depth == 1 {
                self.between_rows(byte, position, row)?;
            }
            match byte {
                b'"' => self.in_text = true,
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.end = Some(position);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A row begins at the first byte after `[` or a comma; a comma without a row before it is an empty row,
    /// which fails when it is read.
    fn between_rows<E>(
        &mut self,
        byte: u8,
        position: u64,
        row: &mut impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match byte {
            b']' | b'}' => {}
            b',' if self.in_row => self.in_row = false,
            _ if self.in_row => {}
            _ => {
                row(position)?;
                self.in_row = byte != b',';
            }
        }
        Ok(())
    }

    /// Goes to the end of the text, or of the chunk.
    fn skip_text(&mut self, chunk: &[u8], mut at: usize) -> usize {
        if self.escaped {
            self.escaped = false;
            return at + 1;
        }
        match memchr::memchr2(b'"', b'\\', &chunk[at..]) {
            None => chunk.len(),
            Some(found) => {
                at += found;
                match chunk[at] {
                    b'\\' => self.escaped = true,
                    _ => self.in_text = false,
                }
                at + 1
            }
        }
    }
}

/// The text of a row without what separates it from the next one.
pub fn trim(row: &[u8], layout: Layout) -> &[u8] {
    let row = row.trim_ascii();
    match layout {
        Layout::Lines => row,
        Layout::Array => row.strip_suffix(b",").unwrap_or(row).trim_ascii_end(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a few bytes at a time, so that every state is met at the end of a chunk.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn rows(text: &str, layout: Layout) -> Result<Vec<&str>, ScanError> {
        let mut results = (3..8).chain([1 << 20]).map(|step| {
            let mut offsets = Vec::new();
            let push = |offset| {
                offsets.push(offset as usize);
                Ok::<_, ScanError>(())
            };
            let end = scan(Slow(text.as_bytes(), step), layout, push, |_| {})?;
            offsets.push(end as usize);
            let cut = |pair: &[usize]| trim(&text.as_bytes()[pair[0]..pair[1]], layout);
            Ok(offsets.windows(2).map(|pair| std::str::from_utf8(cut(pair)).unwrap()).collect())
        });
        let first: Result<Vec<_>, ScanError> = results.next().unwrap();
        for other in results {
            match (&first, other) {
                (Ok(first), Ok(other)) => assert_eq!(*first, other),
                (Err(first), Err(other)) => assert_eq!(first.to_string(), other.to_string()),
                (first, other) => panic!("chunks decide: {first:?} and {other:?}"),
            }
        }
        first
    }

    #[test]
    fn cuts_lines_and_passes_over_blank_ones() {
        let text = "\u{feff}{\"a\": 1}\r\n\n  \n{\"b\": \"}\\\"\"}\n[3]";
        assert_eq!(rows(text, Layout::Lines).unwrap(), ["{\"a\": 1}", "{\"b\": \"}\\\"\"}", "[3]"]);
        assert_eq!(rows("", Layout::Lines).unwrap(), Vec::<&str>::new());
        assert_eq!(rows("\n\n", Layout::Lines).unwrap(), Vec::<&str>::new());
    }

    #[test]
    fn cuts_an_array_at_its_own_commas_only() {
        let text = " [ {\"a\": [1, {\"x\": \"],}\\\\\\\"[\"}]} ,\n\"b, c\", 3,null, [ ] ] \n";
        let expected = ["{\"a\": [1, {\"x\": \"],}\\\\\\\"[\"}]}", "\"b, c\"", "3", "null", "[ ]"];
        assert_eq!(rows(text, Layout::Array).unwrap(), expected);
        assert_eq!(rows("[]", Layout::Array).unwrap(), Vec::<&str>::new());
    }

    #[test]
    fn keeps_broken_rows_as_rows() {
        assert_eq!(rows("[1,,2]", Layout::Array).unwrap(), ["1", "", "2"]);
        assert_eq!(rows("[1 2,3]", Layout::Array).unwrap(), ["1 2", "3"]);
    }

    #[test]
    fn says_when_an_array_is_cut_off_or_goes_on() {
        for text in ["[", "[{\"a\": 1}", "[{\"a\": \"]", "", "[{\"a\": \"\\"] {
            assert!(matches!(rows(text, Layout::Array), Err(ScanError::CutOff)), "{text}");
        }
        assert!(matches!(rows("[1] x", Layout::Array), Err(ScanError::Trailing(4))));
    }

    #[test]
    fn a_file_that_is_no_rows_at_all_is_told_by_its_beginning() {
        for text in ["{\n  \"data\": [\n", "\u{feff}{\"data\": [\n  1]}", "{\n}\n"] {
            assert!(fault(text.as_bytes()).is_some_and(|fault| fault.contains("several lines")), "{text}");
        }
        for text in ["{\"a\": 1}\n{", "{\"cut\": \n{\"a\": 1}", "[\n{}]", "{\"a\"", "", "x\ny"] {
            assert_eq!(fault(text.as_bytes()), None, "{text}");
        }
        for text in [b"\xFF\xFE{\0\n\0", b"\xFE\xFF\0{\0\n"] {
            assert_eq!(fault(text), Some("it is UTF-16: save it as UTF-8"));
        }
    }

    #[test]
    fn tells_arrays_from_lines() {
        assert_eq!(Layout::of("\u{feff}\n [{}]".as_bytes()), Layout::Array);
        assert_eq!(Layout::of(b"{\"a\": [1]}"), Layout::Lines);
        assert_eq!(Layout::of(b""), Layout::Lines);
    }
}
