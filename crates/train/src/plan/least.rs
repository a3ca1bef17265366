//! The least memory that a run could do with, and the settings for it.
//!
//! Takes a run and plans it again with one row a batch and every block recomputed, then once more with
//! weights in 4 bits. Nothing else can be given up before the model or the rows themselves would have to be
//! smaller.

use super::{Load, Source, plan};
use crate::config::{Checkpointing, Method, Precision, RunConfig};
use garden_model::{MemoryPlan, ModelConfig, PlanError};

/// A setting with its value, by the names of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// A way to do the same run in less memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Least {
    /// The settings to add to those that were given.
    pub settings: Vec<Setting>,
    /// The plan with them.
    pub plan: MemoryPlan,
}

impl Least {
    /// The ways to do `run` in less memory than planned, the smallest last. `one_row` is the longest batch of
    /// one row.
    pub fn of(
        run: &RunConfig,
        model: &ModelConfig,
        source: &Source,
        one_row: &Load,
    ) -> Result<Vec<Self>, PlanError> {
        let mut least = run.clone();
        let mut settings = Vec::new();
        let setting = |name, value: &dyn ToString| Setting { name, value: value.to_string() };
        if run.batch_size > 1 {
            (least.batch_size, least.accumulation) = (1, run.batch_size * run.accumulation);
            settings.push(setting("batch-size", &1));
            // A step has as many rows as before, so what is learned stays the same.
            settings.push(setting("gradient-accumulation-steps", &least.accumulation));
        }
        if run.memory.checkpointing != Checkpointing::On {
            least.memory.checkpointing = Checkpointing::On;
            settings.push(setting("gradient-checkpointing", &"on"));
        }
        let planned = |config: &RunConfig, settings: &[Setting]| {
            let plan = plan(config, model, source.clone(), one_row, None)?;
            Ok::<_, PlanError>(Self { settings: settings.to_vec(), plan })
        };
        let mut ways = Vec::new();
        if !settings.is_empty() {
            ways.push(planned(&least, &settings)?);
        }
        if run.method == Method::Lora && run.precision != Precision::FourBit {
            least.precision = Precision::FourBit;
            settings.push(setting("load-in-4bit", &true));
            ways.push(planned(&least, &settings)?);
        }
        Ok(ways)
    }
}
