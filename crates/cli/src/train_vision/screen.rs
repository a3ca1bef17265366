//! Draws a run for a person, or prints it for a program.
//!
//! Takes the events of a run and writes to standard error: a bar on a terminal, plain lines elsewhere, one
//! JSON object a line on request, nothing if quiet. Standard output stays free for results. Never fails: a
//! terminal that has gone away does not end a training.

use super::words;
use crate::flags::LogFormat;
use garden_memory::ByteSize;
use garden_train::events::{
    EndReason, Event, MemoryReading, Note, Progress, ProgressUnit, Record, Started, Step, Topic,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

/// What a bar is drawn with.
const BLOCKS: &str = "█▉▊▋▌▍▎▏ ";
/// Weight of the newest step in the bar's figures: they stay calm, and still follow within ten steps.
const NEWEST: f64 = 0.2;

/// How lines reach a person or a program; clones write to the same place.
#[derive(Clone)]
pub struct Lines {
    format: LogFormat,
    quiet: bool,
    bar: ProgressBar,
}

impl Lines {
    /// Lines on standard error.
    pub fn new(format: LogFormat, quiet: bool) -> Self {
        let fancy = !quiet && format == LogFormat::Text && std::io::stderr().is_terminal();
        let bar = if fancy { ProgressBar::new(0) } else { ProgressBar::hidden() };
        Self { format, quiet, bar }
    }

    /// Prints words for a person; a program learns the same from events.
    pub fn text(&self, text: &str) {
        if self.format == LogFormat::Text {
            self.write(text);
        }
    }

    /// Writes one event as JSON, where that is asked for.
    pub fn event(&self, event: &Event) {
        if self.format == LogFormat::Json {
            self.write(&Record::now(event.clone()).to_json());
        }
    }

    /// Says why the process ends at once, to whoever reads.
    pub fn last_words(&self, text: &str) {
        self.text(text);
        self.event(&Event::Note(Note { topic: Topic::Checkpoint, text: text.to_owned() }));
    }

    fn write(&self, line: &str) {
        if !self.quiet {
            // A terminal that has gone away does not end a training.
            self.bar.suspend(|| drop(writeln!(std::io::stderr(), "{line}")));
        }
    }

    fn has_bar(&self) -> bool {
        !self.bar.is_hidden()
    }
}

/// A run on a terminal.
pub struct Screen {
    lines: Lines,
    plan: Option<u64>,
    memory: Option<MemoryReading>,
    rate: Throughput,
}

/// Tokens and images a second over the last steps.
#[derive(Default)]
struct Throughput {
    tokens: f64,
    images: f64,
}

impl Throughput {
    fn add(&mut self, step: &Step) {
        let seconds = step.seconds.max(1e-9);
        let blend =
            |old: &mut f64, new: f64| *old = if *old == 0.0 { new } else { *old + NEWEST * (new - *old) };
        blend(&mut self.tokens, step.tokens as f64 / seconds);
        blend(&mut self.images, step.images as f64 / seconds);
    }
}

impl Screen {
    /// A screen that has seen nothing yet.
    pub fn new(lines: Lines) -> Self {
        Self { lines, plan: None, memory: None, rate: Throughput::default() }
    }

    /// Shows an event.
    pub fn show(&mut self, event: &Event) {
        // The error that ends a run is printed where all errors are.
        if !matches!(event, Event::End(end) if end.reason == EndReason::Failed) {
            self.lines.event(event);
        }
        let has_bar = self.lines.has_bar();
        match event {
            Event::Progress(progress) => self.draw_work(progress),
            Event::Plan(plan) => self.plan = Some(plan.total_bytes),
            Event::Memory(reading) => self.memory = Some(reading.clone()),
            Event::Started(started) => self.start(started),
            Event::Step(step) => self.draw_step(step),
            // On a terminal the bar shows what training logs say; evaluations deserve a line of their own.
            Event::Log(log) if !has_bar => self.lines.text(&words::log(log)),
            Event::Checkpoint(place) if !has_bar => {
                self.lines.text(&format!("checkpoint {}", place.path.display()));
            }
            Event::Evaluation(evaluation) => {
                let resident = self.memory.as_ref().map(|reading| reading.resident_bytes);
                self.lines.text(&words::evaluation(evaluation, resident));
            }
            Event::Resumed(place) => {
                self.lines.text(&format!("continuing from {}", place.path.display()));
            }
            Event::RowsSurveyed(rows) => words::rows(rows).iter().for_each(|line| self.lines.text(line)),
            Event::ModelLoaded(model) => self.lines.text(&words::model(model)),
            Event::Note(note) => self.lines.text(&words::note(note)),
            Event::End(end) => {
                self.lines.bar.finish_and_clear();
                words::end(end).iter().for_each(|line| self.lines.text(line));
            }
            _ => {}
        }
    }

    fn start(&mut self, started: &Started) {
        let Started { step, max_steps, steps_per_epoch, batch_size, accumulation } = started;
        self.lines.text(&format!(
            "steps: {max_steps} of {batch_size} x {accumulation} rows, {steps_per_epoch} an epoch"
        ));
        let now = self.memory.as_ref().map_or(0, |reading| reading.resident_bytes);
        let plan = self.plan.map(|plan| format!("plan {}; ", ByteSize(plan))).unwrap_or_default();
        self.lines.text(&format!("memory: {plan}{} before the first step", ByteSize(now)));
        let bar = &self.lines.bar;
        bar.disable_steady_tick();
        bar.reset();
        bar.set_message("first step");
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left") {
            bar.set_style(style.progress_chars(BLOCKS));
        }
        bar.set_length(*max_steps);
        bar.set_position(*step);
        bar.reset_eta();
    }

    fn draw_step(&mut self, step: &Step) {
        if !self.lines.has_bar() {
            return;
        }
        self.rate.add(step);
        let ram = self.memory.as_ref().map(|reading| format!("  RAM {}", ByteSize(reading.resident_bytes)));
        self.lines.bar.set_position(step.step);
        self.lines.bar.set_message(format!(
            "loss {:.3}  {:.0} tokens/s  {:.1} images/s{}",
            step.loss,
            self.rate.tokens,
            self.rate.images,
            ram.unwrap_or_default()
        ));
    }

    /// Draws the progress of work. The same bar is used for the next piece of work and for the steps.
    fn draw_work(&self, work: &Progress) {
        let bar = &self.lines.bar;
        if work.ended {
            bar.finish_and_clear();
            return;
        }
        if work.done == 0 {
            let template = match work.unit {
                ProgressUnit::Bytes => "{msg} {bar:30} {bytes}/{total_bytes}  {eta} left",
                ProgressUnit::Rows => "{msg} {bar:30} {pos}/{len} rows  {eta} left",
                _ => "{msg} {bar:30} {percent} %  {eta} left",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars(BLOCKS));
            }
            bar.reset();
            bar.set_message(work.what.clone());
            bar.set_length(work.total);
            if self.lines.has_bar() {
                bar.enable_steady_tick(Duration::from_millis(500));
            }
        }
        bar.set_position(work.done);
    }
}
