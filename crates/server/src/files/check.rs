//! A look at the first row of a file to train on.
//!
//! Takes an open file and its format, and says what is wrong where the first row could not be one. It costs no more
//! than reading that row; the job itself checks the rest.

use super::record::Format;
use serde::de::IgnoredAny;
use std::io::{self, BufRead, BufReader, Read};

/// Bytes after which a row is let pass: images may lie in it.
const LONGEST_LOOK: u64 = 64 << 20;
const BUFFER: usize = 64 << 10;

/// What is wrong with a file, if anything.
pub(super) fn check(file: impl Read, format: Format) -> io::Result<Option<String>> {
    let mut reader = BufReader::with_capacity(BUFFER, file.take(LONGEST_LOOK));
    let head = reader.fill_buf()?;
    if head.is_empty() {
        return Ok(Some("the file is empty".to_owned()));
    }
    Ok(match format {
        Format::Parquet => (!head.starts_with(b"PAR1")).then(|| "the file is not Parquet".to_owned()),
        Format::Csv => {
            let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
            (line.contains(&0) || line.trim_ascii().is_empty())
                .then(|| "the first line has no column names".to_owned())
        }
        Format::Json if skip_mark(head).trim_ascii_start().starts_with(b"[") => None,
        Format::Json | Format::Jsonl => {
            let mark = head.len() - skip_mark(head).len();
            reader.consume(mark);
            first_object(reader)?
        }
        Format::Tsv | Format::Zip | Format::Bin => Some(refusal(head, format)),
    })
}

/// Why a file of this format cannot be trained on, and what to send instead.
fn refusal(head: &[u8], format: Format) -> String {
    let compressed = head.starts_with(b"\x1f\x8b") || head.starts_with(b"\x28\xb5\x2f\xfd");
    let (what, instead) = match format {
        Format::Tsv => ("TSV is", "save the rows as CSV, JSON Lines, JSON or Parquet"),
        Format::Zip => {
            ("archives are", "upload the rows with their images inside, as `dataset convert` writes them")
        }
        _ if compressed => ("compressed files are", "upload the rows as they are, or as Parquet"),
        _ => ("this format is", "upload JSON Lines, JSON, CSV or Parquet, with the name of the file"),
    };
    format!("{what} not read here: {instead}")
}

/// The bytes without a byte order mark.
fn skip_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

fn first_object(mut reader: impl BufRead) -> io::Result<Option<String>> {
    let mut blank = 0_u64;
    loop {
        let head = reader.fill_buf()?;
        let space = head.len() - head.trim_ascii_start().len();
        match head.get(space) {
            Some(b'{') => break,
            Some(_) => return Ok(Some("the first row is not a JSON object".to_owned())),
            None if head.is_empty() && blank == 0 => return Ok(Some("the file is empty".to_owned())),
            None if head.is_empty() => return Ok(Some("the file has no rows".to_owned())),
            None => {
                blank += space as u64;
                reader.consume(space);
            }
        }
    }
    let mut rows = serde_json::Deserializer::from_reader(reader).into_iter::<IgnoredAny>();
    match rows.next() {
        Some(Err(error)) if error.is_io() => Err(error.into()),
        // The row is longer than was looked at.
        Some(Err(error)) if error.is_eof() && error.column() as u64 > LONGEST_LOOK / 2 => Ok(None),
        Some(Err(error)) => Ok(Some(format!("the first row is not JSON: {error}"))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[u8], format: Format) -> String {
        check(text, format).unwrap().unwrap_or_default()
    }

    #[test]
    fn a_first_row_that_parses_is_enough() {
        for good in [&b"{\"a\": 1}\n{broken"[..], b"\xef\xbb\xbf{}\n", b"\n \n{\"messages\": []}", b"{}"] {
            assert_eq!(words(good, Format::Jsonl), "");
        }
        assert_eq!(words(b" [{\"a\"", Format::Json), "");
        assert_eq!(words(b"text,image\n", Format::Csv), "");
        assert_eq!(words(b"PAR1...", Format::Parquet), "");
    }

    #[test]
    fn what_cannot_be_a_row_is_told() {
        assert_eq!(words(b"", Format::Jsonl), "the file is empty");
        assert_eq!(words(b"\n\n", Format::Jsonl), "the file has no rows");
        assert_eq!(words(b"hello", Format::Jsonl), "the first row is not a JSON object");
        assert_eq!(words(b"[1]", Format::Jsonl), "the first row is not a JSON object");
        assert!(words(b"{\"a\": }", Format::Jsonl).starts_with("the first row is not JSON: expected value"));
        assert!(words(b"{\"a\": 1", Format::Jsonl).contains("EOF"));
        assert_eq!(words(b"rows", Format::Parquet), "the file is not Parquet");
        assert_eq!(words(b"\0\0", Format::Csv), "the first line has no column names");
        for (head, format, begin) in [
            (&b"a\tb\n"[..], Format::Tsv, "TSV is not read here: save"),
            (b"PK\x03\x04", Format::Zip, "archives are not read here: upload the rows"),
            (b"\x1f\x8b...", Format::Bin, "compressed files are not read here"),
            (b"\x28\xb5\x2f\xfd", Format::Bin, "compressed files are not read here"),
            (b"\x89PNG", Format::Bin, "this format is not read here"),
        ] {
            assert!(words(head, format).starts_with(begin), "{}", words(head, format));
        }
    }

    #[test]
    fn a_row_longer_than_the_look_is_let_pass() {
        let row = io::repeat(b'x');
        assert_eq!(check(b"{\"image\": \"".chain(row), Format::Jsonl).unwrap(), None);
    }
}
