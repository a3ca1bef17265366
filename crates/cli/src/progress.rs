//! What commands share for people: the choice of a format and bars for long work.

use garden_data::{Progress, ProgressUnit};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A bar over thousandths on standard error; nothing where that is not a terminal.
pub fn share_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(1000);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {percent} %  {eta} left") {
        bar.set_style(style);
    }
    bar.with_message(what)
}

/// Work that is done sooner shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);
const ROWS_STYLE: &str = "{msg} {bar:30} {pos}/{len} rows, {per_sec}, {eta} left";
const BYTES_STYLE: &str = "{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";

/// Bars for work on datasets: one at a time, shown once the work takes longer than a moment.
#[derive(Default)]
pub struct Bars {
    bar: Mutex<Option<Bar>>,
}

struct Bar {
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl Bars {
    fn with(&self, act: impl FnOnce(&mut Option<Bar>)) {
        act(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Bars {
    fn begin(&self, what: &str, unit: ProgressUnit, total: u64) {
        let template = if unit == ProgressUnit::Bytes { BYTES_STYLE } else { ROWS_STYLE };
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let bar = bar.with_message(what.to_owned());
        self.with(|current| *current = Some(Bar { bar, begun: Instant::now(), shown: false }));
    }

    fn advance(&self, by: u64) {
        self.with(|current| {
            let Some(bar) = current else { return };
            bar.bar.inc(by);
            if !bar.shown && bar.begun.elapsed() > PATIENCE {
                bar.bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.shown = true;
            }
        });
    }

    fn end(&self) {
        self.with(|current| {
            if let Some(bar) = current.take() {
                bar.bar.finish_and_clear();
            }
        });
    }
}
