//! What a person sees of a run: a few lines, a progress bar, and nothing that alarms without need.
//!
//! In come lines and the events of a run; out comes text on standard error: a bar on a terminal, plain lines elsewhere, one JSON
//! object a line if asked for, nothing if quiet. Standard output stays free for results.

use crate::{
    config::LogFormat,
    trainer::{BoxError, Callback, Control, LogEntry, StepFacts, StopReason, TrainerState},
};
use garden_data::progress::{Progress, Unit};
use garden_memory::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{
    io::{IsTerminal, Write},
    path::Path,
    time::{Duration, Instant},
};

/// What a bar is drawn with.
const BLOCKS: &str = "█▉▊▋▌▍▎▏ ";

/// How lines reach a person or a program.
#[derive(Clone)]
pub struct Screen {
    format: LogFormat,
    quiet: bool,
    bar: ProgressBar,
}

impl Screen {
    /// A screen on standard error.
    pub fn new(format: LogFormat, quiet: bool) -> Self {
        let fancy = !quiet && format == LogFormat::Text && std::io::stderr().is_terminal();
        let bar = if fancy { ProgressBar::new(0) } else { ProgressBar::hidden() };
        Self { format, quiet, bar }
    }

    /// Whether there is a bar to draw.
    fn has_bar(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Says something that informs.
    pub fn line(&self, text: &str) {
        if !self.quiet {
            self.write("info", text);
        }
    }

    /// Says something that should be noticed.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.write("note", text);
        }
    }

    fn write(&self, level: &str, text: &str) {
        let text = match self.format {
            LogFormat::Text => text.to_owned(),
            LogFormat::Json => json_message(level, text),
        };
        // A terminal that is gone does not end a training.
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }

    fn entry(&self, entry: &LogEntry, max_steps: u64) {
        if self.quiet {
            return;
        }
        let text = match self.format {
            LogFormat::Json => json_entry(entry),
            LogFormat::Text => entry_line(entry, max_steps),
        };
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }
}

/// Version of the objects that `--log-format json` prints: it grows when a key changes its meaning or goes away, not when one is
/// added.
const LOG_VERSION: u32 = 1;

/// A message as one line of JSON.
pub fn json_message(level: &str, text: &str) -> String {
    serde_json::json!({ "version": LOG_VERSION, "level": level, "message": text }).to_string()
}

fn json_entry(entry: &LogEntry) -> String {
    #[derive(Serialize)]
    struct Versioned<'a> {
        version: u32,
        #[serde(flatten)]
        entry: &'a LogEntry,
    }
    serde_json::to_string(&Versioned { version: LOG_VERSION, entry }).unwrap_or_default()
}

/// A log entry as a person reads it.
fn entry_line(entry: &LogEntry, max_steps: u64) -> String {
    let value = |name: &str| entry.values.get(name).copied();
    let mut parts = vec![format!("step {}/{max_steps}", entry.step), format!("epoch {:.2}", entry.epoch)];
    let mut add = |name: &str, show: &dyn Fn(f64) -> String| parts.extend(value(name).map(show));
    add("loss", &|x| format!("loss {x:.4}"));
    add("eval_loss", &|x| format!("evaluation loss {x:.4}"));
    add("eval_token_accuracy", &|x| format!("token accuracy {:.1} %", 100.0 * x));
    add("grad_norm", &|x| format!("gradient norm {x:.3}"));
    add("learning_rate", &|x| format!("rate {x:.2e}"));
    add("tokens_per_second", &|x| format!("{x:.0} tokens/s"));
    add("images_per_second", &|x| format!("{x:.1} images/s"));
    add("memory_rss_mb", &|x| format!("RAM {}", ByteSize((1e6 * x) as u64)));
    parts.join("  ")
}

/// Draws the progress of a run on a screen.
pub struct ProgressDisplay<'a> {
    screen: &'a Screen,
    loss: f64,
    rate: Throughput,
    resident: u64,
}

/// Rows, tokens and images a second over the last steps.
#[derive(Default)]
struct Throughput {
    tokens: f64,
    images: f64,
}

/// Weight of the newest step in what the bar shows: calm, and still there within ten steps.
const NEWEST: f64 = 0.2;

impl Throughput {
    fn add(&mut self, step: &StepFacts) {
        let seconds = step.seconds.max(1e-9);
        let blend =
            |old: &mut f64, new: f64| *old = if *old == 0.0 { new } else { *old + NEWEST * (new - *old) };
        blend(&mut self.tokens, step.sums.tokens as f64 / seconds);
        blend(&mut self.images, step.sums.images as f64 / seconds);
    }
}

impl<'a> ProgressDisplay<'a> {
    /// A display that has seen nothing yet.
    pub fn new(screen: &'a Screen) -> Self {
        Self { screen, loss: f64::NAN, rate: Throughput::default(), resident: 0 }
    }
}

impl Callback for ProgressDisplay<'_> {
    fn on_note(&mut self, note: &str) -> Result<(), BoxError> {
        self.screen.note(note);
        Ok(())
    }

    fn on_start(&mut self, state: &TrainerState, _: &mut Control) -> Result<(), BoxError> {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left")?;
        self.screen.bar.reset();
        self.screen.bar.set_style(style.progress_chars(BLOCKS));
        self.screen.bar.set_length(state.max_steps);
        self.screen.bar.set_position(state.global_step);
        self.screen.bar.reset_eta();
        Ok(())
    }

    fn on_step_end(
        &mut self,
        state: &TrainerState,
        step: &StepFacts,
        _: &mut Control,
    ) -> Result<(), BoxError> {
        if !self.screen.has_bar() {
            return Ok(());
        }
        self.loss = step.sums.mean_loss();
        self.rate.add(step);
        let ram =
            if self.resident > 0 { format!("  RAM {}", ByteSize(self.resident)) } else { String::new() };
        self.screen.bar.set_position(state.global_step);
        self.screen.bar.set_message(format!(
            "loss {:.3}  {:.0} tokens/s  {:.1} images/s{ram}",
            self.loss, self.rate.tokens, self.rate.images
        ));
        Ok(())
    }

    fn on_log(&mut self, state: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        if let Some(megabytes) = entry.values.get("memory_rss_mb") {
            self.resident = (1e6 * megabytes) as u64;
        }
        // On a terminal the bar shows what training logs say; evaluations deserve a line of their own.
        if !self.screen.has_bar() || entry.values.contains_key("eval_loss") {
            self.screen.entry(entry, state.max_steps);
        }
        Ok(())
    }

    fn on_save(&mut self, _: &TrainerState, checkpoint: &Path) -> Result<(), BoxError> {
        if !self.screen.has_bar() {
            self.screen.line(&format!("checkpoint {}", checkpoint.display()));
        }
        Ok(())
    }

    fn on_end(&mut self, _: &TrainerState, _: Option<&StopReason>) -> Result<(), BoxError> {
        self.screen.bar.finish_and_clear();
        Ok(())
    }
}

/// Something that takes a while, shown as a spinner.
pub struct Waiting {
    bar: ProgressBar,
    start: Instant,
}

impl Screen {
    /// Shows that something is going on, and what.
    pub fn waiting(&self, what: &str) -> Waiting {
        let bar = if self.has_bar() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Waiting { bar, start: Instant::now() }
    }
}

impl Waiting {
    /// Ends it; gives the seconds it took.
    pub fn done(self) -> f64 {
        self.bar.finish_and_clear();
        self.start.elapsed().as_secs_f64()
    }
}

impl Progress for Screen {
    fn begin(&self, what: &str, unit: Unit, total: u64) {
        let template = match unit {
            Unit::Bytes => "{msg} {bar:30} {bytes}/{total_bytes}  {eta} left",
            Unit::Rows => "{msg} {bar:30} {pos}/{len} rows  {eta} left",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars(BLOCKS));
        }
        // The same bar is used again, for the next piece of work and for the steps.
        self.bar.reset();
        self.bar.set_message(what.to_owned());
        self.bar.set_length(total);
    }

    fn advance(&self, by: u64) {
        self.bar.inc(by);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_log_entry_reads_as_a_line() {
        let number = |(name, value): (&str, f64)| (name.to_owned(), value);
        let values = [
            ("loss", 1.23456),
            ("grad_norm", 0.5),
            ("learning_rate", 2e-4),
            ("tokens_per_second", 1234.5),
            ("images_per_second", 3.25),
            ("memory_rss_mb", 1210.0),
        ];
        let values: BTreeMap<String, f64> = values.into_iter().map(number).collect();
        let line = entry_line(&LogEntry { epoch: 0.5, step: 10, values }, 40);
        let expected = "step 10/40  epoch 0.50  loss 1.2346  gradient norm 0.500  rate 2.00e-4  1234 tokens/s  \
                        3.2 images/s  RAM 1.21 GB";
        assert_eq!(line, expected);
    }
}
