//! What commands share for people: the choice of a format and bars for long work.

use indicatif::{ProgressBar, ProgressStyle};

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A bar over thousandths on standard error; nothing where that is no terminal.
pub fn share_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(1000);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {percent} %  {eta} left") {
        bar.set_style(style);
    }
    bar.with_message(what)
}
