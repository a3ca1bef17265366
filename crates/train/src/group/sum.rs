//! The sum of a step's gradients, the same bits on any number of processes.
//!
//! Takes the gradient of each micro-batch, and gives every process their sum, added in the order of the micro-batches. In a
//! round each process has one micro-batch: they swap parts, so that each adds up its own part of all values, and what was
//! added is put together at the end of the step. While a round is under way, the next micro-batch is computed.

use super::{Group, GroupError, Pending, link::Link};
use rayon::prelude::*;
use std::{
    mem,
    time::{Duration, Instant},
};

/// Values of one rank's part of a bucket: 1 MiB, long enough that what a message costs before its first byte does not count.
pub(crate) const PART: usize = 1 << 18;
/// Values that a thread adds at once.
const PIECE: usize = 1 << 16;

/// Adds up the gradients of a step.
#[derive(Debug)]
pub struct GradientSum {
    group: Group,
    /// Values of a whole gradient, with what makes it divide into equal parts.
    padded: usize,
    buffers: Option<Buffers>,
    /// A second gradient, to compute in while the first is on its way.
    spare: Vec<f32>,
    under_way: Option<Pending<Exchanged>>,
    /// Whether nothing was added in this step.
    is_first: bool,
    waited: Duration,
}

/// The buffers of an exchange when it is done: what was added up, and the gradient that was sent or collected.
type Exchanged = Result<(Buffers, Vec<f32>), GroupError>;

/// What a process adds up.
#[derive(Debug)]
struct Buffers {
    /// The sum so far: of this process's parts, or of everything where it is alone.
    sum: Vec<f32>,
    /// The same part of a bucket from every process.
    received: Vec<f32>,
}

/// Values of each buffer that a sum needs besides the gradient that is computed.
struct Room {
    padded: usize,
    sum: usize,
    received: usize,
    spare: usize,
}

impl Room {
    /// `batches` are the micro-batches of a step at most.
    fn new(values: usize, batches: u64, processes: usize) -> Self {
        if processes == 1 {
            return Self { padded: values, sum: if batches > 1 { values } else { 0 }, received: 0, spare: 0 };
        }
        let padded = values.next_multiple_of(processes);
        let sum = padded / processes;
        let spare = if batches > processes as u64 { padded } else { 0 };
        Self { padded, sum, received: processes * sum.min(PART), spare }
    }
}

/// Bytes that adding up takes besides the gradient that is computed, for steps of at most so many micro-batches.
pub(crate) fn bytes(values: usize, batches: u64, processes: usize) -> usize {
    let Room { padded, sum, received, spare } = Room::new(values, batches, processes);
    size_of::<f32>() * (padded - values + sum + received + spare)
}

impl GradientSum {
    /// Room for gradients of `values` values, of which a step has at most `batches`.
    pub fn new(group: Group, values: usize, batches: u64) -> Self {
        let Room { padded, sum, received, spare } = Room::new(values, batches, group.size());
        let zeros = |length| vec![0.0; length];
        let buffers = Some(Buffers { sum: zeros(sum), received: zeros(received) });
        let (under_way, waited) = Default::default();
        Self { group, padded, buffers, spare: zeros(spare), under_way, is_first: true, waited }
    }

    /// How long a gradient must be: at least as long as the values, and divisible into parts.
    pub fn length(&self) -> usize {
        self.padded
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.is_first = true;
        self.waited = Duration::ZERO;
    }

    /// Adds the gradients of a round: those of the first `contributions` processes, by rank. Leaves a buffer to compute the
    /// next one in, with any values.
    pub fn add(&mut self, gradient: &mut Vec<f32>, contributions: usize) -> Result<(), GroupError> {
        let is_first = mem::take(&mut self.is_first);
        if self.group.size() == 1 {
            self.add_alone(gradient, is_first);
            return Ok(());
        }
        self.wait()?;
        let mut buffers = self.buffers.take().ok_or(GroupError::Lost)?;
        let sent = mem::replace(gradient, mem::take(&mut self.spare));
        let exchange = move |link: &mut dyn Link| {
            buffers.add_round(link, &sent, contributions, is_first)?;
            Ok((buffers, sent))
        };
        self.under_way = Some(self.group.submit(exchange)?);
        Ok(())
    }

    fn add_alone(&mut self, gradient: &mut Vec<f32>, is_first: bool) {
        match &mut self.buffers {
            Some(Buffers { sum, .. }) if !sum.is_empty() && is_first => mem::swap(sum, gradient),
            Some(Buffers { sum, .. }) if !sum.is_empty() => {
                let pieces = sum.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
                pieces.for_each(|(sum, more)| add(sum, more));
            }
            // A step of one micro-batch: its gradient is the sum.
            _ => {}
        }
    }

    /// Ends a step: `gradient` is the sum of all that was added.
    pub fn finish(&mut self, gradient: &mut Vec<f32>) -> Result<(), GroupError> {
        if self.group.size() == 1 {
            if let Some(Buffers { sum, .. }) = self.buffers.as_mut().filter(|buffers| !buffers.sum.is_empty())
            {
                mem::swap(sum, gradient);
            }
            return Ok(());
        }
        self.wait()?;
        let buffers = self.buffers.take().ok_or(GroupError::Lost)?;
        let mut all = mem::take(&mut self.spare);
        let collect = move |link: &mut dyn Link| {
            buffers.collect(link, &mut all)?;
            Ok((buffers, all))
        };
        self.under_way = Some(self.group.submit(collect)?);
        self.wait()?;
        mem::swap(gradient, &mut self.spare);
        Ok(())
    }

    /// Ends a step that comes to nothing: `gradient` is a buffer to compute in, with any values. Nothing is asked of others.
    pub fn discard(&mut self, gradient: &mut Vec<f32>) -> Result<(), GroupError> {
        self.wait()?;
        if gradient.len() < self.padded {
            mem::swap(gradient, &mut self.spare);
        }
        Ok(())
    }

    /// How long this process waited for others in this step.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits for what is under way, and takes its buffers back.
    fn wait(&mut self) -> Result<(), GroupError> {
        let Some(under_way) = self.under_way.take() else { return Ok(()) };
        let begun = Instant::now();
        let (buffers, gradient) = under_way.wait()??;
        self.waited += begun.elapsed();
        (self.buffers, self.spare) = (Some(buffers), gradient);
        Ok(())
    }
}

impl Buffers {
    /// Swaps the parts of all buckets, and adds what arrives in the order of the ranks.
    fn add_round(
        &mut self,
        link: &mut dyn Link,
        gradient: &[f32],
        contributions: usize,
        is_first: bool,
    ) -> Result<(), GroupError> {
        let processes = link.size();
        // On this thread alone: those of the pool compute the next micro-batch.
        for (sum, bucket) in self.sum.chunks_mut(PART).zip(gradient.chunks(processes * PART)) {
            let received = &mut self.received[..bucket.len()];
            link.exchange(bucket, received)?;
            for (rank, theirs) in received.chunks(sum.len()).take(contributions).enumerate() {
                match is_first && rank == 0 {
                    true => sum.copy_from_slice(theirs),
                    false => add(sum, theirs),
                }
            }
        }
        Ok(())
    }

    /// Puts the sums of all processes together.
    fn collect(&self, link: &mut dyn Link, all: &mut [f32]) -> Result<(), GroupError> {
        let processes = link.size();
        let mut buckets = self.sum.chunks(PART).zip(all.chunks_mut(processes * PART));
        buckets.try_for_each(|(sum, bucket)| link.collect(sum, bucket))
    }
}

fn add(sum: &mut [f32], more: &[f32]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::threads;

    /// The gradient of a micro-batch: values of many sizes, so that another order of additions gives other bits.
    fn gradient(batch: u64, values: usize, padded: usize) -> Vec<f32> {
        let mut state = batch * 7919 + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 - 8e6) * [1e-6, 1.0, 3e3][(state >> 33) as usize % 3]
        };
        (0..padded).map(|index| if index < values { next() } else { 0.0 }).collect()
    }

    /// The sums of some steps, each of `batches` micro-batches, as the first process has them.
    fn sums(group: Group, values: usize, steps: &[u64]) -> Vec<Vec<u32>> {
        let most = *steps.iter().max().unwrap();
        let processes = group.size() as u64;
        let mut sum = GradientSum::new(group.clone(), values, most);
        let mut current = vec![0.0; sum.length()];
        let mut results = Vec::new();
        for (step, batches) in steps.iter().enumerate() {
            sum.begin();
            let mut done = 0;
            while done < *batches {
                let contributions = processes.min(batches - done);
                let own = done + group.rank() as u64;
                let garbage = vec![f32::NAN; current.len()];
                let computed = gradient(100 * step as u64 + own, values, current.len());
                current.copy_from_slice(if own < *batches { &computed } else { &garbage });
                sum.add(&mut current, contributions as usize).unwrap();
                done += contributions;
            }
            sum.finish(&mut current).unwrap();
            assert!(current.len() >= values);
            results.push(current[..values].iter().map(|value| value.to_bits()).collect());
        }
        results
    }

    #[test]
    fn the_sum_has_the_same_bits_on_any_number_of_processes() {
        for values in [1, 5, 1003, 2 * PART + 17] {
            let steps = [8, 5, 8, 4];
            let alone = sums(Group::alone(), values, &steps);
            let by_hand = (1..8)
                .map(|batch| gradient(batch, values, values))
                .fold(gradient(0, values, values), |sum, more| {
                    sum.iter().zip(more).map(|(sum, more)| sum + more).collect()
                });
            assert_eq!(alone[0], by_hand.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
            for processes in [2, 3, 4] {
                for (rank, sums) in
                    threads::run(processes, |group| sums(group, values, &steps)).iter().enumerate()
                {
                    assert!(*sums == alone, "{values} values, rank {rank} of {processes}");
                }
            }
        }
    }

    #[test]
    fn a_step_that_comes_to_nothing_leaves_a_buffer_and_no_trace_in_the_next() {
        for (processes, batches) in [(1, 1), (1, 3), (3, 3), (3, 5)] {
            let after_nothing = threads::run(processes, |group| {
                let mut sum = GradientSum::new(group.clone(), 7, batches);
                let mut current = vec![0.0; sum.length()];
                let mut step = |gradients: &[f32], is_kept: bool| {
                    sum.begin();
                    for round in gradients.chunks(processes) {
                        current.fill(round.get(group.rank()).copied().unwrap_or(f32::NAN));
                        sum.add(&mut current, round.len()).unwrap();
                    }
                    match is_kept {
                        true => sum.finish(&mut current).unwrap(),
                        false => sum.discard(&mut current).unwrap(),
                    }
                    assert!(current.len() >= 7, "there is a buffer to look at and to compute in");
                    current[6]
                };
                let gradients: Vec<f32> = (1..=batches).map(|batch| batch as f32).collect();
                step(&gradients, false);
                step(&gradients[..1], false);
                step(&gradients, true)
            });
            let expected = (1..=batches).sum::<u64>() as f32;
            assert_eq!(after_nothing, vec![expected; processes], "{processes} processes, {batches} batches");
        }
    }

    #[test]
    fn one_micro_batch_a_step_needs_no_room_and_many_need_a_second_gradient() {
        assert_eq!(bytes(1000, 1, 1), 0);
        assert_eq!(bytes(1000, 2, 1), 4 * 1000);
        // Parts of 334 values, received from three; nothing is computed while the only round is under way.
        assert_eq!(bytes(1000, 3, 3), 4 * (2 + 334 + 3 * 334));
        assert_eq!(bytes(1000, 4, 3), 4 * (2 + 334 + 3 * 334 + 1002));
    }
}
