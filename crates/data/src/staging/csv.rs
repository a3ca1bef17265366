//! CSV to JSON Lines: the first record names the fields, each further one is a row of texts.
//!
//! Reads as spreadsheets and `datasets` write: fields between commas, quoted where they hold commas, quotes
//! (doubled) or line ends. A field that is empty is absent from its row.

use super::Failure;
use std::{
    collections::HashSet,
    io::{self, BufRead, BufReader, Read, Write},
};

/// The longest record that is read.
const LONGEST: usize = crate::dataset::MAX_ROW_BYTES as usize;

/// Writes each record as a line.
pub(super) fn to_lines(from: impl Read, to: &mut impl Write) -> Result<(), Failure> {
    let mut records = Records { from: BufReader::with_capacity(256 << 10, from), number: 0 };
    let read = |message: String| Failure::Read(io::Error::other(message));
    let Some(mut names) = records.next()? else {
        return Err(read("it is empty: no line names the columns".into()));
    };
    if let Some(first) = names.first_mut() {
        *first = first.trim_start_matches('\u{feff}').to_owned();
    }
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(read(format!("the column '{twice}' is there twice")));
    }
    while let Some(fields) = records.next()? {
        if fields.len() != names.len() {
            let (number, found, wanted) = (records.number - 1, fields.len(), names.len());
            let fields = if found == 1 { "field" } else { "fields" };
            return Err(read(format!("row {number} has {found} {fields}, the first line names {wanted}")));
        }
        let mut between = "{";
        for (name, field) in names.iter().zip(&fields).filter(|(_, field)| !field.is_empty()) {
            let text = |text: &str| serde_json::to_string(text).map_err(|error| Failure::Write(error.into()));
            write!(to, "{between}{}: {}", text(name)?, text(field)?).map_err(Failure::Write)?;
            between = ", ";
        }
        let end = if between == "{" { "{}\n" } else { "}\n" };
        to.write_all(end.as_bytes()).map_err(Failure::Write)?;
    }
    Ok(())
}

struct Records<R> {
    from: BufReader<R>,
    /// Of the record that was read last, from 1; the line of names is the first.
    number: u64,
}

impl<R: Read> Records<R> {
    /// The fields of the next record; blank lines are skipped.
    fn next(&mut self) -> Result<Option<Vec<String>>, Failure> {
        loop {
            let record = self.record()?;
            if record.is_empty() {
                return Ok(None);
            }
            let text = std::str::from_utf8(&record).map_err(|error| {
                self.wrong(&format!(
                    "is not UTF-8 (byte {}): save the file as UTF-8",
                    error.valid_up_to() + 1
                ))
            })?;
            let text = text.trim_end_matches(['\r', '\n']);
            if !text.is_empty() {
                self.number += 1;
                return Ok(Some(fields(text)));
            }
        }
    }

    /// The bytes of the next record, with its line end; none at the end of the file.
    fn record(&mut self) -> Result<Vec<u8>, Failure> {
        let (mut record, mut open) = (Vec::new(), false);
        loop {
            let start = record.len();
            let limit = (LONGEST - start) as u64 + 1;
            let line = self.from.by_ref().take(limit).read_until(b'\n', &mut record);
            let read = line.map_err(Failure::Read)?;
            // A line that ends inside quotes goes on: its quotes are odd in number.
            open ^= record[start..].iter().filter(|byte| **byte == b'"').count() % 2 == 1;
            let message = match (read, open) {
                (0, true) => "ends inside quotes",
                _ if record.len() > LONGEST => "is too long",
                (_, false) => return Ok(record),
                _ => continue,
            };
            return Err(self.wrong(message));
        }
    }

    /// An error about the record that comes next.
    fn wrong(&self, what: &str) -> Failure {
        let which = match self.number {
            0 => "the line of names".to_owned(),
            number => format!("row {number}"),
        };
        Failure::Read(io::Error::other(format!("{which} {what}")))
    }
}

fn fields(record: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut quoted, mut characters) = (false, record.chars().peekable());
    while let Some(c) = characters.next() {
        let Some(field) = fields.last_mut() else { break };
        match c {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => field.push(c),
        }
    }
    fields
}
