//! `model-garden memory plan`.

use super::{
    analyze::style,
    options::{parse_duration, parse_positive},
};
use crate::{
    exit,
    flags::RunFlags,
    progress::{Bars, Format},
};
use anyhow::{Error, Result};
use garden_train::{
    Planned, PlannedError, Setting,
    cluster::{Bandwidth, Network, Nodes, Speed},
};
use std::{process::ExitCode, time::Duration};

const EXAMPLES: &str = "\
Examples:
  model-garden memory plan --base-model 3b --load-in-4bit --max-seq-length 1024 --image-tokens 512
  model-garden memory plan --base-model ./Qwen2.5-VL-7B-Instruct --dataset rows.jsonl --load-in-4bit
  model-garden memory plan --base-model ./config.json --batch-size 4 --memory-budget 12GB --format json
  model-garden memory plan --config run.toml
  model-garden memory plan --config run.toml --nodes 8,64 --network 10Gb --micro-batch-seconds 4.4

The flags are those of train-vision and mean the same, so any run can be planned; --output-dir and --dataset may be left out.
Nothing is loaded: --base-model may be a model folder, a config.json alone, or the name of a shape (tiny, small, medium,
3b, 7b, 32b, 72b); --dataset needs a model folder. The lines are those of the run's own memory layout.
With --nodes, a table shows how long a step takes if so many machines share it, one process each (docs/cluster.md).
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
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// Nodes to estimate the time of a step for.
#[derive(clap::Args)]
#[command(next_help_heading = "Several nodes")]
struct ClusterFlags {
    /// Estimate the time of a step on so many nodes, such as 8,64,512.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=MOST_NODES))]
    nodes: Vec<u64>,
    /// What each node sends a second, such as 1Gb, 25Gb/s or 200Gbit.
    #[arg(long, value_name = "BITS", default_value = "10Gb", requires = "nodes")]
    network: Bandwidth,
    /// The time of a message besides that of its bytes.
    #[arg(long, value_name = "TIME", default_value = "75us", value_parser = parse_latency, requires = "nodes")]
    latency: Duration,
    /// Seconds that one node computes for a micro-batch, measured [default: estimated from the model's sizes].
    #[arg(long, value_name = "S", value_parser = parse_amount, requires = "nodes", conflicts_with = "gflops")]
    micro_batch_seconds: Option<f64>,
    /// Billions of floating-point operations a second that one node computes, to estimate a micro-batch
    /// [default: 300, which two threads of a Xeon with AVX-512 reach].
    #[arg(long, value_name = "N", value_parser = parse_amount, requires = "nodes")]
    gflops: Option<f64>,
}

/// More than any cluster has.
const MOST_NODES: u64 = 1_000_000;

impl ClusterFlags {
    /// The nodes, if there are any to estimate for.
    fn nodes(self) -> Option<Nodes> {
        let speed = match (self.micro_batch_seconds, self.gflops) {
            (Some(batch_seconds), _) => Speed::Measured { batch_seconds },
            (None, Some(billions)) => Speed::Rated { rate: 1e9 * billions },
            (None, None) => Speed::Unknown,
        };
        let network = Network { bandwidth: self.network, latency: self.latency };
        (!self.nodes.is_empty()).then_some(Nodes { counts: self.nodes, network, speed })
    }
}

/// The time of a message: far below a second.
fn parse_latency(text: &str) -> Result<Duration, String> {
    let latency = parse_duration(text)?;
    let fits = latency <= Duration::from_secs(1);
    fits.then_some(latency)
        .ok_or_else(|| format!("'{text}' is out of range: at most 1s, and usually 50us to 100us"))
}

/// A time or a speed that a node may have.
fn parse_amount(text: &str) -> Result<f64, String> {
    let amount = parse_positive(text)?;
    let fits = (1e-6..=1e9).contains(&amount);
    fits.then_some(amount).ok_or_else(|| format!("'{text}' is out of range: from 0.000001 to 1000000000"))
}

/// Plans and prints.
pub fn run(args: Args) -> Result<ExitCode> {
    let (options, _) = args.run.options()?;
    let planned = Planned::of(options, args.image_tokens, &Bars::default()).map_err(cause)?;
    let report = planned.report(written);
    let cluster = args.cluster.nodes().map(|nodes| planned.on(nodes, written)).transpose()?;
    match args.format {
        Format::Json => {
            let mut figures = report.json();
            if let Some(cluster) = &cluster {
                figures["cluster"] = cluster.json();
            }
            println!("{figures:#}");
        }
        Format::Text => {
            print!("{}", report.text(style()));
            if let Some(cluster) = &cluster {
                print!("\n{}", cluster.text(style()));
            }
        }
    }
    Ok(if report.fits() { ExitCode::SUCCESS } else { ExitCode::from(exit::WILL_NOT_FIT) })
}

/// The error itself: advice is about what went wrong, not about who asked.
fn cause(error: PlannedError) -> Error {
    match error {
        PlannedError::NoPlan(_) => error.into(),
        PlannedError::Config(error) => error.into(),
        PlannedError::Source(error) => error.into(),
        PlannedError::Folder(error) => error.into(),
        PlannedError::Data(error) => error.into(),
        PlannedError::Plan(error) => error.into(),
    }
}

/// A setting as a flag.
fn written(setting: &Setting) -> String {
    match setting.value.as_str() {
        "true" => format!("--{}", setting.name),
        value => format!("--{} {value}", setting.name),
    }
}
