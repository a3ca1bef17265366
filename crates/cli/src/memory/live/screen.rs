//! The live screen: the curve with its phases, the verdict of this moment, the tree with a row per process.
//!
//! Draws a frame per reading, key or resize. Restores the terminal at the end, even when the program panics.
//! Everything it keeps is bounded.

use super::{
    Place,
    history::{History, Point},
    keys::Keys,
    panels::{self, Shown},
    scroll::Scroll,
    tail::OutputTail,
};
use garden_memory::{Reading, Wake};
use ratatui::{
    DefaultTerminal,
    crossterm::{
        execute,
        terminal::{EnterAlternateScreen, enable_raw_mode},
    },
};
use std::{
    io::{self, Write},
    mem::ManuallyDrop,
    sync::{Arc, Mutex, PoisonError, mpsc::Sender},
};

/// Notes kept; the newest shows.
const MOST_NOTES: usize = 20;
/// Lines of the command's output that are left on the terminal when the screen closes, so that an error is
/// seen.
const LEFT_LINES: usize = 40;

/// The screen and what it remembers.
pub struct Screen {
    /// Never dropped: that would print to a terminal that has gone, and panic. The terminal is given back in
    /// `close`.
    terminal: ManuallyDrop<DefaultTerminal>,
    place: Place,
    history: History,
    last: Option<Reading>,
    notes: Vec<String>,
    output: Arc<Mutex<OutputTail>>,
    keys: Keys,
    scroll: Arc<Mutex<Scroll>>,
}

impl Screen {
    /// Takes the terminal over.
    pub fn open(place: Place, wakes: Sender<Wake>) -> io::Result<Self> {
        let terminal = ManuallyDrop::new(ratatui::try_init()?);
        let scroll = Arc::<Mutex<Scroll>>::default();
        let keys =
            Keys::read(place, Arc::clone(&scroll), wakes).inspect_err(|_| drop(ratatui::try_restore()))?;
        Ok(Self {
            terminal,
            place,
            history: History::default(),
            last: None,
            notes: Vec::new(),
            output: Arc::default(),
            keys,
            scroll,
        })
    }

    /// What a command prints goes here.
    pub fn output(&self) -> Arc<Mutex<OutputTail>> {
        Arc::clone(&self.output)
    }

    /// Shows a sentence until the next one.
    pub fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
        if self.notes.len() > MOST_NOTES {
            self.notes.remove(0);
        }
    }

    /// Takes a reading in and draws.
    pub fn reading(&mut self, reading: &Reading) -> io::Result<()> {
        let sample = &reading.snapshot.sample;
        let (owned, file) = (sample.owned() as f64, sample.file as f64);
        self.history.push(Point { t: sample.t, step: sample.step, owned, file }, sample.epoch);
        self.last = Some(reading.clone());
        self.redraw()
    }

    /// Draws what is known.
    pub fn redraw(&mut self) -> io::Result<()> {
        let Self { terminal, history, last, notes, output, scroll, place, .. } = self;
        let Some(reading) = last else { return Ok(()) };
        let printed = (*place == Place::Run).then(|| {
            output.lock().unwrap_or_else(PoisonError::into_inner).last(usize::from(panels::OUTPUT_LINES))
        });
        let note = notes.last().map(String::as_str);
        let shown = Shown { reading, history, printed: printed.as_deref(), note };
        let mut scroll = scroll.lock().unwrap_or_else(PoisonError::into_inner);
        terminal.draw(|frame| panels::draw(frame, &shown, &mut scroll))?;
        Ok(())
    }

    /// Gives the terminal back and leaves the last output and notes on it.
    pub fn close(mut self, writer: &mut dyn Write) {
        self.give_back();
        let lines = self.output.lock().unwrap_or_else(PoisonError::into_inner).last(LEFT_LINES);
        for line in lines.iter().chain(&self.notes) {
            let _ = writeln!(writer, "{line}");
        }
    }

    /// Leaves the terminal to the shell while we are stopped.
    pub fn suspend(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }

    /// Takes the terminal again and draws.
    pub fn resume(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // Not `clear`, which asks the terminal where its cursor is: one that has gone never answers, and the
        // kernel continues us just when it goes (SIGCONT follows SIGHUP).
        let area = self.terminal.size()?.into();
        self.terminal.resize(area)?;
        self.redraw()
    }

    fn give_back(&mut self) {
        if self.keys.close() {
            self.suspend();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// `1:02:03`, `2:03` or `3 s`: the clock time of a number of seconds.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, _) if seconds < 10.0 => format!("{:.1} s", seconds.max(0.0)),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn clocks_read_well() {
        assert_eq!([0.5, 12.0, 75.0, 3723.0, -1.0].map(clock), ["0.5 s", "12 s", "1:15", "1:02:03", "0.0 s"]);
    }
}
