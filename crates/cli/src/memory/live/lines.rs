//! Readings as lines of text, or of JSON.

use super::{Ending, Place, Seen};
use garden_memory::{ByteSize, Event, Reading};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

/// A line per reading for `watch`; for `run` only what matters, since the terminal is the command's.
pub struct TextLines {
    writer: Box<dyn Write>,
    place: Place,
    header_written: bool,
}

impl TextLines {
    pub fn new(place: Place) -> Self {
        Self { writer: place.writer(), place, header_written: false }
    }

    pub fn note(&mut self, note: &str) -> io::Result<()> {
        writeln!(self.writer, "model-garden: {note}")
    }

    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        if event.matters() { self.note(&event.to_string()) } else { Ok(()) }
    }

    pub fn reading(&mut self, reading: &Reading) -> io::Result<()> {
        if self.place == Place::Run {
            return Ok(());
        }
        if !self.header_written {
            self.header_written = true;
            writeln!(
                self.writer,
                "{:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5}  verdict",
                "time", "step", "epoch", "memory", "anonymous", "shared", "swap", "file", "procs"
            )?;
        }
        let sample = &reading.snapshot.sample;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        writeln!(
            self.writer,
            "{:>8.1}s {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5}  {}",
            sample.t,
            or_dash(sample.step.map(|step| step.to_string())),
            or_dash(sample.epoch.map(|epoch| format!("{epoch:.2}"))),
            ByteSize(sample.owned()),
            ByteSize(sample.anon),
            ByteSize(sample.shmem),
            ByteSize(sample.swap),
            ByteSize(sample.file),
            sample.procs.unwrap_or(0),
            super::summary::headline(&reading.assessment),
        )
    }
}

/// Version of the objects that `--format json` prints: it grows when a key changes its meaning or goes away,
/// not when one is added.
const EVENTS_VERSION: u32 = 1;

/// One of those objects.
#[derive(Serialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    object: T,
}

fn write_object(writer: &mut dyn Write, object: impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, &Versioned { version: EVENTS_VERSION, object })?;
    writeln!(writer)
}

/// A JSON object a line: `{"version": 1, "sample": .., "processes": .., "assessment": ..}` or `{"version": 1,
/// "event": ..}`.
pub struct JsonLines {
    writer: Box<dyn Write>,
}

impl JsonLines {
    pub fn new(place: Place) -> Self {
        Self { writer: place.writer() }
    }

    pub fn note(&mut self, note: &str) -> io::Result<()> {
        write_object(&mut self.writer, json!({ "event": "note", "note": note }))
    }

    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        write_object(&mut self.writer, event)
    }

    pub fn reading(&mut self, reading: &Reading) -> io::Result<()> {
        write_object(&mut self.writer, reading)
    }
}

/// The last line: how it ended, and the last reading's assessment.
pub fn write_json_summary(writer: &mut dyn Write, ending: &Ending<'_>, seen: &Seen) -> io::Result<()> {
    let last = seen.last.as_ref();
    let owned = |reading: &Reading| {
        let before_end = reading.assessment.before_end.map(|before| before.owned);
        before_end.unwrap_or_else(|| reading.snapshot.sample.owned())
    };
    let summary = json!({
        "event": "summary",
        "end": ending.how,
        "seconds": ending.after.as_secs_f64(),
        "owned": last.map(owned),
        "peak": last.map(|reading| reading.snapshot.peak),
        "spike": last.and_then(|reading| reading.snapshot.spike.as_ref()),
        "limit": last.and_then(|reading| reading.facts.limit),
        "leave_free": last.and_then(|reading| reading.facts.leave_free),
        "at_limit": seen.at_limit,
        "who": seen.holders(),
        "assessment": last.map(|reading| &reading.assessment),
    });
    write_object(writer, summary)
}
