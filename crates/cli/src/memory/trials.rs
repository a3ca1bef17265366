//! How far a series of trials is: a bar on a terminal, a line for each trial elsewhere.

use crate::progress::Format;
use garden_memory::{ByteSize, Reading, report::duration};
use garden_train::isolate::Measured;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

/// Trials that run one after the other.
pub struct Trials {
    bar: ProgressBar,
    /// Whether each trial gets a line of its own.
    lines: bool,
    total: u64,
    done: u64,
    /// How long the finished trials took.
    took: Duration,
    name: String,
}

impl Trials {
    /// Starts with this many trials to come. Programs that read JSON get only the result.
    pub fn new(total: usize, format: Format) -> Self {
        let terminal = stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let total = total as u64;
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos} of {len} done  {wide_msg}") {
            bar.set_style(style);
        }
        let lines = !terminal && format == Format::Text;
        Self { bar, lines, total, done: 0, took: Duration::ZERO, name: String::new() }
    }

    /// The next trial begins.
    pub fn begin(&mut self, name: String) {
        if self.lines {
            let left = self.left(0.0).map_or(String::new(), |left| format!(", {left}"));
            eprintln!("{} of {}{left}: {name}", self.done + 1, self.total);
        }
        self.bar.set_message(name.clone());
        self.name = name;
    }

    /// The trial at this moment.
    pub fn reading(&self, reading: &Reading) {
        let sample = &reading.snapshot.sample;
        let mut facts = vec![duration(sample.t), ByteSize(sample.owned()).to_string()];
        facts.extend(sample.step.map(|step| format!("step {step}")));
        facts.extend(self.left(sample.t));
        self.bar.set_message(format!("{}: {}", self.name, facts.join(", ")));
    }

    /// The trial is over.
    pub fn end(&mut self, measured: &Measured) {
        self.done += 1;
        self.took += Duration::try_from_secs_f64(measured.seconds).unwrap_or_default();
        self.bar.set_position(self.done);
    }

    /// The time left if the other trials take as long as the finished ones; `elapsed` seconds of the present
    /// one have passed.
    fn left(&self, elapsed: f64) -> Option<String> {
        let each = self.took.as_secs_f64() / self.done as f64;
        let left = each * (self.total - self.done) as f64 - elapsed;
        (self.done > 0).then(|| format!("about {} left", duration(left.max(1.0))))
    }
}

impl Drop for Trials {
    /// Clears the bar, so that results and errors stand on a clean terminal.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_once_one_is_done() {
        let mut trials = Trials::new(4, Format::Json);
        assert_eq!(trials.left(3.0), None);
        (trials.done, trials.took) = (1, Duration::from_secs(20));
        assert_eq!(trials.left(0.0).as_deref(), Some("about 60 s left"));
        assert_eq!(trials.left(15.0).as_deref(), Some("about 45 s left"));
        assert_eq!(trials.left(900.0).as_deref(), Some("about 1 s left"), "never less than none");
    }
}
