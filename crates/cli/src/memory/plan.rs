//! `model-garden memory plan`.

use super::analyze::style;
use crate::{
    exit,
    flags::RunFlags,
    progress::{Bars, Format},
};
use anyhow::Result;
use garden_train::{
    ConfigError, Least, Load, ModelFolder, PlanReport, RunConfig, Setting, Source, TrainOptions, open_data,
    plan, room,
};
use std::{path::Path, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden memory plan --base-model 3b --load-in-4bit --max-seq-length 1024 --image-tokens 512
  model-garden memory plan --base-model ./Qwen2.5-VL-7B-Instruct --dataset rows.jsonl --load-in-4bit
  model-garden memory plan --base-model ./config.json --batch-size 4 --memory-budget 12GB --format json
  model-garden memory plan --config run.toml

The flags are those of train-vision and mean the same, so any run can be planned; --output-dir and --dataset may be left out.
Nothing is loaded: --base-model may be a model folder, a config.json alone, or the name of a shape (tiny, small, medium,
3b, 7b, 32b, 72b); --dataset needs a model folder. The lines are those of the run's own memory layout.
Exit code 4 if the run does not fit this machine, or --memory-budget if that is given.";

/// Flags of `memory plan`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    run: RunFlags,
    /// Tokens of a row that belong to its image, where no --dataset is given; all remaining tokens are
    /// labelled [default: the most of either].
    #[arg(long, value_name = "N")]
    image_tokens: Option<usize>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Plans and prints.
pub fn run(args: Args) -> Result<ExitCode> {
    let (options, _) = args.run.options()?;
    let has_rows = options.dataset.is_some();
    check_rows(&options, args.image_tokens)?;
    let config = RunConfig::resolve(TrainOptions {
        // A plan needs neither, but a run's settings are complete only with both.
        dataset: options.dataset.or_else(|| Some(String::new())),
        output_dir: options.output_dir.or_else(|| Some(Default::default())),
        ..options
    })?;
    let (model, source) = Source::find(&config.base_model)?;
    let (load, one_row) = if has_rows {
        let folder = ModelFolder::open(Path::new(&config.base_model))?;
        let data = open_data(&config, &folder, &Bars::default())?;
        (data.load, data.one_row)
    } else {
        let assumed = |rows| Load::assumed(&model, rows, config.data.max_seq_length, args.image_tokens);
        (assumed(config.batch_size), assumed(1))
    };
    let room = room();
    let least = &Least::of(&config, &model, &source, &one_row)?;
    let plan = &plan(&config, &model, source, &load, room)?;
    let name = &config.base_model;
    let report = PlanReport { name, config: &config, model: &model, load: &load, plan, room, least, written };
    match args.format {
        Format::Json => println!("{:#}", report.json()),
        Format::Text => print!("{}", report.text(style())),
    }
    Ok(if report.fits() { ExitCode::SUCCESS } else { ExitCode::from(exit::WILL_NOT_FIT) })
}

/// A setting as a flag.
fn written(setting: &Setting) -> String {
    match setting.value.as_str() {
        "true" => format!("--{}", setting.name),
        value => format!("--{} {value}", setting.name),
    }
}

/// Refuses flags about rows that would have no effect: rows are either given or assumed.
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
