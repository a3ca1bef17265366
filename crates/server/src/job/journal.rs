//! What happened to a job, in order: the lines of its trainer and those of the server.
//!
//! Takes a job's folder and a [`Cursor`] into its two journals, and gives the entries after it, merged by their time.
//! Reading is a stream: a chunk of each file is in memory, however long the job trains. A line that is not JSON is
//! text that some library printed; it is kept as a note.

use super::{folder::JobFolder, names::Names};
use garden_train::events::{Event, Note, Record, Topic};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    str::FromStr,
};

/// What is read of a file at once. A longer line is dropped: no event comes near this.
const CHUNK: u64 = 256 << 10;

/// A line of the server's own journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HistoryLine {
    /// Seconds since 1970.
    pub time: f64,
    pub level: Level,
    /// What kind of change, for programs.
    pub kind: String,
    /// What happened, in a sentence.
    pub text: String,
}

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    /// By the server.
    History(HistoryLine),
    /// By the trainer.
    Trainer(Box<Record>),
}

/// One entry of a job's story.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Where to go on after it.
    pub after: Cursor,
    /// Its own place: which file, and where in it.
    pub place: Place,
    pub said: Said,
    /// The line as it stands in its file, with names for the server's paths.
    pub line: String,
}

impl Entry {
    pub(crate) fn time(&self) -> f64 {
        match &self.said {
            Said::History(line) => line.time,
            Said::Trainer(record) => record.time,
        }
    }
}

/// The place of a line, which is its name for ever: both files are only appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub of_trainer: bool,
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.of_trainer { 't' } else { 's' }, self.offset)
    }
}

/// How far both journals were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cursor {
    server: u64,
    trainer: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.server, self.trainer)
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (server, trainer) = text.split_once('-').ok_or(())?;
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self { server: number(server)?, trainer: number(trainer)? })
    }
}

/// Reads a job's story from some place on.
#[derive(Debug)]
pub(crate) struct Journal {
    cursor: Cursor,
    server: Lines,
    trainer: Lines,
}

impl Journal {
    pub(crate) fn new(folder: &JobFolder, cursor: Cursor) -> Self {
        let server = Lines::new(&folder.history(), cursor.server, Names::default());
        let trainer = Lines::new(&folder.events(), cursor.trainer, Names::of_job(folder));
        Self { cursor, server, trainer }
    }

    /// The next entry that is whole by now.
    pub(crate) fn next(&mut self) -> io::Result<Option<Entry>> {
        let server = self.server.peek(history)?.map(|(said, _)| time_of(said));
        let trainer = self.trainer.peek(trainer)?.map(|(said, _)| time_of(said));
        let of_trainer = match (server, trainer) {
            (None, None) => return Ok(None),
            (Some(_), None) => false,
            (None, Some(_)) => true,
            (Some(server), Some(trainer)) => trainer < server,
        };
        let lines = if of_trainer { &mut self.trainer } else { &mut self.server };
        let Some(Ready { offset, end, said, line }) = lines.ready.pop_front() else { return Ok(None) };
        let read = if of_trainer { &mut self.cursor.trainer } else { &mut self.cursor.server };
        *read = end;
        Ok(Some(Entry { after: self.cursor, place: Place { of_trainer, offset }, said, line }))
    }
}

fn time_of(said: &Said) -> f64 {
    match said {
        Said::History(line) => line.time,
        Said::Trainer(record) => record.time,
    }
}

fn history(line: &str, _before: f64) -> Option<Said> {
    serde_json::from_str(line).ok().map(Said::History)
}

/// A line of the trainer; one that is no event is a note of the moment before it.
fn trainer(line: &str, before: f64) -> Option<Said> {
    if line.trim().is_empty() {
        return None;
    }
    let record = serde_json::from_str(line).unwrap_or_else(|_| {
        let note = Note { topic: Topic::Logging, text: line.chars().take(2000).collect() };
        Record { version: 0, time: before, event: Event::Note(note) }
    });
    Some(Said::Trainer(Box::new(record)))
}

/// A line that waits to be taken.
#[derive(Debug)]
struct Ready {
    offset: u64,
    end: u64,
    said: Said,
    line: String,
}

/// The whole lines of a file that grows.
#[derive(Debug)]
struct Lines {
    path: std::path::PathBuf,
    /// Where to read next.
    offset: u64,
    ready: VecDeque<Ready>,
    /// The time of the line before.
    time: f64,
    /// What clients call the paths in it.
    names: Names,
}

impl Lines {
    fn new(path: &Path, offset: u64, names: Names) -> Self {
        Self { path: path.to_owned(), offset, ready: VecDeque::new(), time: 0.0, names }
    }

    fn peek(&mut self, parse: fn(&str, f64) -> Option<Said>) -> io::Result<Option<(&Said, u64)>> {
        while self.ready.is_empty() && self.fill(parse)? {}
        Ok(self.ready.front().map(|ready| (&ready.said, ready.end)))
    }

    /// Reads a chunk; false if there is no further whole line.
    fn fill(&mut self, parse: fn(&str, f64) -> Option<Said>) -> io::Result<bool> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset))?;
        file.take(CHUNK).read_to_end(&mut bytes)?;
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            // Not whole yet, or longer than any line may be: then it is dropped.
            let overlong = bytes.len() as u64 == CHUNK;
            self.offset += if overlong { CHUNK } else { 0 };
            return Ok(overlong);
        };
        let mut offset = self.offset;
        for line in bytes[..=end].split_inclusive(|byte| *byte == b'\n') {
            let line_end = offset + line.len() as u64;
            let text = String::from_utf8_lossy(line);
            let line = self.names.clean(text.trim_end_matches(['\n', '\r']));
            if let Some(said) = parse(&line, self.time) {
                self.time = time_of(&said);
                self.ready.push_back(Ready { offset, end: line_end, said, line });
            }
            offset = line_end;
        }
        self.offset = offset;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    fn folder() -> (tempfile::TempDir, JobFolder) {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(root.path());
        (root, folder)
    }

    fn history_line(time: f64, text: &str) -> String {
        let line = HistoryLine { time, level: Level::Info, kind: "queued".into(), text: text.into() };
        serde_json::to_string(&line).unwrap()
    }

    fn note(time: f64, text: &str) -> String {
        let note = Note { topic: Topic::Memory, text: text.into() };
        Record { time, ..Record::now(Event::Note(note)) }.to_json()
    }

    fn texts(journal: &mut Journal) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(entry) = journal.next().unwrap() {
            texts.push(match entry.said {
                Said::History(line) => line.text,
                Said::Trainer(record) => match record.event {
                    Event::Note(note) => note.text,
                    other => format!("{other:?}"),
                },
            });
        }
        texts
    }

    #[test]
    fn both_journals_are_merged_by_time_and_half_lines_wait() {
        let (_root, folder) = folder();
        folder.append_history(&history_line(1.0, "one")).unwrap();
        folder.append_history(&history_line(4.0, "four")).unwrap();
        let half = note(5.0, "five");
        fs::write(folder.events(), format!("{}\nstray text\n{}", note(2.0, "two"), &half[..9])).unwrap();
        let mut journal = Journal::new(&folder, Cursor::default());
        assert_eq!(texts(&mut journal), ["one", "two", "stray text", "four"]);
        let cursor: Cursor = journal.cursor.to_string().parse().unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(folder.events()).unwrap();
        file.write_all(format!("{}\n", &half[9..]).as_bytes()).unwrap();
        assert_eq!(texts(&mut journal), ["five"]);
        assert_eq!(
            texts(&mut Journal::new(&folder, cursor)),
            ["five"],
            "a reader goes on where another left off"
        );
    }

    #[test]
    fn the_trainer_speaks_of_files_by_their_names() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(root.path().join("jobs/ftjob-a"));
        fs::create_dir_all(folder.path()).unwrap();
        let auto = serde_json::json!("auto");
        let record = serde_json::json!({
            "id": "ftjob-a", "number": 1, "created_at": 1,
            "model": "tiny", "base": "tiny", "training_file": "file-a",
            "hyperparameters": {"batch_size": auto, "learning_rate_multiplier": auto, "n_epochs": auto},
            "seed": 1, "metadata": {}, "settings": {}, "max_restarts": 0,
        });
        fs::write(folder.path().join("job.json"), record.to_string()).unwrap();
        let blob = root.path().join("blobs/aa/rows.jsonl");
        fs::write(folder.settings(), serde_json::json!({"dataset": blob}).to_string()).unwrap();
        let said = format!("{}, row 3: bad; see {}", blob.display(), folder.output().display());
        fs::write(folder.events(), format!("{}\n", note(2.0, &said))).unwrap();
        let found = texts(&mut Journal::new(&folder, Cursor::default()));
        assert_eq!(found, ["file-a, row 3: bad; see jobs/ftjob-a/output"]);
    }

    #[test]
    fn a_line_without_end_is_passed_over_in_bounded_memory() {
        let (_root, folder) = folder();
        let long = "x".repeat(3 * CHUNK as usize);
        fs::write(folder.events(), format!("{long}\n{}\n", note(2.0, "two"))).unwrap();
        let found = texts(&mut Journal::new(&folder, Cursor::default()));
        assert_eq!(found.last().map(String::as_str), Some("two"));
        assert!(found.iter().all(|text| text.len() <= 2000));
    }
}
