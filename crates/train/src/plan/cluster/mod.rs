//! How long a step takes on several nodes, estimated before any of them runs.
//!
//! Takes the work of a step, the network between the nodes, and their number. Gives the seconds of a step, part by
//! part, and the memory that adding up gradients takes in each process. One process runs on each node.
//!
//! The model: a round computes one micro-batch in every process. Then the processes swap parts of their gradients, and
//! each adds up its own part. The swap runs while the next round is computed; only the last one of a step is waited for,
//! and so is the collection of all parts at the end. A transfer takes a fixed time a message and its bytes through the
//! bandwidth.

mod bandwidth;
mod operations;
mod report;

pub use bandwidth::{BadBandwidth, Bandwidth};

use super::{MPI, Planned, Setting};
use crate::{config::Method, group};
use garden_model::{MatrixShape, PlanError, trained_shapes};
use operations::Operations;
use std::time::Duration;

/// Values of one process's part of a bucket: gradients are sent in buckets of one part for each process.
const PART: u64 = group::PART as u64;
/// Bytes of a value of a gradient.
const VALUE: u64 = size_of::<f32>() as u64;
/// Floating-point operations a second of two threads of a Xeon with AVX-512 (docs/engine.md, "Matrix products"), where
/// nothing is known of the nodes.
const ASSUMED_RATE: f64 = 300e9;

/// The connection of each node to all others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// What a node sends, and at the same time receives.
    pub bandwidth: Bandwidth,
    /// The time of a message besides that of its bytes.
    pub latency: Duration,
}

impl Network {
    fn seconds(&self, messages: u64, bytes: f64) -> f64 {
        messages as f64 * self.latency.as_secs_f64() + 8.0 * bytes / self.bandwidth.bits_per_second()
    }
}

/// How fast a node computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// A micro-batch takes so many seconds.
    Measured {
        /// Seconds of one micro-batch, forward and backward.
        batch_seconds: f64,
    },
    /// A node computes so many floating-point operations a second.
    Rated {
        /// Operations a second.
        rate: f64,
    },
    /// Nothing is known: as fast as two threads of a Xeon with AVX-512.
    Unknown,
}

/// Nodes to train on.
#[derive(Debug, Clone, PartialEq)]
pub struct Nodes {
    /// The numbers of nodes to compare.
    pub counts: Vec<u64>,
    /// What connects them.
    pub network: Network,
    /// How fast one computes.
    pub speed: Speed,
}

/// What a step is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWork {
    /// Values that are trained, each with a gradient.
    pub trained_values: u64,
    /// Micro-batches, over all processes.
    pub micro_batches: u64,
    /// Seconds that a node computes for a micro-batch.
    pub batch_seconds: f64,
}

impl StepWork {
    /// The step on so many nodes. It has a micro-batch for each of them, even if fewer were asked for.
    pub fn on(&self, nodes: u64, network: &Network) -> StepTime {
        let micro_batches = self.micro_batches.max(nodes);
        let rounds = micro_batches.div_ceil(nodes);
        let Self { trained_values, batch_seconds, .. } = *self;
        let compute_seconds = rounds as f64 * batch_seconds;
        let transfer = transfer_seconds(trained_values, nodes, network);
        let behind = (rounds - 1) as f64;
        StepTime {
            nodes,
            micro_batches,
            rounds,
            compute_seconds,
            // What no computation hides, the last swap, and the collection of all parts.
            exposed_seconds: behind * (transfer - batch_seconds).max(0.0) + 2.0 * transfer,
            hidden_seconds: behind * transfer.min(batch_seconds),
            idle_seconds: (rounds * nodes - micro_batches) as f64 / nodes as f64 * batch_seconds,
            gradient_bytes: VALUE * trained_values
                + group::bytes(trained_values as usize, micro_batches, nodes as usize) as u64,
        }
    }
}

/// Seconds to swap the parts of a gradient between all processes, or to collect the sums of all parts: both send the
/// same bytes.
fn transfer_seconds(values: u64, nodes: u64, network: &Network) -> f64 {
    let buckets = values.div_ceil(nodes).div_ceil(PART);
    let others = nodes - 1;
    network.seconds(buckets * others, (VALUE * values) as f64 * others as f64 / nodes as f64)
}

/// The time of a step on some nodes, part by part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// How many nodes.
    pub nodes: u64,
    /// Micro-batches of the step: one for each node at least.
    pub micro_batches: u64,
    /// Micro-batches that one process computes, one after another.
    pub rounds: u64,
    /// Seconds of computation.
    pub compute_seconds: f64,
    /// Seconds of transfers that every process waits for.
    pub exposed_seconds: f64,
    /// Seconds of transfers behind a computation.
    pub hidden_seconds: f64,
    /// Seconds of the last round in which a process has nothing to compute, on average over the processes.
    pub idle_seconds: f64,
    /// Bytes of a process for gradients and their sum.
    pub gradient_bytes: u64,
}

impl StepTime {
    /// Seconds of the whole step.
    pub fn step_seconds(&self) -> f64 {
        self.compute_seconds + self.exposed_seconds
    }

    /// The time of the same step on one node, divided by the time of all these nodes: 1 where nothing is lost.
    pub fn efficiency(&self) -> f64 {
        (self.compute_seconds - self.idle_seconds) / self.step_seconds()
    }
}

/// A run on several nodes, estimated for several numbers of them.
pub struct Cluster {
    work: StepWork,
    /// Rows of a micro-batch.
    batch_size: u64,
    nodes: Nodes,
    /// Floating-point operations of a micro-batch.
    operations: f64,
    steps: Vec<StepTime>,
    /// Bytes of a process besides its gradients.
    other_bytes: u64,
    written: fn(&Setting) -> String,
}

impl Cluster {
    pub(super) fn of(
        planned: &Planned,
        nodes: Nodes,
        written: fn(&Setting) -> String,
    ) -> Result<Self, PlanError> {
        let Planned { config, model, load, plan, .. } = planned;
        let lora = match config.method {
            Method::Lora => Some(config.lora.settings()?),
            Method::Full => None,
        };
        let trained = trained_shapes(model, lora.as_ref())?;
        let operations = Operations { model, shapes: load.shapes, rows: config.batch_size, plan };
        let operations = operations.total(config.method);
        let work = StepWork {
            trained_values: trained.into_iter().map(|shape| MatrixShape::elements(shape) as u64).sum(),
            micro_batches: config.accumulation,
            batch_seconds: match nodes.speed {
                Speed::Measured { batch_seconds } => batch_seconds,
                Speed::Rated { rate } => operations / rate,
                Speed::Unknown => operations / ASSUMED_RATE,
            },
        };
        let steps = nodes.counts.iter().map(|count| work.on(*count, &nodes.network)).collect();
        let other_bytes = (plan.total() - plan.gradients) as u64;
        Ok(Self { work, batch_size: config.batch_size, nodes, operations, steps, other_bytes, written })
    }

    /// Rows that all nodes train on in a second.
    fn rows_per_second(&self, step: &StepTime) -> f64 {
        (step.micro_batches * self.batch_size) as f64 / step.step_seconds()
    }

    /// Bytes of one process.
    fn process_bytes(&self, step: &StepTime) -> u64 {
        self.other_bytes + step.gradient_bytes + if step.nodes > 1 { MPI as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LoRA of rank 16 on all layers of the 3B model.
    const LORA_3B: u64 = 41_084_928;

    fn network(bandwidth: &str, microseconds: u64) -> Network {
        Network { bandwidth: bandwidth.parse().unwrap(), latency: Duration::from_micros(microseconds) }
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 1e-9 * expected.abs().max(1.0)
    }

    #[test]
    fn a_step_is_computed_as_by_hand() {
        // 1000 values are 4000 bytes; four nodes send 3000 of them, in 3 messages of 0.5 s and 1 s of bytes.
        let network = Network { bandwidth: "24kb".parse().unwrap(), latency: Duration::from_millis(500) };
        let work = StepWork { trained_values: 1000, micro_batches: 10, batch_seconds: 4.0 };
        let step = work.on(4, &network);
        assert_eq!((step.nodes, step.micro_batches, step.rounds), (4, 10, 3));
        // Three rounds; the last has two micro-batches for four nodes, so half of its time is idle.
        assert!(near(step.compute_seconds, 12.0) && near(step.idle_seconds, 2.0), "{step:?}");
        // A transfer takes 2.5 s: two hide behind rounds, the third and the collection do not.
        assert!(near(step.hidden_seconds, 5.0) && near(step.exposed_seconds, 5.0), "{step:?}");
        assert!(near(step.step_seconds(), 17.0) && near(step.efficiency(), 40.0 / (4.0 * 17.0)), "{step:?}");
    }

    #[test]
    fn a_transfer_longer_than_a_round_is_waited_for() {
        let network = Network { bandwidth: "24kb".parse().unwrap(), latency: Duration::from_millis(500) };
        let work = StepWork { trained_values: 1000, micro_batches: 12, batch_seconds: 1.0 };
        let step = work.on(4, &network);
        // Two transfers of 2.5 s begin a round each, which hides 1 s; the last two hide behind nothing.
        assert!(near(step.hidden_seconds, 2.0) && near(step.exposed_seconds, 2.0 * 1.5 + 5.0), "{step:?}");
        assert!(near(step.step_seconds(), 11.0) && near(step.idle_seconds, 0.0), "{step:?}");
    }

    #[test]
    fn one_node_sends_nothing_and_loses_nothing() {
        let work = StepWork { trained_values: LORA_3B, micro_batches: 8, batch_seconds: 4.4 };
        let step = work.on(1, &network("1Gb", 100));
        assert!(near(step.step_seconds(), 35.2) && near(step.efficiency(), 1.0), "{step:?}");
        assert_eq!((step.exposed_seconds, step.hidden_seconds, step.idle_seconds), (0.0, 0.0, 0.0));
    }

    #[test]
    fn more_nodes_than_micro_batches_get_one_each() {
        let work = StepWork { trained_values: 1000, micro_batches: 4, batch_seconds: 1.0 };
        let step = work.on(64, &network("10Gb", 75));
        assert_eq!((step.micro_batches, step.rounds, step.idle_seconds), (64, 1, 0.0));
    }

    #[test]
    fn messages_are_counted_by_buckets_and_by_processes() {
        let slow = Network { bandwidth: "1000Tb".parse().unwrap(), latency: Duration::from_secs(1) };
        let messages = |values, nodes| transfer_seconds(values, nodes, &slow).round() as u64;
        assert_eq!(messages(8 * PART, 8), 7);
        assert_eq!(messages(8 * PART + 1, 8), 2 * 7);
        assert_eq!(messages(100, 512), 511);
    }

    /// The published figures are of ring transfers with 50 to 100 us a message; ours go in pairs and in buckets. The two
    /// agree within 25 %.
    #[test]
    fn a_swap_and_a_collection_take_about_what_was_computed_for_3b_elsewhere() {
        let published =
            [("10Gb", [(8, 0.23), (64, 0.27), (512, 0.31)]), ("1Gb", [(8, 2.3), (64, 2.6), (512, 2.7)])];
        for (bandwidth, figures) in published {
            for (nodes, expected) in figures {
                let seconds = 2.0 * transfer_seconds(LORA_3B, nodes, &network(bandwidth, 75));
                assert!(
                    (0.75..1.25).contains(&(seconds / expected)),
                    "{bandwidth}, {nodes}: {seconds}, {expected}"
                );
            }
        }
        let efficiency = |bandwidth, seconds| {
            let work = StepWork { trained_values: LORA_3B, micro_batches: 512, batch_seconds: seconds };
            work.on(512, &network(bandwidth, 75)).efficiency()
        };
        assert!((efficiency("10Gb", 35.0) - 0.99).abs() < 0.005, "{}", efficiency("10Gb", 35.0));
        assert!((efficiency("1Gb", 35.0) - 0.93).abs() < 0.005, "{}", efficiency("1Gb", 35.0));
    }

    #[test]
    fn nothing_is_ever_gained_by_a_slower_network_or_lost_by_a_faster_one() {
        let bandwidths = ["100Mb", "1Gb", "10Gb", "25Gb", "100Gb"];
        for (nodes, micro_batches, batch_seconds) in [2, 3, 8, 64, 512]
            .into_iter()
            .flat_map(|n| [n, 3 * n, 3 * n + 1].map(|m| (n, m, 0.01 * m as f64)))
        {
            let work = StepWork { trained_values: LORA_3B, micro_batches, batch_seconds };
            let steps = bandwidths.map(|bandwidth| work.on(nodes, &network(bandwidth, 75)));
            let seconds = steps.map(|step| step.step_seconds());
            assert!(seconds.is_sorted_by(|slow, fast| slow >= fast), "{nodes}, {micro_batches}: {seconds:?}");
            assert!(
                steps.iter().all(|step| step.efficiency() > 0.0 && step.efficiency() <= 1.0),
                "{steps:?}"
            );
            let late = work.on(nodes, &network("1Gb", 100)).step_seconds();
            assert!(late >= seconds[1], "{nodes}, {micro_batches}: a longer latency takes longer");
        }
    }
}
