//! What people see of a run: text for a terminal, an SVG picture, an HTML page.
//!
//! [`Run::read`] reads a trace and judges it. Every form shows the same assessment, and none of them decides
//! anything.

mod braille;
mod chart;
mod curves;
mod html;
mod page;
pub(crate) mod scale;
mod svg;
mod text;

pub use chart::{Chart, Colour, Epochs, Level, Line, Meaning, Unit};
pub use curves::one as chart_of;
pub use html::{html, html_with};
pub use page::Page;
pub use scale::duration;
pub use svg::{escape, overlay, svg};
pub use text::{Style, text, wrap};

use crate::{Analyst, Assessment, RunFacts, Sample, TraceError, TraceReader, trace::TraceOptions};
use std::path::Path;

/// A run that was read and judged.
pub struct Run {
    /// What it is called.
    pub name: String,
    /// The analyst that has seen its samples.
    pub analyst: Analyst,
    /// What was found.
    pub assessment: Assessment,
}

impl Run {
    /// Reads a trace as a stream and judges it; `told` overrides what its header says, and `options` are what
    /// the user says of the file.
    pub fn read(path: impl AsRef<Path>, told: &RunFacts, options: &TraceOptions) -> Result<Self, TraceError> {
        let mut reader = TraceReader::open_with(path, options)?;
        let header = reader.header().clone();
        let facts = completed(told.clone(), &header.facts);
        let mut analyst = Analyst::of_recorded(facts.clone());
        let mut placeless = Placeless::default();
        for sample in &mut reader {
            placeless.push(sample?, &mut analyst);
        }
        let counted = placeless.finish(&mut analyst);
        let learned = completed(facts.clone(), &reader.facts());
        if learned != facts {
            analyst.learn(learned);
        }
        let mut assessment = analyst.assessment();
        assessment.evidence.extend_from_slice(reader.notes());
        assessment.evidence.extend(counted.map(Into::into));
        Ok(Self { name: header.name, analyst, assessment })
    }
}

/// Samples of a file without a step or a time so far.
#[derive(Default)]
struct Placeless {
    waiting: Vec<Sample>,
    /// A step or time was found, or there are too many samples to wait for one.
    is_over: bool,
}

impl Placeless {
    fn push(&mut self, sample: Sample, analyst: &mut Analyst) {
        /// Held samples take at most 100 MB.
        const MOST: usize = 500_000;
        self.is_over |= sample.step.is_some() || sample.t != 0.0 || self.waiting.len() == MOST;
        if !self.is_over {
            self.waiting.push(sample);
            return;
        }
        self.waiting.drain(..).for_each(|sample| analyst.push(&sample));
        analyst.push(&sample);
    }

    /// Counts the samples as steps where nothing else places them, and says so.
    fn finish(self, analyst: &mut Analyst) -> Option<String> {
        let count = self.waiting.len();
        for (number, sample) in (1..).zip(self.waiting) {
            let step = (count > 1).then_some(number);
            analyst.push(&Sample { step, ..sample });
        }
        (count > 1).then(|| {
            format!("The file tells neither steps nor times: its {count} readings are counted as steps.")
        })
    }
}

/// What is known, completed by `more`.
fn completed(known: RunFacts, more: &RunFacts) -> RunFacts {
    RunFacts {
        dataset_size: known.dataset_size.or(more.dataset_size),
        samples_per_step: known.samples_per_step.or(more.samples_per_step),
        steps_per_epoch: known.steps_per_epoch.or(more.steps_per_epoch),
        limit: known.limit.or(more.limit),
        leave_free: known.leave_free.or(more.leave_free),
    }
}
