//! What a person or a program sees while memory is watched: lines, JSON, or a screen.
//!
//! In come readings and events; out go bytes to standard output (`watch`) or standard error (`run`, whose standard
//! output belongs to the command). Whatever the form, the last word is a summary.

mod history;
mod lines;
mod panels;
mod screen;
mod summary;
mod tail;

use super::options::Format;
use anyhow::{Result, bail};
use garden_memory::{
    record::Reading,
    supervise::{Event, Passage},
    watch::{Observer, Wake},
};
use lines::{JsonLines, TextLines};
use screen::Screen;
use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc::Sender,
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

/// One of the three forms, and the last reading for the summary.
pub struct View {
    form: Form,
    place: Place,
    last: Option<Reading>,
    wakes: Sender<Wake>,
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
        Ok(Self { form, place, last: None, wakes })
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
        self.stop_if_unseen(written);
    }

    /// Ends with the summary; `how` says what ended it.
    pub fn close(self, how: Option<&str>) {
        let Self { form, place, last, .. } = self;
        let mut writer = place.writer();
        // Nobody is left to be told of a failure to write the last words.
        let _ = match form {
            Form::Json(_) => lines::write_json_summary(&mut writer, how, last.as_ref()),
            Form::Text(_) => summary::write(&mut writer, how, last.as_ref()),
            Form::Screen(screen) => {
                screen.close(&mut writer);
                summary::write(&mut writer, how, last.as_ref())
            }
        };
    }

    /// A watch whose output nobody reads any more ends; a command goes on.
    fn stop_if_unseen(&self, written: io::Result<()>) {
        if written.is_err() && self.place == Place::Watch {
            let _ = self.wakes.send(Wake::Quit);
        }
    }
}

impl Observer for View {
    fn reading(&mut self, reading: &Reading) {
        let written = match &mut self.form {
            Form::Text(lines) => lines.reading(reading),
            Form::Json(lines) => lines.reading(reading),
            Form::Screen(screen) => screen.reading(reading),
        };
        self.stop_if_unseen(written);
        self.last = Some(reading.clone());
    }

    fn event(&mut self, event: &Event) {
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
        self.stop_if_unseen(written);
    }

    fn redraw(&mut self) {
        if let Form::Screen(screen) = &mut self.form {
            let drawn = screen.redraw();
            self.stop_if_unseen(drawn);
        }
    }
}
