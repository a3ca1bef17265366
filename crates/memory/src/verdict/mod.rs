//! The verdict: samples in, one at a time; at any moment out comes an [`Assessment`].
//!
//! The same engine serves a live watch and a recorded trace. Memory is bounded however many samples come.

use crate::{Assessment, RunFacts, Sample, Verdict};

/// Judges a run while it goes.
#[derive(Debug, Clone)]
pub struct Analyst {
    facts: RunFacts,
    samples: u64,
}

impl Analyst {
    /// An analyst that knows `facts` of the run and has seen nothing yet.
    pub fn new(facts: RunFacts) -> Self {
        Self { facts, samples: 0 }
    }

    /// What is known of the run.
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Takes one sample in.
    pub fn push(&mut self, _sample: &Sample) {
        self.samples += 1;
    }

    /// What can be said now.
    pub fn assessment(&self) -> Assessment {
        Assessment {
            verdict: Verdict::Undecided,
            confidence: 0.0,
            growth_per_step: None,
            growth_per_sample: None,
            growth_per_minute: None,
            plateau: None,
            exhaustion: None,
            endings: Vec::new(),
            decidable_at_step: None,
            mechanism: None,
            evidence: vec![format!("{} samples are too few to tell.", self.samples)],
            advice: Vec::new(),
        }
    }
}
