//! `inspect`: what a model folder, an adapter or a file of tensors is.

use crate::exit;
use crate::progress::Format;
use clap::Args as Flags;
use garden_memory::{ByteSize, counted};
use garden_model::inspect::{AdapterReport, FileReport, ModelReport, Report, inspect};
use garden_train::grouped;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  model-garden inspect Qwen2.5-VL-3B-Instruct
  model-garden inspect runs/one/adapter --format json
  model-garden inspect model.safetensors --values    # read every value, look for NaN

Exit code 1 if a problem was found.";

/// Say what a model folder, an adapter or a safetensors file is, and what is wrong with it.
#[derive(Flags)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model folder, an adapter's folder, or a .safetensors file.
    path: PathBuf,
    /// Read every value and report NaN and infinity; without it only headers are read.
    #[arg(long)]
    values: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    garden_data::check_exists(&args.path, "file or folder")?;
    let report = inspect(&args.path, args.values)?;
    match args.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Format::Text => print!("{}", text(&report)),
    }
    Ok(if report.problems().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::NEGATIVE) })
}

fn text(report: &Report) -> String {
    let mut out = match report {
        Report::Model(report) => model(report),
        Report::Adapter(report) => adapter(report),
        Report::File(report) => file(report),
    };
    match report.problems() {
        [] => out.push_str("problems    none\n"),
        problems => {
            out.push_str(&format!("problems    {}\n", problems.len()));
            problems.iter().for_each(|problem| out.push_str(&format!("  {problem}\n")));
        }
    }
    out
}

fn model(report: &ModelReport) -> String {
    let sizes = &report.sizes;
    let tied = if sizes.tied_embeddings { "tied" } else { "not tied" };
    let mut out = format!(
        "model       {}, {} parameters\n\
         language    {}, {} wide, {} ({} key/value), MLP {}, vocabulary {} ({tied})\n\
         vision      {}, {} wide, {}, MLP {}\n\
         weights     {}, {}, {}\n",
        report.architecture,
        grouped(report.parameters as u64),
        counted(sizes.layers as u64, "layer"),
        sizes.hidden,
        counted(sizes.heads as u64, "head"),
        sizes.kv_heads,
        sizes.mlp,
        sizes.vocabulary,
        counted(sizes.vision_blocks as u64, "block"),
        sizes.vision_hidden,
        counted(sizes.vision_heads as u64, "head"),
        sizes.vision_mlp,
        ByteSize(report.bytes),
        counted(report.files as u64, "file"),
        stored(&report.stored),
    );
    for part in &report.parts {
        out.push_str(&format!("  {:<16} {:>15}\n", part.name, grouped(part.parameters as u64)));
    }
    out
}

fn adapter(report: &AdapterReport) -> String {
    format!(
        "adapter     LoRA rank {}, alpha {}, scale {}, dropout {}{}\n\
         layers      {} language, {} vision\n\
         parameters  {}\n\
         weights     {}, {}\n\
         targets     {}\n",
        report.rank,
        report.alpha,
        report.scale,
        report.dropout,
        if report.rslora { ", rsLoRA" } else { "" },
        report.language_layers,
        report.vision_layers,
        grouped(report.parameters as u64),
        ByteSize(report.bytes),
        stored(&report.stored),
        report.target_modules,
    )
}

fn file(report: &FileReport) -> String {
    let mut out = format!(
        "file        {}, {}, {}\n",
        counted(report.tensors as u64, "tensor"),
        ByteSize(report.bytes),
        stored(&report.stored)
    );
    for (key, value) in &report.metadata {
        out.push_str(&format!("  {key}: {value}\n"));
    }
    out
}

fn stored(stored: &BTreeMap<String, usize>) -> String {
    let parts: Vec<String> =
        stored.iter().map(|(name, count)| format!("{} {name}", grouped(*count as u64))).collect();
    parts.join(" + ")
}
