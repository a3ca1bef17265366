//! How the parts of a run reach its observer.
//!
//! Takes events, notes and the progress of work from every part, on any thread, and passes them on in order:
//! to the observer, and to `events.jsonl` once the run has begun to train. A run goes on if that file cannot
//! be written.

mod file;
mod teller;

pub(crate) use teller::{StepsOfRun, Teller};

use crate::event::{Event, Note, Observer, Progress, ProgressUnit, Topic};
use file::EventFile;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The run's side of its observer.
pub(crate) struct Announcer<'a> {
    inner: Mutex<Inner<'a>>,
}

struct Inner<'a> {
    observer: &'a mut dyn Observer,
    file: EventFile,
    work: Option<Work>,
    last: LastSeen,
}

/// How far a run came, by its events.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastSeen {
    pub step: u64,
    pub checkpoint: Option<PathBuf>,
    pub best_step: Option<u64>,
}

/// Work in progress.
struct Work {
    state: Progress,
    told_at: Instant,
}

/// The shortest time between two announcements of work: a bar looks smooth, and a log stays short.
const SELDOM: Duration = Duration::from_millis(100);

impl<'a> Announcer<'a> {
    pub fn new(observer: &'a mut dyn Observer) -> Self {
        Self {
            inner: Mutex::new(Inner {
                observer,
                file: EventFile::waiting(),
                work: None,
                last: LastSeen::default(),
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<'a>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes an event on.
    pub fn tell(&self, event: Event) {
        self.inner().tell(event);
    }

    /// How far the run came.
    pub fn last(&self) -> LastSeen {
        self.inner().last.clone()
    }

    /// Passes a note on.
    pub fn note(&self, topic: Topic, text: impl Into<String>) {
        self.tell(Event::Note(Note { topic, text: text.into() }));
    }

    /// Writes events to the folder's file from now on, starting with those that waited.
    pub fn begin_file(&self, folder: &Path) {
        let mut inner = self.inner();
        let began = inner.file.begin(folder);
        inner.wrote(began);
    }

    /// Begins to load the model.
    pub fn loading(&self) -> Loading<'_, 'a> {
        self.inner().begin("Loading the model", ProgressUnit::Thousandths, 1000);
        Loading { announcer: self }
    }
}

/// Announces the loading of a model until it is dropped.
pub(crate) struct Loading<'b, 'a> {
    announcer: &'b Announcer<'a>,
}

impl Loading<'_, '_> {
    /// Announces the share that is loaded, from 0 to 1.
    pub fn advance_to(&self, share: f32) {
        let done = (1000.0 * share.clamp(0.0, 1.0)) as u64;
        self.announcer.inner().advance(|state| state.done = done);
    }
}

impl Drop for Loading<'_, '_> {
    fn drop(&mut self) {
        // A panic of the observer is on its way: a second one would abort the process.
        if !std::thread::panicking() {
            self.announcer.inner().end();
        }
    }
}

impl Inner<'_> {
    fn tell(&mut self, event: Event) {
        match &event {
            Event::Step(step) => self.last.step = step.step,
            Event::Resumed(place) | Event::Checkpoint(place) => {
                (self.last.step, self.last.checkpoint) = (place.step, Some(place.path.clone()));
            }
            Event::Evaluation(evaluation) if evaluation.improved => {
                self.last.best_step = Some(evaluation.step);
            }
            _ => {}
        }
        let written = self.file.add(&event);
        self.observer.on_event(&event);
        self.wrote(written);
    }

    fn wrote(&mut self, written: Result<(), String>) {
        if let Err(text) = written {
            self.observer.on_event(&Event::Note(Note { topic: Topic::Logging, text }));
        }
    }

    fn begin(&mut self, what: &str, unit: ProgressUnit, total: u64) {
        let state = Progress { what: what.to_owned(), unit, done: 0, total, ended: false };
        self.tell(Event::Progress(state.clone()));
        self.work = Some(Work { state, told_at: Instant::now() });
    }

    fn advance(&mut self, advance: impl FnOnce(&mut Progress)) {
        let Some(work) = &mut self.work else { return };
        advance(&mut work.state);
        if work.told_at.elapsed() >= SELDOM {
            work.told_at = Instant::now();
            let event = Event::Progress(work.state.clone());
            self.tell(event);
        }
    }

    fn end(&mut self) {
        if let Some(work) = self.work.take() {
            self.tell(Event::Progress(Progress { ended: true, ..work.state }));
        }
    }
}

impl garden_data::Progress for Announcer<'_> {
    fn begin(&self, what: &str, unit: garden_data::ProgressUnit, total: u64) {
        let unit = match unit {
            garden_data::ProgressUnit::Bytes => ProgressUnit::Bytes,
            garden_data::ProgressUnit::Rows => ProgressUnit::Rows,
        };
        self.inner().begin(what, unit, total);
    }

    fn advance(&self, by: u64) {
        self.inner().advance(|state| state.done += by);
    }

    fn end(&self) {
        self.inner().end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_data::Progress as _;

    #[test]
    fn work_is_told_at_its_beginning_and_end_and_seldom_between() {
        let mut heard = Vec::new();
        let mut observer = |event: &Event| {
            if let Event::Progress(progress) = event {
                heard.push((progress.done, progress.ended));
            }
        };
        let announcer = Announcer::new(&mut observer);
        announcer.begin("reading", garden_data::ProgressUnit::Rows, 100_000);
        (0..100_000).for_each(|_| announcer.advance(1));
        announcer.end();
        announcer.end();
        assert!(
            heard.len() <= 102,
            "a hundred times at most, and these are over in a moment: {}",
            heard.len()
        );
        assert_eq!([heard[0], heard[heard.len() - 1]], [(0, false), (100_000, true)]);
        assert_eq!(heard.iter().filter(|(_, ended)| *ended).count(), 1);
    }
}
