//! The verdict: an [`Analyst`] takes samples one at a time and gives an [`Assessment`] at any moment.
//!
//! The same engine serves a live watch and a recorded trace, so both say the same of the same samples. Its
//! memory is bounded, however many samples come. How it works, step by step: `timeline` (where a sample
//! belongs), `series` (bins), `curve` (memory that was kept), `fit` (explanations), `weigh` (their
//! probabilities), `outlook` (what they mean for the ending), `study` (the verdict), `forecast`, `mechanism`,
//! `words` and `advice` (the answer).

mod advice;
mod curve;
mod fit;
mod forecast;
mod mechanism;
mod outlook;
mod series;
mod stairs;
mod study;
mod timeline;
mod weigh;
mod words;

pub use curve::Axis;
pub(crate) use series::{Bin, Kinds};

use crate::{Assessment, BeforeEnd, RunFacts, Sample, Verdict, units::counted};
use mechanism::Growth;
use series::Series;
use study::Study;
use timeline::{Place, Timeline};

/// A restarted run is judged by its last part once that has this many samples; until then by the part before.
const LEAST_AFTER_RESTART: u64 = 20;
/// No ending of a curve is surer than this.
const SUREST: f64 = 0.99;

/// Judges a run while it goes.
#[derive(Debug, Clone)]
pub struct Analyst {
    facts: RunFacts,
    samples: u64,
    timeline: Timeline,
    start_up: Series,
    run: Series,
    before_restart: Option<Series>,
    is_recorded: bool,
}

/// The curve of a run, for charts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trail<'a> {
    /// Before the first step; seconds on its axis.
    pub start_up: &'a [Bin],
    /// From the first step on; steps on its axis, or seconds where there are none.
    pub run: &'a [Bin],
    /// What the run's axis counts.
    pub axis: Axis,
    /// Step at which the first epoch ends, where it is known.
    pub epoch_end: Option<f64>,
    /// Steps in an epoch, where it is known.
    pub epoch_steps: Option<f64>,
}

impl Analyst {
    /// An analyst that knows `facts` of the run and has seen nothing yet.
    pub fn new(facts: RunFacts) -> Self {
        Self {
            facts,
            samples: 0,
            timeline: Timeline::default(),
            start_up: Series::default(),
            run: Series::default(),
            before_restart: None,
            is_recorded: false,
        }
    }

    /// The same for a recorded run: nothing more will come, and the advice says so.
    pub fn of_recorded(facts: RunFacts) -> Self {
        Self { is_recorded: true, ..Self::new(facts) }
    }

    /// What is known of the run.
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Replaces what is known of the run: a live watch learns of the dataset from the run itself.
    pub(crate) fn learn(&mut self, facts: RunFacts) {
        self.facts = facts;
    }

    /// Takes one sample in.
    pub fn push(&mut self, sample: &Sample) {
        self.samples += 1;
        let place = self.timeline.place(sample);
        let seconds = self.timeline.seconds;
        match place {
            Place::StartUp => self.start_up.push(seconds, seconds, sample),
            Place::Run(x) => self.run.push(x, seconds, sample),
            Place::NewRun(x) => {
                self.before_restart = Some(std::mem::take(&mut self.run));
                self.run.push(x, seconds, sample);
            }
            Place::Between => {}
        }
    }

    /// How many samples were taken in.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The curve so far, for charts.
    pub(crate) fn trail(&self) -> Trail<'_> {
        let (series, axis) = self.judged();
        let epoch_steps = self.facts.epoch_steps().or_else(|| self.timeline.epoch_steps());
        let epoch_steps = epoch_steps.filter(|_| axis == Axis::Steps);
        let epoch_end = epoch_steps.map(|steps| study::origin(series, axis) + steps);
        let start_up = if axis == Axis::Steps { self.start_up.bins() } else { &[] };
        Trail { start_up, run: series.bins(), axis, epoch_end, epoch_steps }
    }

    /// What can be said at this moment.
    pub fn assessment(&self) -> Assessment {
        let Some(study) = self.study() else { return self.nothing_yet() };
        let verdict = study.verdict;
        let rate = forecast::rate(&study, verdict);
        let per_step = rate.filter(|_| study.axis == Axis::Steps);
        let growth = Growth::of(&study);
        let plateau = forecast::plateau(&study, verdict);
        let runs_out = verdict == Verdict::Leak;
        let mut assessment = Assessment {
            verdict,
            meaning: mechanism::meaning(&study),
            confidence: confidence(&study),
            will_stop: 1.0 - study.outlook.leak.clamp(1.0 - SUREST, SUREST),
            will_go_on: study.outlook.leak.clamp(1.0 - SUREST, SUREST),
            grows_now: forecast::grows_now(&study, verdict),
            growth_per_step: per_step,
            growth_per_sample: per_step
                .zip(self.facts.samples_per_step)
                .map(|(rate, rows)| rate / rows as f64),
            growth_per_minute: rate
                .zip(study.seconds_per_unit())
                .map(|(rate, seconds)| rate / seconds * 60.0),
            plateau,
            exhaustion: rate.filter(|_| runs_out).and_then(|rate| forecast::exhaustion(&study, rate)),
            endings: if verdict == Verdict::Undecided { forecast::endings(&study) } else { Vec::new() },
            decidable_at_step: (verdict == Verdict::Undecided)
                .then(|| forecast::decidable_at_step(&study))
                .flatten(),
            before_end: before_end(study.series.bins()),
            mechanism: mechanism::mechanism(&study, &growth, verdict),
            evidence: Vec::new(),
            advice: Vec::new(),
        };
        let evidence = words::evidence(&study, &growth, &assessment);
        assessment.evidence = evidence.into_iter().chain(self.incidents()).map(Into::into).collect();
        assessment.advice = advice::advice(&study, &assessment, self.is_recorded);
        assessment
    }

    /// The part of the samples that is judged, and its axis.
    fn judged(&self) -> (&Series, Axis) {
        if self.run.readings() == 0 {
            return (&self.start_up, Axis::Seconds);
        }
        match &self.before_restart {
            Some(before) if self.run.readings() < LEAST_AFTER_RESTART.min(before.readings()) => {
                (before, Axis::Steps)
            }
            _ => (&self.run, Axis::Steps),
        }
    }

    fn study(&self) -> Option<Study<'_>> {
        let (series, axis) = self.judged();
        Study::of(series, axis, &self.facts, self.timeline.epoch_steps())
    }

    fn nothing_yet(&self) -> Assessment {
        let (series, _) = self.judged();
        let samples = counted(series.readings(), "sample");
        let show = if series.readings() == 1 { "shows" } else { "show" };
        Assessment {
            verdict: Verdict::Undecided,
            meaning: "there is no curve yet",
            confidence: 0.5,
            will_stop: 0.5,
            will_go_on: 0.5,
            grows_now: false,
            growth_per_step: None,
            growth_per_sample: None,
            growth_per_minute: None,
            plateau: None,
            exhaustion: None,
            endings: Vec::new(),
            decidable_at_step: None,
            before_end: None,
            mechanism: None,
            evidence: std::iter::once(format!("{samples} at one place on the axis {show} no curve yet."))
                .chain(self.incidents())
                .map(Into::into)
                .collect(),
            advice: vec![advice::more(None, self.is_recorded)],
        }
    }

    /// What happened to the run besides its memory.
    fn incidents(&self) -> Vec<String> {
        let timeline = &self.timeline;
        let mut incidents = Vec::new();
        if timeline.restarts > 0 {
            let times = counted(u64::from(timeline.restarts), "time");
            incidents.push(format!(
                "The run began again {times} (steps went back or memory fell away); the verdict is about {}.",
                if std::ptr::eq(self.judged().0, &self.run) {
                    "the last part"
                } else {
                    "the part before the restart"
                }
            ));
        }
        if timeline.counter_resets > 0 {
            let times = counted(u64::from(timeline.counter_resets), "time");
            incidents.push(format!(
                "The step counter went back {times} while memory stayed: steps are counted on."
            ));
        }
        if timeline.clock_jumps > 0 {
            let times = counted(u64::from(timeline.clock_jumps), "time");
            incidents.push(format!("The clock jumped {times}: the jumps were taken out."));
        }
        incidents
    }
}

/// The last bin before the process was ending, where the last bins show that.
fn before_end(bins: &[Bin]) -> Option<BeforeEnd> {
    let alive = curve::without_dying(bins);
    let last = alive.last().filter(|_| alive.len() < bins.len())?.mean();
    Some(BeforeEnd { owned: last.owned as u64, resident: last.rss as u64 })
}

/// The probability of the ending that the verdict names; for an undecided run, one minus that of the
/// likeliest.
fn confidence(study: &Study) -> f64 {
    let outlook = &study.outlook;
    let named = match study.verdict {
        Verdict::Steady | Verdict::WarmUp | Verdict::Fill => outlook.bounded(),
        Verdict::Leak => outlook.leak,
        Verdict::Undecided => 1.0 - outlook.leak.max(1.0 - outlook.leak),
    };
    named.clamp(0.0, SUREST)
}
