//! CSV to JSON Lines: the first record names the fields, each further one is a row of texts.
//!
//! Reads as spreadsheets and `datasets` write: fields between commas, quoted where they hold commas, quotes (doubled) or
//! line ends. A field that is empty is absent from its row.

use super::Failure;
use std::io::{self, BufRead, BufReader, Read, Write};

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
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return Err(read(format!("the column '{}' is there twice", twice.1)));
    }
    while let Some(fields) = records.next()? {
        if fields.len() != names.len() {
            let (number, found, wanted) = (records.number - 1, fields.len(), names.len());
            return Err(read(format!("row {number} has {found} fields, the first line names {wanted}")));
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
    /// The fields of the next record; blank lines are none.
    fn next(&mut self) -> Result<Option<Vec<String>>, Failure> {
        let mut record = Vec::new();
        loop {
            record.clear();
            // A line that ends inside quotes goes on: its quotes are odd in number.
            loop {
                let limit = (LONGEST - record.len()) as u64 + 1;
                let line = self.from.by_ref().take(limit).read_until(b'\n', &mut record);
                let read = line.map_err(Failure::Read)?;
                let open = record.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
                let message = match (read, open) {
                    (0, true) => "ends inside quotes",
                    _ if record.len() > LONGEST => "is too long",
                    (0, false) | (_, false) => break,
                    _ => continue,
                };
                return Err(self.wrong(message));
            }
            if record.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            let text = std::str::from_utf8(&record).map_err(|_| self.wrong("is not UTF-8"))?;
            let text = text.trim_end_matches(['\r', '\n']);
            if !text.is_empty() {
                return Ok(Some(fields(text)));
            }
            self.number -= 1;
        }
    }

    fn wrong(&self, what: &str) -> Failure {
        // The line of names is not a row.
        Failure::Read(io::Error::other(format!("row {} {what}", self.number)))
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
