//! Where growth sits: which kind of memory, parent or workers, in which pattern.
//!
//! Kinds of memory are compared by their growth from the first tenth of the run to the last.

use super::{
    curve::{Returning, median},
    fit::Shape,
    series::Kinds,
    study::Study,
};
use crate::{
    Verdict,
    assessment::{Mechanism, MemoryKind, Pattern, TreePart},
};

/// How much each kind grew over the run, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// Differences of the means at both ends.
    pub kinds: Kinds,
    /// Whether the source told kinds apart.
    pub split: bool,
    /// Whether the tree had more than its root, and the root was told apart.
    pub tree: bool,
}

impl Growth {
    /// Compares both ends of a run.
    pub fn of(study: &Study) -> Self {
        let bins = study.series.complete_bins();
        let bins = &bins[..bins.len() - study.curve.dying];
        let end = (bins.len() / 10).max(1);
        let at = |bins: &[super::series::Bin], kind: fn(&Kinds) -> f64| {
            median(bins.iter().map(|bin| kind(&bin.mean())).collect())
        };
        let grown = |kind: fn(&Kinds) -> f64| at(&bins[bins.len() - end..], kind) - at(&bins[..end], kind);
        let kinds = Kinds {
            owned: grown(|kinds| kinds.owned),
            anon: grown(|kinds| kinds.anon),
            file: grown(|kinds| kinds.file),
            shmem: grown(|kinds| kinds.shmem),
            swap: grown(|kinds| kinds.swap),
            main_rss: grown(|kinds| kinds.main_rss),
            rss: grown(|kinds| kinds.rss),
            pss: grown(|kinds| kinds.pss),
            procs: grown(|kinds| kinds.procs),
        };
        let any = |test: fn(&Kinds) -> bool| bins.iter().any(|bin| test(&bin.mean()));
        let split = any(|kinds| kinds.anon + kinds.file + kinds.shmem + kinds.swap > 0.0);
        let tree = any(|kinds| kinds.procs > 1.0 && kinds.main_rss < kinds.rss);
        Self { kinds, split, tree }
    }

    /// File-backed growth that one would see in the resident memory.
    pub fn file_growth(&self, study: &Study) -> Option<f64> {
        Some(self.kinds.file).filter(|file| *file > study.material().max(0.05 * study.curve.level))
    }
}

/// Where the growth of a run sits; `None` where nothing grows and nothing returns.
pub fn mechanism(study: &Study, growth: &Growth, verdict: Verdict) -> Option<Mechanism> {
    let pattern = pattern(study, verdict);
    if verdict == Verdict::Steady {
        let file = growth.file_growth(study).is_some();
        let memory = if file { MemoryKind::File } else { owned_kind(growth) };
        return (file || pattern.is_some()).then_some(Mechanism { memory, place: None, pattern });
    }
    Some(Mechanism { memory: owned_kind(growth), place: place(growth), pattern })
}

fn owned_kind(growth: &Growth) -> MemoryKind {
    let kinds = &growth.kinds;
    if !growth.split {
        MemoryKind::Resident
    } else if kinds.shmem > kinds.anon && kinds.shmem >= kinds.swap {
        MemoryKind::Shared
    } else if kinds.swap > kinds.anon.max(0.0) {
        MemoryKind::Swap
    } else {
        MemoryKind::Anonymous
    }
}

fn place(growth: &Growth) -> Option<TreePart> {
    if !growth.tree {
        return None;
    }
    let workers = growth.kinds.rss - growth.kinds.main_rss;
    Some(if workers > growth.kinds.main_rss { TreePart::Workers } else { TreePart::Parent })
}

/// What the verdict means for this run, in half a sentence.
pub fn meaning(study: &Study) -> &'static str {
    let risen = study.curve.y[study.curve.y.len() - 1] > study.curve.y[0];
    match (study.verdict, &study.explanation(|outlook| outlook.warm_up).shape) {
        (Verdict::WarmUp, _) if !risen => "fell, then levelled off",
        (Verdict::WarmUp, Shape::Stairs(_)) => "grew in jumps, then levelled off",
        (Verdict::WarmUp, Shape::Jump { .. }) => "grew in one jump, then levelled off",
        (Verdict::WarmUp, Shape::Hinge { .. } | Shape::TwoRates { .. }) => {
            "grew at a constant rate, then levelled off"
        }
        (Verdict::Leak, _) if study.before.is_some() => "goes on growing after a warm-up",
        (verdict, _) => verdict.meaning(),
    }
}

fn pattern(study: &Study, verdict: Verdict) -> Option<Pattern> {
    if let Some(returning) = study.curve.returning {
        return Some(match returning {
            Returning::Spikes { .. } => Pattern::Spikes,
            Returning::Sawtooth { .. } => Pattern::Sawtooth,
        });
    }
    match (verdict, &study.weighed[0].fit.shape) {
        (Verdict::Fill, _) => Some(Pattern::PerSample),
        (Verdict::Leak, Shape::Stairs(_)) => Some(Pattern::PerEvaluation),
        (Verdict::WarmUp | Verdict::Undecided, Shape::Stairs(_) | Shape::Jump { .. }) => {
            Some(Pattern::Stairs)
        }
        (Verdict::Leak, Shape::LateLine { .. }) => Some(Pattern::Late),
        (Verdict::Leak, _) => Some(Pattern::ConstantRate),
        (Verdict::Undecided, Shape::Line { .. } | Shape::TwoRates { .. }) => Some(Pattern::ConstantRate),
        (Verdict::WarmUp, Shape::Hinge { .. } | Shape::TwoRates { .. }) => Some(Pattern::LevelledOff),
        (Verdict::WarmUp, _) => Some(Pattern::SlowingDown),
        _ => None,
    }
}
