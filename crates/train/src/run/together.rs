//! What the processes of a run make sure of before they train together, and what they tell of each other.
//!
//! Takes what each process is about to do. Refuses to begin where the result would depend on which process does what: other
//! settings, other rows, another model, other instructions. A single process passes through.

use super::{RunData, RunError};
use crate::{
    cancel::Cancel, checkpoint::Checkpoint, config::RunConfig, group::Group, monitor::MemorySummary,
    resume::RunIdentity, rows::Rows,
};
use garden_data::RowError;
use garden_memory::{ByteSize, Verdict};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Rows that the survey found bad and that are named at the end; `dataset check` names more.
const NAMED_ROWS: usize = 20;

/// Whether any process was asked to end.
pub(super) fn is_cancelled(group: &Group, cancel: &Cancel) -> Result<bool, RunError> {
    Ok(group.gather(&cancel.is_cancelled())?.contains(&true))
}

/// Refuses settings that several processes cannot share.
pub(super) fn check(config: &RunConfig, group: &Group) -> Result<(), RunError> {
    let (accumulation, processes) = (config.accumulation, group.size());
    if accumulation < processes as u64 {
        return Err(RunError::FewBatches { accumulation, processes });
    }
    if processes > 1 && config.engine.is_python() {
        return Err(RunError::EngineInGroup(config.engine));
    }
    Ok(())
}

/// Refuses processes that would compute something else than the first.
pub(super) fn compare(config: &RunConfig, identity: &RunIdentity, group: &Group) -> Result<(), RunError> {
    if group.size() == 1 {
        return Ok(());
    }
    let cards = group.gather(&card(config, identity))?;
    let differs = cards.iter().enumerate().find_map(|(rank, card)| {
        let (name, here) = cards[0].iter().find(|(name, here)| card.get(*name) != Some(*here))?;
        let there = card.get(name).map_or("missing", String::as_str);
        Some(RunError::Unlike { rank, differs: format!("{name} is {there} there and {here} here") })
    });
    differs.map_or(Ok(()), Err)
}

/// Everything that decides what a process does and when, by name.
fn card(config: &RunConfig, identity: &RunIdentity) -> BTreeMap<String, String> {
    let settings = identity.settings().iter().map(|(name, value)| (name.replace('_', "-"), value.clone()));
    let base = identity.base().iter().map(|(part, sum)| (format!("the model's {part}"), sum.clone()));
    let trainer = config.trainer();
    let rhythm = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("logging-steps", trainer.logging_steps.to_string()),
        ("the rhythm of evaluations", format!("{:?}", trainer.evaluate)),
        ("the rhythm of checkpoints", format!("{:?}", trainer.save)),
        ("early-stopping-patience", format!("{:?}", config.early_stopping_patience)),
    ];
    settings.chain(base).chain(rhythm.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// Refuses processes that read other rows than the first.
pub(super) fn compare_rows(fingerprint: u64, group: &Group) -> Result<(), RunError> {
    let marks = group.gather(&fingerprint)?;
    let other = marks.iter().position(|mark| *mark != marks[0]);
    other.map_or(Ok(()), |rank| Err(RunError::OtherRows { rank }))
}

/// The checkpoint that the first process chose, if all can read it.
pub(super) fn checkpoint(
    group: &Group,
    choose: impl FnOnce() -> Result<Option<Checkpoint>, RunError>,
) -> Result<Option<Checkpoint>, RunError> {
    let chosen = group.by_first(choose, || None)?;
    let place: Option<(u64, PathBuf)> =
        group.of_first(|| chosen.map(|checkpoint| (checkpoint.step, checkpoint.path)))?;
    let Some((step, path)) = place else { return Ok(None) };
    let missing = group.gather(&path.is_dir())?.iter().position(|is_there| !is_there);
    match missing {
        Some(rank) => Err(RunError::NotShared { path, rank }),
        None => Ok(Some(Checkpoint { step, path })),
    }
}

/// How many processes of the group are on this machine.
pub(super) fn beside(group: &Group) -> Result<usize, RunError> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(group.gather(&host)?.iter().filter(|other| **other == host).count())
}

/// What became of the rows that a process read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct LeftOut {
    pub too_long: u64,
    pub no_label: u64,
    pub bad: u64,
    /// The first bad rows, and those of the evaluation.
    pub bad_rows: Vec<String>,
    pub bad_to_evaluate: Vec<String>,
}

/// What became of the rows of all processes: those that the survey found unusable, and those that turned out so when they were
/// read.
pub(super) fn left_out(group: &Group, data: &RunData) -> Result<LeftOut, RunError> {
    let (tally, evaluated) = (data.training.tally(), data.evaluation.as_ref().map(Rows::tally));
    let words = |rows: &[RowError]| rows.iter().map(ToString::to_string).collect::<Vec<_>>();
    let own = LeftOut {
        too_long: tally.too_long,
        no_label: tally.no_label,
        bad: tally.bad,
        bad_rows: words(&tally.bad_rows),
        bad_to_evaluate: words(&evaluated.map(|tally| tally.bad_rows).unwrap_or_default()),
    };
    let found = data.survey.rest();
    let surveyed = LeftOut {
        too_long: found.too_long,
        no_label: found.no_label,
        bad: found.bad,
        bad_rows: words(&data.survey.bad_rows[..data.survey.bad_rows.len().min(NAMED_ROWS)]),
        bad_to_evaluate: words(&data.bad_to_evaluate[..data.bad_to_evaluate.len().min(NAMED_ROWS)]),
    };
    Ok(group.gather(&own)?.into_iter().fold(surveyed, |mut all, more| {
        all.too_long += more.too_long;
        all.no_label += more.no_label;
        all.bad += more.bad;
        all.bad_rows.extend(more.bad_rows);
        all.bad_to_evaluate.extend(more.bad_to_evaluate);
        all
    }))
}

/// The memory of one process of several.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RankMemory {
    verdict: Verdict,
    peak: u64,
    resident: u64,
}

/// What each process came to, by rank.
pub(super) fn memory_of_all(group: &Group, memory: &MemorySummary) -> Result<Vec<RankMemory>, RunError> {
    let verdict = &memory.verdict;
    let own = RankMemory { verdict: verdict.verdict, peak: memory.peak, resident: verdict.resident_bytes };
    Ok(group.gather(&own)?)
}

/// A sentence about the process whose memory is worst, where there are several.
pub(super) fn worst(ranks: &[RankMemory]) -> Option<String> {
    let badness = |memory: &RankMemory| {
        let verdict = match memory.verdict {
            Verdict::Leak => 4,
            Verdict::Undecided => 3,
            Verdict::Fill => 2,
            Verdict::WarmUp => 1,
            Verdict::Steady => 0,
        };
        (verdict, memory.peak)
    };
    let (rank, worst) = ranks.iter().enumerate().max_by_key(|(_, memory)| badness(memory))?;
    let alike = ranks.iter().filter(|memory| memory.verdict == worst.verdict).count();
    (ranks.len() > 1).then(|| {
        format!(
            "{alike} of {} processes are {}; rank {rank} is the worst, with a peak of {}",
            ranks.len(),
            worst.verdict.name(),
            ByteSize(worst.peak)
        )
    })
}
