//! One optimizer step, computed by one process or by several.
//!
//! Takes the batches of a step. Each process computes those that are its own, round by round, and all of them learn what every
//! batch came to: sums are added in the order of the batches, so no figure depends on how many processes there are. A process
//! that fails in the middle goes on with its part in the talks, and then every process knows.

use super::{
    BatchSource, BatchSums, BoxError, Control, GroupFacts, Learner, Move, NotMoved, StepFacts, StopReason,
    TrainError, Trainer,
};
use garden_data::Position;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What one process came to in a step.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Part {
    batches: Vec<NumberedSums>,
    failure: Option<String>,
    bad_rows: u64,
    /// The learning rate. That of the first process counts: mathematical libraries differ in last bits.
    rate: f64,
    computed_seconds: f64,
}

/// The sums of a batch, with its number in the step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct NumberedSums {
    number: u64,
    /// The loss as bits: JSON has no NaN.
    loss: u64,
    sums: BatchSums,
}

impl NumberedSums {
    pub fn new(number: u64, sums: BatchSums) -> Self {
        Self { number, loss: sums.loss.to_bits(), sums: BatchSums { loss: 0.0, ..sums } }
    }

    /// Adds up in the order of the batches, whoever computed them.
    pub fn add_up(parts: impl IntoIterator<Item = Self>) -> BatchSums {
        let mut parts: Vec<Self> = parts.into_iter().collect();
        parts.sort_unstable_by_key(|part| part.number);
        parts.into_iter().fold(BatchSums::default(), |mut all, part| {
            all += BatchSums { loss: f64::from_bits(part.loss), ..part.sums };
            all
        })
    }
}

impl<L: Learner, S: BatchSource<Batch = L::Batch>> Trainer<'_, '_, L, S> {
    /// One optimizer step, and whether it was the last of its epoch; nothing if the epoch has no batch left.
    pub(super) fn step(&mut self) -> Result<Option<(StepFacts, bool)>, TrainError> {
        let step = self.state.global_step + 1;
        let failed = |source| TrainError::Step { step, source };
        let begun_at = self.progress.position;
        let start = Instant::now();
        let mut facts = StepFacts::default();
        // All rows of a step may turn out bad: then the step is made of the next ones.
        while facts.sums.rows == 0 {
            let batches = self.data.ahead(self.settings.accumulation).map_err(failed)?;
            if batches == 0 {
                if begun_at.row == 0 {
                    return Err(TrainError::NoData);
                }
                self.progress.position = Position::start_of(begun_at.epoch + 1);
                return Ok(None);
            }
            self.compute(batches, &mut facts)?;
            if facts.sums.rows == 0 {
                self.learner.drop_step().map_err(failed)?;
            }
            if batches < self.settings.accumulation {
                self.progress.position = Position::start_of(begun_at.epoch + 1);
            }
        }
        let how =
            Move { rate: facts.learning_rate, label_tokens: facts.sums.label_tokens, loss: facts.sums.loss };
        let moved = self.learner.end_step(how).map_err(|error| match error {
            NotMoved::Diverged { what, value } => TrainError::Diverged { step, what, value },
            NotMoved::Failed(source) => failed(source),
        })?;
        facts.sums.loss = moved.loss;
        facts.gradient_norm = moved.gradient_norm;
        facts.seconds = start.elapsed().as_secs_f64();
        if let Some(group) = &mut facts.group {
            group.waited_seconds = self.learner.waited().as_secs_f64();
        }
        Ok(Some((facts, self.progress.position.epoch > begun_at.epoch)))
    }

    /// Computes the batches of a step, and tells what all of them came to.
    fn compute(&mut self, batches: u64, facts: &mut StepFacts) -> Result<(), TrainError> {
        let step = self.state.global_step + 1;
        let (start, processes) = (Instant::now(), self.group.size() as u64);
        let rate = self.schedule.rate(self.state.global_step);
        let (mut part, mut failure) = (Part { rate, ..Part::default() }, None);
        self.learner.begin_step();
        for number in 0..batches {
            if failure.is_none() {
                match self.compute_batch(step, number, facts) {
                    Ok(sums) => part.batches.extend(sums.map(|sums| NumberedSums::new(number, sums))),
                    Err(error) => failure = Some(error),
                }
            }
            let in_round = number % processes + 1;
            if in_round == processes || number + 1 == batches {
                let ended = self.learner.end_round(in_round as usize);
                ended.map_err(|source| TrainError::Step { step, source })?;
            }
        }
        part.failure = failure.as_ref().map(ToString::to_string);
        part.bad_rows = self.data.bad_rows();
        part.computed_seconds = start.elapsed().saturating_sub(self.learner.waited()).as_secs_f64();
        let parts = self.group.gather(&part)?;
        let reported = |(rank, part): (usize, &Part)| {
            part.failure.as_ref().map(|reason| BoxError::from(format!("rank {rank}: {reason}")))
        };
        // This process knows more of its own failure than its words.
        if let Some(source) = failure.or_else(|| parts.iter().enumerate().find_map(reported)) {
            return Err(TrainError::Step { step, source });
        }
        let bad_rows = parts.iter().map(|part| part.bad_rows).sum();
        self.data.check_bad_rows(bad_rows).map_err(|source| TrainError::Step { step, source })?;
        facts.learning_rate = parts[0].rate;
        facts.group = group_facts(&parts);
        facts.sums = NumberedSums::add_up(parts.into_iter().flat_map(|part| part.batches));
        Ok(())
    }

    /// The sums of a batch, if it is this process's.
    fn compute_batch(
        &mut self,
        step: u64,
        number: u64,
        facts: &mut StepFacts,
    ) -> Result<Option<BatchSums>, BoxError> {
        let asked = Instant::now();
        let next = self.data.next()?;
        facts.data_seconds += asked.elapsed().as_secs_f64();
        let next = next.ok_or("the rows end before the epoch does")?;
        self.progress.position = next.end;
        let Some(batch) = next.batch else { return Ok(None) };
        let sums = self.learner.add(&batch, mix(self.settings.seed, step, number))?;
        self.data.recycle(batch);
        Ok(Some(sums))
    }

    /// What the callbacks of any process ask for, all processes do.
    pub(super) fn agree(&self, control: &mut Control) -> Result<(), TrainError> {
        if self.group.size() == 1 {
            return Ok(());
        }
        let asked = self.group.gather(control)?;
        control.save = asked.iter().any(|asked| asked.save);
        let stops = asked.into_iter().enumerate().filter_map(|(rank, asked)| Some((rank, asked.stop?)));
        let named = stops.map(|(rank, stop)| match stop {
            StopReason::MemoryLimit(reason) => StopReason::MemoryLimit(format!("rank {rank}: {reason}")),
            other => other,
        });
        control.stop = named.min_by_key(|stop| match stop {
            StopReason::MemoryLimit(_) => 0,
            StopReason::Cancelled => 1,
            StopReason::EarlyStopping => 2,
        });
        Ok(())
    }
}

/// What a step was like for several processes.
fn group_facts(parts: &[Part]) -> Option<GroupFacts> {
    let seconds = |part: &Part| part.computed_seconds;
    let slowest = (0..parts.len()).max_by(|a, b| seconds(&parts[*a]).total_cmp(&seconds(&parts[*b])))?;
    let fastest = parts.iter().map(seconds).fold(f64::INFINITY, f64::min);
    let apart_seconds = seconds(&parts[slowest]) - fastest;
    (parts.len() > 1).then_some(GroupFacts { waited_seconds: 0.0, slowest, apart_seconds })
}

/// A seed for each batch of each step, by the finaliser of SplitMix64.
fn mix(seed: u64, step: u64, batch: u64) -> u64 {
    let mut x = seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ batch.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
