//! Pictures of runs: one with its marks, or several over one another.

use super::{Run, curves};

/// Draws a run.
pub fn svg(run: &Run) -> String {
    curves::one(run).svg()
}

/// Draws several runs over one another; nothing where they have no axis in common.
pub fn overlay(title: &str, runs: &[Run]) -> Option<String> {
    let mut chart = curves::together(runs)?;
    title.clone_into(&mut chart.title);
    Some(chart.svg())
}

/// Text that cannot be taken for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
