//! The least memory that a run could do with, and the flags that get there.
//!
//! Takes a run and plans it again with one row a batch and every block recomputed, and once more with weights in 4 bits: what can be given up
//! before the model or the rows themselves would have to be smaller.

use super::{Load, Source, plan};
use crate::config::{Checkpointing, Method, Precision, RunConfig};
use garden_memory::ByteSize;
use garden_model::{
    ModelConfig,
    compute::{MemoryPlan, PlanError},
};

/// A smaller way to do the same run.
#[derive(Debug, Clone, PartialEq)]
pub struct Least {
    /// The flags that lead to it, besides those that were given.
    pub flags: Vec<String>,
    /// What it takes.
    pub plan: MemoryPlan,
}

impl Least {
    /// The ways to do with less than `run` is planned with, the smallest last. `one_row` is the longest batch of one row.
    pub fn of(
        run: &RunConfig,
        model: &ModelConfig,
        source: &Source,
        one_row: &Load,
    ) -> Result<Vec<Self>, PlanError> {
        let mut least = run.clone();
        let mut flags = Vec::new();
        if run.batch_size > 1 {
            (least.batch_size, least.accumulation) = (1, run.batch_size * run.accumulation);
            flags.push("--batch-size 1".to_owned());
            // A step has as many rows as before, so what is learned stays the same.
            flags.push(format!("--gradient-accumulation-steps {}", least.accumulation));
        }
        if run.memory.checkpointing != Checkpointing::On {
            least.memory.checkpointing = Checkpointing::On;
            flags.push("--gradient-checkpointing on".to_owned());
        }
        let planned = |config: &RunConfig, flags: &[String]| {
            let plan = plan(config, model, source.clone(), one_row, None)?;
            Ok::<_, PlanError>(Self { flags: flags.to_vec(), plan })
        };
        let mut ways = Vec::new();
        if !flags.is_empty() {
            ways.push(planned(&least, &flags)?);
        }
        if run.method == Method::Lora && run.precision != Precision::FourBit {
            least.precision = Precision::FourBit;
            flags.push("--load-in-4bit".to_owned());
            ways.push(planned(&least, &flags)?);
        }
        Ok(ways)
    }

    /// What it takes and how to get there, for people.
    pub fn line(&self) -> String {
        format!("{} with {}", ByteSize(self.plan.total() as u64), self.flags.join(" "))
    }
}
