//! The terminal's side of a run: what is drawn, and what Ctrl-C does.
//!
//! Takes the events of a run and draws them. Listens to signals from the first step until the run is over.
//! Before the first step a signal ends the process at once, because nothing can be lost.

use super::{
    interrupts::Interrupts,
    screen::{Lines, Screen},
};
use anyhow::Result;
use garden_train::{
    Cancel, Observer,
    events::{CheckpointPlace, End, EndReason, Event},
};
use std::path::PathBuf;

/// Draws a run and turns signals into a request to end it.
pub struct Terminal {
    lines: Lines,
    screen: Screen,
    cancel: Cancel,
    checkpoint: Option<PathBuf>,
    interrupts: Option<Interrupts>,
    failed: Option<Box<End>>,
}

/// Runs `work` with the terminal as its observer. Gives its result, and the last event of a run that failed.
///
/// Large blocks of memory go back to the system during the run and after it: what comes and goes, such as a
/// checkpoint's buffers or an image, must not raise the level.
pub fn supervised<T>(
    lines: Lines,
    work: impl FnOnce(&mut Terminal, &Cancel) -> Result<T>,
) -> (Result<T>, Option<Box<End>>) {
    garden_train::return_large_pieces();
    let cancel = Cancel::default();
    let screen = Screen::new(lines.clone());
    let mut terminal =
        Terminal { lines, screen, cancel: cancel.clone(), checkpoint: None, interrupts: None, failed: None };
    let result = work(&mut terminal, &cancel);
    (result, terminal.failed)
}

impl Observer for Terminal {
    fn on_event(&mut self, event: &Event) {
        self.screen.show(event);
        match event {
            Event::Resumed(CheckpointPlace { path, .. }) => self.checkpoint = Some(path.clone()),
            Event::Started(_) => self.listen(),
            Event::Checkpoint(CheckpointPlace { path, .. }) => {
                if let Some(interrupts) = &self.interrupts {
                    interrupts.saved(path);
                }
            }
            // The results are written: a signal may end the process again.
            Event::End(end) => {
                self.interrupts = None;
                self.failed = Some(end.clone()).filter(|end| end.reason == EndReason::Failed);
            }
            _ => {}
        }
    }
}

impl Terminal {
    fn listen(&mut self) {
        match Interrupts::listen(&self.lines, &self.cancel, self.checkpoint.as_deref()) {
            Ok(interrupts) => self.interrupts = Some(interrupts),
            Err(error) => self.lines.text(&format!("Ctrl-C will end the run without a checkpoint: {error}")),
        }
    }
}
