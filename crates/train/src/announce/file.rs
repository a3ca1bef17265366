//! `events.jsonl`: the journal of a run.
//!
//! Appends every event except the progress of work as one line, and writes it at once. Events from before the
//! first step wait until the run begins to write, so a refused run leaves nothing behind. Each process that
//! works on the run appends to the same file. What a killed process did after its last checkpoint stays in
//! the file, and is done again after the next `started`.

use crate::event::{EVENTS, Event, Record};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// The journal of a run.
pub(super) struct EventFile {
    state: State,
}

enum State {
    Waiting(Vec<Record>),
    Open(PathBuf, File),
    Lost,
}

impl EventFile {
    /// A journal that waits for the run to begin.
    pub fn waiting() -> Self {
        Self { state: State::Waiting(Vec::new()) }
    }

    /// Opens the journal in a folder and writes what waits. An error is one sentence, and is given once.
    pub fn begin(&mut self, folder: &Path) -> Result<(), String> {
        let State::Waiting(records) = std::mem::replace(&mut self.state, State::Lost) else { return Ok(()) };
        let path = folder.join(EVENTS);
        let open = open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        self.state = State::Open(path, open);
        records.iter().try_for_each(|record| self.write(record))
    }

    /// Adds an event.
    pub fn add(&mut self, event: &Event) -> Result<(), String> {
        if matches!(event, Event::Progress(_)) {
            return Ok(());
        }
        match &mut self.state {
            State::Waiting(records) => records.push(Record::now(event.clone())),
            State::Open(..) => self.write(&Record::now(event.clone()))?,
            State::Lost => {}
        }
        Ok(())
    }

    fn write(&mut self, record: &Record) -> Result<(), String> {
        let State::Open(path, file) = &mut self.state else { return Ok(()) };
        let written = file.write_all(format!("{}\n", record.to_json()).as_bytes());
        let failed = written.map_err(|error| format!("{} ends here: {error}", path.display()));
        if failed.is_err() {
            self.state = State::Lost;
        }
        failed
    }
}

/// Opens the file for appending. Ends a line that a killed process left unfinished.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Note, Topic};

    fn note(text: &str) -> Event {
        Event::Note(Note { topic: Topic::Memory, text: text.to_owned() })
    }

    #[test]
    fn events_wait_for_the_beginning_and_a_torn_line_does_not_swallow_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        let mut file = EventFile::waiting();
        file.add(&note("before")).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "{\"version\":2,\"ti").unwrap();
        file.begin(folder.path()).unwrap();
        file.add(&note("after")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let read = |line: &str| serde_json::from_str::<Record>(line).map(|record| record.event).ok();
        let events: Vec<_> = text.lines().map(read).collect();
        assert_eq!(events, [None, Some(note("before")), Some(note("after"))]);
    }

    #[test]
    fn a_folder_that_is_gone_is_told_once() {
        let mut file = EventFile::waiting();
        let error = file.begin(Path::new("/nonexistent")).unwrap_err();
        assert!(error.contains("events.jsonl"), "{error}");
        assert_eq!(file.add(&note("after")), Ok(()));
    }
}
