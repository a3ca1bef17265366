//! The answers in a job's folder: a line a row, and a line an answer.
//!
//! Lines are only ever added, each in one write. A last line that was cut off by a crash is passed over.

use crate::job::folder::JobFolder;
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    path::PathBuf,
};
use utoipa::ToSchema;

/// The most of the file that is read: a few rows with small images, and their answers.
const LARGEST: u64 = 32 << 20;

/// A row that is asked, with the answers so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = HeldOutAnswers)]
pub(super) struct AnswersRow {
    /// Its number in its dataset, from 1.
    pub row: u64,
    pub question: String,
    /// The right answer.
    pub right: String,
    /// Small images, as data URIs.
    pub images: Vec<String>,
    /// In the order of the steps.
    #[serde(default)]
    pub answers: Vec<Said>,
}

/// What one model said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = HeldOutAnswer)]
pub(super) struct Said {
    /// Steps of the checkpoint; 0 is the base model.
    pub step: u64,
    pub text: String,
    pub seconds: f64,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Row(AnswersRow),
    Answer { row: u64, said: Said },
}

/// All that was kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub rows: Vec<AnswersRow>,
}

fn path(folder: &JobFolder) -> PathBuf {
    folder.path().join("answers.jsonl")
}

impl Kept {
    /// The answers of a job; none where nobody asked.
    pub(super) fn read(folder: &JobFolder) -> io::Result<Self> {
        let mut kept = Self::default();
        let file = match File::open(path(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(kept),
            file => file?,
        };
        for line in BufReader::new(file.take(LARGEST)).lines() {
            match serde_json::from_str(&line?) {
                Ok(Line::Row(row)) => kept.rows.push(row),
                Ok(Line::Answer { row, said }) => kept.put(row, said),
                Err(_) => {}
            }
        }
        Ok(kept)
    }

    fn put(&mut self, row: u64, said: Said) {
        let Some(row) = self.rows.iter_mut().find(|known| known.row == row) else { return };
        row.answers.push(said);
        row.answers.sort_by_key(|said| said.step);
    }

    /// Whether a checkpoint has answered a row.
    pub(super) fn has(&self, row: u64, step: u64) -> bool {
        let known = self.rows.iter().find(|known| known.row == row);
        known.is_some_and(|known| known.answers.iter().any(|said| said.step == step))
    }

    /// Adds a line.
    pub(super) fn add(folder: &JobFolder, line: &Line) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(path(folder))?;
        file.write_all(format!("{}\n", serde_json::to_string(line)?).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_stand_in_the_order_of_their_steps_and_a_cut_line_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(home.path());
        assert!(Kept::read(&folder).unwrap().rows.is_empty());
        let row =
            AnswersRow { row: 7, question: "?".into(), right: "red".into(), images: vec![], answers: vec![] };
        Kept::add(&folder, &Line::Row(row)).unwrap();
        for (step, text) in [(20, "red"), (0, "blue")] {
            let said = Said { step, text: text.into(), seconds: 0.1 };
            Kept::add(&folder, &Line::Answer { row: 7, said }).unwrap();
        }
        OpenOptions::new()
            .append(true)
            .open(path(&folder))
            .unwrap()
            .write_all(b"{\"answer\": {\"ro")
            .unwrap();
        let kept = Kept::read(&folder).unwrap();
        let texts: Vec<&str> = kept.rows[0].answers.iter().map(|said| said.text.as_str()).collect();
        assert_eq!(texts, ["blue", "red"]);
        assert!(kept.has(7, 20) && !kept.has(7, 40) && !kept.has(8, 20));
    }
}
