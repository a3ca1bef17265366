//! The answer: what kind of growth a trace shows, where it ends, and what to do about it.
//!
//! These types are the JSON that `memory analyze` and `memory watch` print, field for field. Sizes are bytes.
//! Rates are bytes per step, per row or per minute; the field's name says which.

use crate::sentence::{Sentence, Setting};
use serde::{Deserialize, Serialize};

/// The kind of growth that a run shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Level, or moving around a level.
    Steady,
    /// Grows ever more slowly towards a ceiling.
    WarmUp,
    /// Grows by a constant per row until every row was seen once.
    Fill,
    /// Grows past the first epoch, without end.
    Leak,
    /// Two explanations with different endings remain.
    Undecided,
}

/// The level at which growth stops.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Plateau {
    /// Best estimate of the level.
    pub bytes: u64,
    /// Lower end of the interval.
    pub low: u64,
    /// Upper end of the interval.
    pub high: u64,
    /// Step from which the level holds, where steps are known.
    pub step: Option<u64>,
}

/// What a process held before it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BeforeEnd {
    /// Its own memory.
    pub owned: u64,
    /// Resident memory, mapped files included.
    pub resident: u64,
}

/// When the limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Exhaustion {
    /// Step at which the limit is reached, where steps are known.
    pub step: Option<u64>,
    /// Seconds from the last sample until then.
    pub seconds: Option<f64>,
    /// Earliest step (or second, where there are no steps) that the evidence allows.
    pub low: Option<f64>,
    /// Latest step (or second, where there are no steps) that the evidence allows.
    pub high: Option<f64>,
}

/// One way in which an undecided run may end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ending {
    /// What the run would turn out to be.
    pub verdict: Verdict,
    /// How likely the evidence makes it, 0 to 1.
    pub probability: f64,
    /// Where growth would stop.
    pub plateau: Option<Plateau>,
    /// When the limit would be reached.
    pub exhaustion: Option<Exhaustion>,
}

/// Where the growth sits, as far as the split of the memory shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mechanism {
    /// The kind of memory.
    pub memory: MemoryKind,
    /// The part of the tree, where it has more than one process.
    pub place: Option<TreePart>,
    /// How it grows, where a pattern was seen.
    pub pattern: Option<Pattern>,
}

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Resident memory whose source does not tell the kinds apart.
    Resident,
    /// Heap, stacks, private writable pages.
    Anonymous,
    /// Shared memory.
    Shared,
    /// Swapped-out memory.
    Swap,
    /// File-backed memory, which the kernel can drop.
    File,
}

/// A part of a process tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TreePart {
    /// The root process.
    Parent,
    /// The processes below it.
    Workers,
}

/// How memory grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// By a constant per row of the dataset.
    PerSample,
    /// In equal jumps, as with each evaluation or save.
    PerEvaluation,
    /// Up, and collected again and again.
    Sawtooth,
    /// In short peaks above a base line.
    Spikes,
    /// In jumps between levels.
    Stairs,
    /// Not from the start, but from a later moment on.
    Late,
    /// At a constant rate.
    ConstantRate,
    /// At a constant rate that stopped.
    LevelledOff,
    /// Ever more slowly.
    SlowingDown,
}

/// What an assessment comes down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Steady, or bounded within the limit.
    Fine,
    /// A leak.
    Leak,
    /// Undecided.
    Undecided,
    /// Bounded, but above the limit.
    WillNotFit,
}

/// What somebody expects of a run's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// It is level by the end: it never grew, it only goes up and down, or its growth has stopped.
    Steady,
    /// It does not leak; growth may still be going on, as long as nothing says that it has no end.
    Bounded,
}

/// Everything that can be said of a run's memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Assessment {
    /// The kind of growth.
    pub verdict: Verdict,
    /// What the verdict means for this run, in half a sentence.
    pub meaning: &'static str,
    /// Probability of the ending that the verdict names, 0 to 1: of no further growth for `steady`, `warm-up`
    /// and `fill`, of growth without end for `leak`. For `undecided`: one minus the probability of the
    /// likeliest ending.
    pub confidence: f64,
    /// Probability that memory has stopped growing, or will by itself, 0 to 1.
    pub will_stop: f64,
    /// Probability that it grows without end; both sum to 1.
    pub will_go_on: f64,
    /// Whether memory was still growing at the last sample.
    pub grows_now: bool,
    /// Bytes per optimizer step while growing.
    pub growth_per_step: Option<f64>,
    /// Bytes per dataset row while growing.
    pub growth_per_sample: Option<f64>,
    /// Bytes per minute while growing.
    pub growth_per_minute: Option<f64>,
    /// Where growth stopped or will stop.
    pub plateau: Option<Plateau>,
    /// When the limit is reached, if it is.
    pub exhaustion: Option<Exhaustion>,
    /// For an undecided run: the endings that remain.
    pub endings: Vec<Ending>,
    /// For an undecided run: the step from which the verdict can be decided.
    pub decidable_at_step: Option<u64>,
    /// What was held before the process ended, where the last samples show it ending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_end: Option<BeforeEnd>,
    /// Where the growth sits.
    pub mechanism: Option<Mechanism>,
    /// Why, in sentences.
    pub evidence: Vec<Sentence>,
    /// What to do next, in sentences.
    pub advice: Vec<Sentence>,
}

impl Assessment {
    /// Names the settings that evidence and advice are about, in the words of the front end that shows them.
    pub fn name_settings(&mut self, name: impl Fn(Setting) -> &'static str) {
        Sentence::name_all(&mut self.evidence, &name);
        Sentence::name_all(&mut self.advice, &name);
    }

    /// The ending that the verdict names; `None` for an undecided run.
    fn named_ending(&self) -> Option<&'static str> {
        match self.verdict {
            Verdict::Steady => Some("will stay level"),
            Verdict::WarmUp | Verdict::Fill => Some("has stopped growing"),
            Verdict::Leak => Some("will go on growing"),
            Verdict::Undecided => None,
        }
    }

    /// The ending that the verdict names, with its probability: `will go on growing: 93 %`. For an undecided
    /// run, both endings.
    pub fn ending(&self) -> String {
        let percent = |probability: f64| format!("{:.0} %", probability * 100.0);
        match self.named_ending() {
            Some(ending) => format!("{ending}: {}", percent(self.confidence)),
            None => format!(
                "will stop growing: {}, will go on growing: {}",
                percent(self.will_stop),
                percent(self.will_go_on)
            ),
        }
    }

    /// Whether the run is as expected; `None` where it is too early to tell.
    pub fn meets(&self, expected: Expectation) -> Option<bool> {
        match self.verdict {
            Verdict::Steady | Verdict::WarmUp | Verdict::Fill => Some(true),
            Verdict::Leak => Some(false),
            Verdict::Undecided if expected == Expectation::Steady && self.grows_now => Some(false),
            Verdict::Undecided => None,
        }
    }

    /// The answer, given a limit in bytes.
    pub fn answer(&self, limit: Option<u64>) -> Answer {
        let exceeds = |plateau: &Plateau| limit.is_some_and(|limit| plateau.bytes > limit);
        match self.verdict {
            Verdict::Leak => Answer::Leak,
            Verdict::Undecided => Answer::Undecided,
            // A level above the limit does not fit, however calm it is.
            Verdict::Steady | Verdict::WarmUp | Verdict::Fill
                if self.plateau.as_ref().is_some_and(exceeds) =>
            {
                Answer::WillNotFit
            }
            Verdict::Steady | Verdict::WarmUp | Verdict::Fill => Answer::Fine,
        }
    }
}

impl MemoryKind {
    /// The name that JSON has for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Anonymous => "anonymous",
            Self::Shared => "shared",
            Self::Swap => "swap",
            Self::File => "file",
        }
    }
}

impl TreePart {
    /// The name that JSON has for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::Workers => "workers",
        }
    }
}

impl Pattern {
    /// The name that JSON has for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerSample => "per-sample",
            Self::PerEvaluation => "per-evaluation",
            Self::Sawtooth => "sawtooth",
            Self::Spikes => "spikes",
            Self::Stairs => "stairs",
            Self::Late => "late",
            Self::ConstantRate => "constant-rate",
            Self::LevelledOff => "levelled-off",
            Self::SlowingDown => "slowing-down",
        }
    }
}

impl Verdict {
    /// The name that JSON has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::WarmUp => "warm-up",
            Self::Fill => "fill",
            Self::Leak => "leak",
            Self::Undecided => "undecided",
        }
    }

    /// What it means, in half a sentence.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Steady => "memory stays at its level",
            Self::WarmUp => "grew ever more slowly towards a ceiling",
            Self::Fill => "grew by a constant per row until every row was seen once",
            Self::Leak => "grows without end",
            Self::Undecided => "explanations with different endings remain",
        }
    }
}
