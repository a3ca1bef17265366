//! The verdict: samples in, one at a time; at any moment out comes an [`Assessment`].
//!
//! The same engine serves a live watch and a recorded trace. Memory is bounded however many samples come.

mod curve;
mod fit;
mod outlook;
mod series;
mod timeline;
mod weigh;

use crate::{Assessment, RunFacts, Sample, Verdict};
use curve::Curve;
use outlook::{Outlook, Situation};
use series::Series;
use timeline::{Place, Timeline};

/// Judges a run while it goes.
#[derive(Debug, Clone)]
pub struct Analyst {
    facts: RunFacts,
    timeline: Timeline,
    start_up: Series,
    run: Series,
    previous: Option<Series>,
}

impl Analyst {
    /// An analyst that knows `facts` of the run and has seen nothing yet.
    pub fn new(facts: RunFacts) -> Self {
        Self {
            facts,
            timeline: Timeline::default(),
            start_up: Series::default(),
            run: Series::default(),
            previous: None,
        }
    }

    /// What is known of the run.
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Takes one sample in.
    pub fn push(&mut self, sample: &Sample) {
        let place = self.timeline.place(sample);
        let seconds = self.timeline.seconds;
        match place {
            Place::StartUp => self.start_up.push(seconds, seconds, sample),
            Place::Run(x) => self.run.push(x, seconds, sample),
            Place::NewRun(x) => {
                self.previous = Some(std::mem::take(&mut self.run));
                self.run.push(x, seconds, sample);
            }
            Place::Between => {}
        }
    }

    /// What can be said now.
    pub fn assessment(&self) -> Assessment {
        let has_steps = self.run.readings() > 0;
        let series = if has_steps { &self.run } else { &self.start_up };
        let mut verdict = Verdict::Undecided;
        let mut evidence = vec![];
        if let Some(curve) = Curve::new(series.complete_bins()) {
            let epoch_steps =
                self.facts.epoch_steps().or_else(|| self.timeline.epoch_steps()).filter(|_| has_steps);
            let gap = curve.length() / (series.distinct_x().max(2) - 1) as f64;
            let origin = if curve.span.0 <= 2.0 * gap { 0.0 } else { curve.span.0 - gap };
            let place = |axis: f64| curve.place(axis);
            let epoch_end = epoch_steps.map(|steps| place(origin + steps));
            let decidable = epoch_steps.map(|steps| place(origin + steps * (1.0 + outlook::EPOCH_MARGIN)));
            let unknown_fill = if has_steps {
                let p = (1.0 - (curve.length() / 20.0).max(1.0).ln() / 1000f64.ln()).clamp(0.0, 1.0);
                p / (1.0 + p)
            } else {
                let p = (1.0 - (curve.length() / 60.0).max(1.0).ln() / 1440f64.ln()).clamp(0.0, 1.0);
                0.15 * p / (0.85 + 0.15 * p)
            };
            let situation = Situation {
                epoch_end,
                origin: place(origin),
                decidable,
                unknown_fill,
                spacing: 1.0 / (curve.x.len() - 1) as f64,
            };
            let weighed = weigh::weigh(fit::explanations(&curve, epoch_end), &curve);
            let mut sum = Outlook::default();
            for w in &weighed {
                sum.add(&outlook::outlook(&w.fit, &curve, &situation), w.probability);
            }
            for w in weighed.iter().take(3) {
                evidence.push(format!(
                    "{:.3} {:?} {:?}",
                    w.probability,
                    w.fit.shape,
                    w.fit.coefficients.map(|c| (c / 1e6).round())
                ));
            }
            evidence.push(format!(
                "{sum:?} returning {:?} dying {} noise {:.1} MB",
                curve.returning,
                curve.dying,
                curve.noise / 1e6
            ));
            let best = [
                (sum.steady, Verdict::Steady),
                (sum.warm_up, Verdict::WarmUp),
                (sum.fill, Verdict::Fill),
                (sum.leak, Verdict::Leak),
            ]
            .into_iter()
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("four");
            let bounded =
                [(sum.steady, Verdict::Steady), (sum.warm_up, Verdict::WarmUp), (sum.fill, Verdict::Fill)]
                    .into_iter()
                    .max_by(|a, b| a.0.total_cmp(&b.0))
                    .expect("three");
            if series.distinct_x() < 10 {
            } else if best.0 >= 0.75 {
                verdict = best.1;
            } else if sum.steady + sum.warm_up + sum.fill >= 0.75 {
                verdict = bounded.1;
            }
        }
        Assessment {
            verdict,
            confidence: 0.0,
            growth_per_step: None,
            growth_per_sample: None,
            growth_per_minute: None,
            plateau: None,
            exhaustion: None,
            endings: Vec::new(),
            decidable_at_step: None,
            mechanism: None,
            evidence,
            advice: Vec::new(),
        }
    }
}
