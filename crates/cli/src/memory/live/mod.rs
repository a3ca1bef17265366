//! What a person or a program sees while memory is watched: lines, JSON, or a screen.
//!
//! Takes readings and events and writes to standard output (`watch`) or standard error (`run`, whose standard
//! output belongs to the command). A verdict is shown once it has held; the summary at the end names the last
//! one. A failure to write never ends a command.

mod history;
mod keys;
mod lines;
mod panels;
mod screen;
mod scroll;
mod summary;
mod tail;

use super::options::Format;
use crate::advice::memory::name_flags;
use anyhow::{Result, bail};
use garden_memory::{
    Assessment, Event, Moment, Observer, Reading, Settled, Verdict, Wake, WhoReport, supervise::Passage,
};
use lines::{JsonLines, TextLines};
use screen::Screen;
use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc::Sender,
    time::Duration,
};

/// Which command is watching.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `memory watch`: standard output is ours.
    Watch,
    /// `memory run`: standard output is the command's.
    Run,
}

impl Place {
    fn writer(self) -> Box<dyn Write> {
        match self {
            Self::Watch => Box::new(io::stdout()),
            Self::Run => Box::new(io::stderr()),
        }
    }
}

enum Form {
    Text(TextLines),
    Json(JsonLines),
    Screen(Box<Screen>),
}

/// What the summary is about.
#[derive(Default)]
pub struct Seen {
    /// The last reading.
    last: Option<Reading>,
    /// How much each process held when the limit was acted upon.
    at_limit: Option<Moment>,
    /// Who holds what the command grew by, if that was asked.
    who: Option<WhoReport>,
}

impl Seen {
    /// Who holds the growth, if there is growth to explain.
    fn holders(&self) -> Option<&WhoReport> {
        let verdict = self.last.as_ref().map(|reading| reading.assessment.verdict);
        let grows = !matches!(verdict, Some(Verdict::Steady | Verdict::WarmUp));
        self.who.as_ref().filter(|_| grows)
    }
}

/// How a watch or a run ended.
pub struct Ending<'a> {
    /// In words; `None` after an error.
    pub how: Option<&'a str>,
    /// After this long.
    pub after: Duration,
}

/// One of the three forms, and what was seen for the summary.
pub struct View {
    form: Form,
    place: Place,
    seen: Seen,
    settled: Settled,
    wakes: Sender<Wake>,
    /// Whether it was reported that our output cannot be written.
    told: bool,
}

impl View {
    /// Opens the form that was asked for; a screen sends its keys to `wakes`.
    pub fn open(format: Format, place: Place, wakes: Sender<Wake>) -> Result<Self> {
        let form = match format {
            Format::Tui if !io::stdout().is_terminal() => {
                bail!("--format tui needs a terminal; use text or json")
            }
            Format::Tui => Form::Screen(Box::new(Screen::open(place, wakes.clone())?)),
            Format::Text => Form::Text(TextLines::new(place)),
            Format::Json => Form::Json(JsonLines::new(place)),
        };
        Ok(Self { form, place, seen: Seen::default(), settled: Settled::default(), wakes, told: false })
    }

    /// Where a command's output goes in this form.
    pub fn passage(&self) -> Passage {
        match &self.form {
            Form::Screen(screen) => Passage::Shown(screen.output()),
            _ => Passage::Through,
        }
    }

    /// Says something once.
    pub fn note(&mut self, note: &str) {
        let written = match &mut self.form {
            Form::Text(lines) => lines.note(note),
            Form::Json(lines) => lines.note(note),
            Form::Screen(screen) => {
                screen.note(note);
                Ok(())
            }
        };
        self.answer(written);
    }

    /// The last assessment, if there was a reading.
    pub fn assessment(&self) -> Option<&Assessment> {
        self.seen.last.as_ref().map(|reading| &reading.assessment)
    }

    /// Ends with the summary.
    pub fn close(self, ending: &Ending<'_>) {
        let Self { form, place, seen, .. } = self;
        let mut writer = place.writer();
        // Nobody is left to hear that the summary could not be written.
        let _ = match form {
            Form::Json(_) => lines::write_json_summary(&mut writer, ending, &seen),
            Form::Text(_) => summary::write(&mut writer, ending, &seen),
            Form::Screen(screen) => {
                screen.close(&mut writer);
                summary::write(&mut writer, ending, &seen)
            }
        };
    }

    /// A watch ends when nobody reads its output any more. It goes on when a disk is full, and a command is
    /// never ended.
    fn answer(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        if self.place == Place::Run {
            return;
        }
        let is_gone = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
        if is_gone || error.kind() == io::ErrorKind::BrokenPipe {
            let _ = self.wakes.send(Wake::Quit);
        } else if !std::mem::replace(&mut self.told, true) {
            let _ = writeln!(
                io::stderr(),
                "model-garden: standard output cannot be written ({error}); the watch goes on"
            );
        }
    }
}

impl Observer for View {
    fn reading(&mut self, reading: &Reading) {
        let mut reading = reading.clone();
        name_flags(&mut reading.assessment);
        let settled = self.settled.show(reading.snapshot.sample.t, &reading.assessment);
        let shown = Reading { assessment: settled.clone(), ..reading.clone() };
        let written = match &mut self.form {
            Form::Text(lines) => lines.reading(&shown),
            Form::Json(lines) => lines.reading(&shown),
            Form::Screen(screen) => screen.reading(&shown),
        };
        self.answer(written);
        self.seen.last = Some(reading);
    }

    fn event(&mut self, event: &Event) {
        if let Event::Stopping { held, .. } | Event::LimitNear { held, .. } = event {
            self.seen.at_limit = Some(held.clone());
        }
        let written = match &mut self.form {
            Form::Text(lines) => lines.event(event),
            Form::Json(lines) => lines.event(event),
            Form::Screen(screen) => {
                if event.matters() {
                    screen.note(&event.to_string());
                }
                Ok(())
            }
        };
        self.answer(written);
    }

    fn holders(&mut self, report: &WhoReport) {
        self.seen.who = Some(report.clone());
    }

    fn redraw(&mut self) {
        if let Form::Screen(screen) = &mut self.form {
            let drawn = screen.redraw();
            self.answer(drawn);
        }
    }

    fn suspend(&mut self) {
        if let Form::Screen(screen) = &mut self.form {
            screen.suspend();
        }
    }

    fn resume(&mut self) {
        if let Form::Screen(screen) = &mut self.form {
            let drawn = screen.resume();
            self.answer(drawn);
        }
    }
}
