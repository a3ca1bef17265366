//! What to do next, for each verdict and each place where growth sits.

use super::{Axis, fit::Shape, study::Study, words::size};
use crate::{
    Assessment, ByteSize, Verdict,
    assessment::{MemoryKind, Pattern, TreePart},
    sentence::{Sentence, Setting},
    units::counted,
};

/// Sentences a person can act on, the most useful first. A run that `is_recorded` cannot be watched any
/// longer.
pub fn advice(study: &Study, assessment: &Assessment, is_recorded: bool) -> Vec<Sentence> {
    match assessment.verdict {
        Verdict::Steady => steady(study, assessment),
        Verdict::WarmUp => warm_up(study, assessment),
        Verdict::Fill => fill(study, assessment),
        Verdict::Leak => leak(assessment),
        Verdict::Undecided => undecided(study, assessment, is_recorded),
    }
}

fn is(assessment: &Assessment, memory: MemoryKind) -> bool {
    assessment.mechanism.as_ref().is_some_and(|mechanism| mechanism.memory == memory)
}

fn in_workers(assessment: &Assessment) -> bool {
    assessment.mechanism.as_ref().is_some_and(|mechanism| mechanism.place == Some(TreePart::Workers))
}

fn steady(study: &Study, assessment: &Assessment) -> Vec<Sentence> {
    if exceeds_limit(study, assessment) {
        let mut advice = fits(study, assessment);
        advice.push(
            "Nothing grows, so the run itself needs less: a smaller batch, shorter rows, fewer workers, or a higher limit."
                .into(),
        );
        return advice;
    }
    if is(assessment, MemoryKind::File) {
        return vec![
            "Nothing to do: mapped files (Arrow, safetensors, memmap) show up as resident memory and are dropped under pressure.".into(),
        ];
    }
    vec!["Nothing to do.".into()]
}

fn warm_up(study: &Study, assessment: &Assessment) -> Vec<Sentence> {
    let mut advice = fits(study, assessment);
    advice.push(
        "Pools, caches per input shape, optimizer state and allocator arenas grow like this and then stop; a restart brings it back."
            .into(),
    );
    let levelled = matches!(
        study.explanation(|outlook| outlook.warm_up).shape,
        Shape::Hinge { .. } | Shape::TwoRates { .. }
    );
    if levelled && study.epoch_steps.is_none() && study.axis == Axis::Steps {
        advice.push(Sentence::about(
            Setting::EpochLength,
            "With the length of the epoch it can be told whether growth ended with the first epoch, as it does where rows are kept.",
        ));
    }
    advice.push("To lower the ceiling: fewer distinct shapes (pad to buckets), MALLOC_ARENA_MAX=2, fewer loader workers.".into());
    advice
}

fn fill(study: &Study, assessment: &Assessment) -> Vec<Sentence> {
    let mut advice = fits(study, assessment);
    let cost = match (assessment.growth_per_sample, study.facts.dataset_size) {
        (Some(sample), Some(rows)) => {
            format!(": {} a row, {} for {}", size(sample), size(sample * rows as f64), counted(rows, "row"))
        }
        (Some(sample), None) => format!(": {} a row", size(sample)),
        _ => String::new(),
    };
    advice.push(format!("Every row stays in memory once it was touched{cost}.").into());
    if in_workers(assessment) {
        advice.push(
            "It sits in the workers: each keeps its own copy. Copy-on-write does this too: reference counts written to a list of objects that was forked."
                .into(),
        );
    }
    advice.push(
        "Code that does this: images opened lazily and kept in a list (the first access decodes them in place), a dataset with a cache, items stored on self in __getitem__."
            .into(),
    );
    advice.push("Decode into a copy per access (Image.open(...).convert('RGB') on a fresh file object), or keep bytes and paths only.".into());
    advice
}

fn exceeds_limit(study: &Study, assessment: &Assessment) -> bool {
    assessment.plateau.zip(study.facts.limit).is_some_and(|(plateau, limit)| plateau.bytes > limit)
}

/// Whether the plateau fits the limit, where there is one.
fn fits(study: &Study, assessment: &Assessment) -> Vec<Sentence> {
    let (Some(plateau), Some(limit)) = (assessment.plateau, study.facts.limit) else { return Vec::new() };
    let fits = if let Some(free) = study.facts.leave_free.filter(|_| plateau.bytes > limit) {
        format!("It does not fit now: {} beside {} to leave free.", ByteSize(plateau.bytes), ByteSize(free))
    } else if plateau.bytes > limit {
        format!("It will not fit: {} against a limit of {}.", ByteSize(plateau.bytes), ByteSize(limit))
    } else {
        format!("It fits: {} of {}.", ByteSize(plateau.bytes), ByteSize(limit))
    };
    vec![fits.into()]
}

fn leak(assessment: &Assessment) -> Vec<Sentence> {
    let mut advice = Vec::new();
    let pattern = assessment.mechanism.as_ref().and_then(|mechanism| mechanism.pattern);
    if pattern == Some(Pattern::PerEvaluation) {
        advice.push("It grows in equal jumps: look at what each evaluation or save keeps (predictions, metrics, loaders that are not closed).".into());
    }
    if is(assessment, MemoryKind::Shared) {
        advice.push("It is shared memory: list /dev/shm, look for tensors passed between processes and never freed, and for SharedMemory without unlink().".into());
    } else {
        advice.push("Look for what is kept per step: total_loss += loss keeps every graph (use loss.item() or detach()), lists of outputs, hooks, log buffers.".into());
    }
    if is(assessment, MemoryKind::Swap) {
        advice.push("It is being swapped out already: the run will slow down long before it ends.".into());
    }
    if in_workers(assessment) {
        advice.push("It sits in the workers: look at the dataset's __getitem__ and collate function; persistent_workers=False frees them each epoch.".into());
    }
    advice.push("Call gc.collect() every 100 steps: if growth stops, reference cycles are the cause.".into());
    advice.push("Run with MALLOC_ARENA_MAX=2, and call malloc_trim(0) once: if memory falls, the allocator kept it and nothing leaked.".into());
    if assessment.exhaustion.is_some() {
        advice.push(Sentence::about(
            Setting::RestartAtLimit,
            "Until the cause is found: checkpoint and restart before the limit.",
        ));
    }
    advice
}

/// How to get the samples that a decision takes: those from `step` on, where that is known.
pub fn more(step: Option<u64>, is_recorded: bool) -> Sentence {
    match (step, is_recorded) {
        (Some(step), false) => format!("Look again from step {step} on.").into(),
        (None, false) => "Watch for longer.".into(),
        (Some(step), true) => format!("A recording that reaches step {step} can decide it.").into(),
        (None, true) => Sentence::about(
            Setting::Recording,
            "These samples do not decide it. Record a longer part of the run, or record it more often.",
        ),
    }
}

fn undecided(study: &Study, assessment: &Assessment, is_recorded: bool) -> Vec<Sentence> {
    let mut advice = Vec::new();
    if study.epoch_steps.is_none() && study.outlook.filling > 0.0 {
        advice.push(Sentence::about(
            Setting::EpochLength,
            "Tell the length of the epoch: a fill ends with the first epoch, a leak does not.",
        ));
    }
    if in_workers(assessment) || matches!(study.weighed[0].fit.shape, Shape::Dealt { .. }) {
        advice.push(
            "Workers that cache rows do this: dealt other rows in every epoch, each comes to keep all of them, and growth ends after a few epochs at up to one copy per worker."
                .into(),
        );
    }
    advice.push(more(assessment.decidable_at_step, is_recorded));
    let too_high = |bytes: u64| study.facts.limit.is_some_and(|limit| bytes > limit);
    if assessment.endings.iter().any(|ending| ending.plateau.is_some_and(|plateau| too_high(plateau.bytes))) {
        advice.push("Even the bounded ending does not fit the limit: act now.".into());
    }
    advice
}
