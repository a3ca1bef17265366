//! A plan from settings alone, as somebody asks for it before a run.
//!
//! Takes the settings of a run, of which the rows and the output folder may be missing, and gives the plan with
//! everything that its report shows. With rows, they are surveyed; without, the longest row that the settings
//! allow is assumed. Nothing is loaded.

use super::{Cluster, Least, Load, Nodes, PlanReport, Setting, Source, SourceError, plan, room};
use crate::{
    config::{ConfigError, Engine, RunConfig, TrainOptions},
    model_folder::{ModelFolder, ModelFolderError},
    run::{RunError, open_data},
};
use garden_data::Progress;
use garden_model::{MemoryPlan, ModelConfig, PlanError};
use std::path::Path;

/// A run that was planned.
pub struct Planned {
    pub(super) config: RunConfig,
    pub(super) model: ModelConfig,
    pub(super) load: Load,
    pub(super) plan: MemoryPlan,
    room: Option<u64>,
    least: Vec<Least>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlannedError {
    /// The engine makes no plan.
    #[error(
        "engine {0} makes no memory plan: what PyTorch takes cannot be known before; a memory limit stops its runs in time"
    )]
    NoPlan(Engine),
    /// The settings contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model is not known.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The model folder cannot be used.
    #[error(transparent)]
    Folder(#[from] ModelFolderError),
    /// The rows cannot be used.
    #[error(transparent)]
    Data(#[from] RunError),
    /// The model cannot be laid out.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Planned {
    /// Plans a run. `image_tokens` are the tokens of a row that belong to its image, where no rows are given.
    pub fn of(
        options: TrainOptions,
        image_tokens: Option<usize>,
        progress: &dyn Progress,
    ) -> Result<Self, PlannedError> {
        let has_rows = options.dataset.is_some();
        check_rows(&options, image_tokens)?;
        let config = RunConfig::resolve(TrainOptions {
            // A plan needs neither, but a run's settings are complete only with both.
            dataset: options.dataset.or_else(|| Some(String::new())),
            output_dir: options.output_dir.or_else(|| Some(Default::default())),
            ..options
        })?;
        if config.engine.is_python() {
            return Err(PlannedError::NoPlan(config.engine));
        }
        let (model, source) = Source::find(&config.base_model)?;
        let (load, one_row) = if has_rows {
            let folder = ModelFolder::open(Path::new(&config.base_model))?;
            let data = open_data(&config, &folder, progress)?;
            (data.load, data.one_row)
        } else {
            let assumed = |rows| Load::assumed(&model, rows, config.data.max_seq_length, image_tokens);
            (assumed(config.batch_size), assumed(1))
        };
        let room = room();
        let least = Least::of(&config, &model, &source, &one_row)?;
        let plan = plan(&config, &model, source, &load, room)?;
        Ok(Self { config, model, load, plan, room, least })
    }

    /// The plan for people and for programs; `written` says how the reader writes a setting.
    pub fn report(&self, written: fn(&Setting) -> String) -> PlanReport<'_> {
        PlanReport {
            name: &self.config.base_model,
            config: &self.config,
            model: &self.model,
            load: &self.load,
            plan: &self.plan,
            room: self.room,
            least: &self.least,
            written,
        }
    }

    /// The time of a step on several nodes; `written` says how the reader writes a setting.
    pub fn on(&self, nodes: Nodes, written: fn(&Setting) -> String) -> Result<Cluster, PlanError> {
        Cluster::of(self, nodes, written)
    }
}

/// Refuses settings about rows that would have no effect: rows are either given or assumed.
fn check_rows(options: &TrainOptions, image_tokens: Option<usize>) -> Result<(), ConfigError> {
    let of_rows = [
        ("eval-dataset", options.eval_dataset.is_some()),
        ("split", options.split.is_some()),
        ("image-root", options.image_root.is_some()),
        ("min-pixels", options.min_pixels.is_some()),
        ("max-pixels", options.max_pixels.is_some()),
    ];
    match (&options.dataset, of_rows.into_iter().find(|(_, given)| *given)) {
        (Some(_), _) if image_tokens.is_some() => Err(ConfigError::Conflict("image-tokens", "dataset")),
        (None, Some((flag, _))) => Err(ConfigError::Needs { setting: flag, any_of: &["dataset"] }),
        _ => Ok(()),
    }
}
