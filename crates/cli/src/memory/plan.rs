//! `model-garden memory plan`.

use super::analyze::style;
use crate::{
    exit,
    progress::{Bars, Format},
};
use anyhow::Result;
use garden_memory::{ByteSize, report::text::Style};
use garden_model::{ModelConfig, compute::MemoryPlan, parameters::parameters};
use garden_train::{
    config::{Checkpointing, Method, RunConfig, TrainOptions},
    optimizer::OptimizerKind,
    plan::{Load, Source, plan, room},
    run::open_data,
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  model-garden memory plan --base-model 3b --load-in-4bit --max-seq-length 1024 --image-tokens 512
  model-garden memory plan --base-model ./Qwen2.5-VL-7B-Instruct --dataset rows.jsonl --load-in-4bit
  model-garden memory plan --base-model ./config.json --batch-size 4 --memory-budget 12GB --format json

Nothing is loaded: --base-model may be a model's folder, a config.json alone, or the name of a shape (tiny, small, medium,
3b, 7b, 32b, 72b). The lines are those of the run's own memory layout.
Exit code 4 if it does not fit this machine, or --memory-budget if that is given.";

/// Flags of `memory plan`; those of a run mean what they mean in `train-vision`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model's folder, a config.json, or the name of a shape.
    #[arg(long, value_name = "DIR|FILE|NAME")]
    base_model: String,
    /// Rows to train on: their lengths and pictures instead of the longest that are allowed. Needs a model's folder.
    #[arg(long, value_name = "PATH")]
    dataset: Option<String>,
    /// Rows of a batch [default: 2].
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,
    /// Longest row in tokens [default: 2048].
    #[arg(long, value_name = "N")]
    max_seq_length: Option<usize>,
    /// Tokens of a row that are a picture's, without --dataset [default: the whole row].
    #[arg(long, value_name = "N", conflicts_with = "dataset")]
    image_tokens: Option<usize>,
    /// Largest image area in pixels, with --dataset [default: the checkpoint's].
    #[arg(long, value_name = "N", requires = "dataset")]
    max_pixels: Option<u64>,
    /// Rank of the adapters [default: 16].
    #[arg(long, value_name = "N")]
    lora_r: Option<usize>,
    /// Share of an adapter's inputs set to zero [default: 0].
    #[arg(long, value_name = "SHARE")]
    lora_dropout: Option<f64>,
    /// Modules to adapt, a regular expression over their names.
    #[arg(long, value_name = "REGEX")]
    target_modules: Option<String>,
    /// Adapt the vision tower [default: true].
    #[arg(long, value_name = "BOOL")]
    finetune_vision_layers: Option<bool>,
    /// Train adapters or all weights [default: lora].
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Hold frozen weights in 4 bits.
    #[arg(long, conflicts_with_all = ["load_in_8bit", "load_in_16bit"])]
    load_in_4bit: bool,
    /// Hold frozen weights in 8 bits.
    #[arg(long, conflicts_with = "load_in_16bit")]
    load_in_8bit: bool,
    /// Hold frozen weights in 16 bits.
    #[arg(long)]
    load_in_16bit: bool,
    /// Moments in f32 or 8 bits [default: adamw_8bit].
    #[arg(long, value_enum)]
    optim: Option<OptimizerKind>,
    /// Memory for the whole run; blocks are recomputed until it fits.
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<ByteSize>,
    /// Recompute activations: as few as needed, all, none [default: auto].
    #[arg(long, value_enum)]
    gradient_checkpointing: Option<Checkpointing>,
    /// Most memory for batches prepared ahead.
    #[arg(long, value_name = "SIZE")]
    prefetch_bytes: Option<ByteSize>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What is planned, and for what.
struct Planned {
    config: RunConfig,
    model: ModelConfig,
    load: Load,
    plan: MemoryPlan,
    room: Option<u64>,
}

/// Plans and prints.
pub fn run(args: &Args) -> Result<ExitCode> {
    let config = RunConfig::resolve(args.options())?;
    let (model, source) = Source::find(&args.base_model)?;
    let load = match &args.dataset {
        Some(_) => {
            let data = open_data(&config, Path::new(&args.base_model), &Bars::default())?;
            data.load
        }
        None => {
            let tokens = config.data.max_seq_length;
            Load::assumed(&model, config.batch_size, tokens, args.image_tokens.unwrap_or(tokens))
        }
    };
    let room = room();
    let plan = plan(&config, &model, source, &load, room)?;
    let planned = Planned { config, model, load, plan, room };
    match args.format {
        Format::Json => println!("{:#}", planned.json()),
        Format::Text => print!("{}", planned.text(&args.base_model, style())),
    }
    Ok(if planned.fits() { ExitCode::SUCCESS } else { ExitCode::from(exit::WILL_NOT_FIT) })
}

impl Args {
    fn options(&self) -> TrainOptions {
        TrainOptions {
            base_model: Some(self.base_model.clone()),
            // A plan asks for neither, and a run's settings are whole only with both.
            dataset: Some(self.dataset.clone().unwrap_or_default()),
            output_dir: Some(PathBuf::new()),
            batch_size: self.batch_size,
            max_seq_length: self.max_seq_length,
            max_pixels: self.max_pixels,
            lora_r: self.lora_r,
            lora_dropout: self.lora_dropout,
            target_modules: self.target_modules.clone(),
            finetune_vision_layers: self.finetune_vision_layers,
            method: self.method,
            load_in_4bit: Some(self.load_in_4bit),
            load_in_8bit: Some(self.load_in_8bit),
            load_in_16bit: Some(self.load_in_16bit),
            optim: self.optim,
            memory_budget: self.memory_budget,
            gradient_checkpointing: self.gradient_checkpointing,
            prefetch_bytes: self.prefetch_bytes,
            ..TrainOptions::default()
        }
    }
}

impl Planned {
    fn limit(&self) -> Option<u64> {
        self.config.memory.budget.or(self.room)
    }

    fn fits(&self) -> bool {
        self.limit().is_none_or(|limit| self.plan.total() as u64 <= limit)
    }

    fn json(&self) -> serde_json::Value {
        let shapes = self.load.shapes;
        let parts: serde_json::Map<_, _> =
            self.plan.parts().into_iter().map(|(name, bytes)| (name.to_owned(), bytes.into())).collect();
        serde_json::json!({
            "parts": parts,
            "total": self.plan.total(),
            "available": self.room,
            "budget": self.config.memory.budget,
            "fits": self.fits(),
            "longest_batch": {
                "rows": self.config.batch_size, "tokens": shapes.tokens, "patches": shapes.patches,
                "labels": shapes.labels
            },
            "blocks": self.plan.blocks,
            "recomputed_blocks": self.plan.recomputed_blocks,
        })
    }

    fn text(&self, name: &str, style: Style) -> String {
        let Planned { config, model, load, plan, .. } = self;
        let all: usize = parameters(model).iter().map(|parameter| parameter.elements()).sum();
        let what = match config.method {
            Method::Full => "all weights trained".to_owned(),
            Method::Lora => format!("LoRA r {}: {} trained", config.lora.r, count(plan.adapters / 4)),
        };
        let mut out = format!("{name}, {} parameters, {what}\n", count(all));
        out.push_str(&format!(
            "longest batch: {} rows, {} tokens, {} patches, {} labels\n",
            config.batch_size, load.shapes.tokens, load.shapes.patches, load.shapes.labels
        ));
        out.push_str(&format!("recomputed: {} of {} blocks\n\n", plan.recomputed_blocks, plan.blocks));
        self.draw(&mut out, style);
        out.push_str(&self.verdict(style));
        out
    }

    /// A bar a part, where it begins and ends in the whole; the line of the limit below.
    fn draw(&self, out: &mut String, style: Style) {
        const LABELS: usize = 24;
        let width = style.width.clamp(60, 110) - LABELS - 1;
        let total = self.plan.total();
        // The machine's end is shown where it is in sight of the plan.
        let end = self.limit().map_or(total, |limit| (limit as usize).min(2 * total).max(total)).max(1);
        let place = |bytes: usize| bytes as f64 * width as f64 / end as f64;
        let mut before = 0;
        for (index, (name, bytes)) in self.plan.parts().into_iter().enumerate() {
            let bar = paint(&bar(place(before), place(before + bytes)), COLOURS[index], style);
            out.push_str(&format!("{name:<12} {:>9}  {bar}\n", ByteSize(bytes as u64).to_string()));
            before += bytes;
        }
        let axis = "─".repeat(place(total).round() as usize);
        let rest = "╌".repeat(width.saturating_sub(axis.chars().count()));
        out.push_str(&format!("{:<12} {:>9}  {axis}┤{rest}\n", "total", ByteSize(total as u64).to_string()));
    }

    fn verdict(&self, style: Style) -> String {
        let Some(limit) = self.limit() else { return String::new() };
        let whose = if self.config.memory.budget.is_some() { "budget" } else { "available on this machine" };
        let total = self.plan.total() as u64;
        let (word, code) = if self.fits() { ("fits", "1;32") } else { ("does not fit", "1;31") };
        let word = paint(word, code, style);
        let difference = ByteSize(limit.abs_diff(total));
        let side = if self.fits() { "left" } else { "too much" };
        format!("\n{word}: {} {whose}, {difference} {side}\n", ByteSize(limit))
    }
}

/// One colour a part, in their order; neighbours are easy to tell apart.
const COLOURS: [&str; 9] = ["90", "34", "36", "32", "33", "35", "31", "94", "96"];

fn paint(text: &str, code: &str, style: Style) -> String {
    if style.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A bar from one place to another, in eighths of a character at its end; the thinnest is an eighth.
fn bar(from: f64, to: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let start = from.floor() as usize;
    let eighths = (((to - start as f64) * 8.0).round() as usize).max(1);
    format!("{}{}{}", " ".repeat(start), "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// `3.75 billion`, `41.1 million`.
fn count(number: usize) -> String {
    match number as f64 {
        number if number >= 1e9 => format!("{:.2} billion", number / 1e9),
        number if number >= 1e6 => format!("{:.1} million", number / 1e6),
        number => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn bars_begin_where_the_last_one_ended() {
        assert_eq!(bar(0.0, 2.5), "██▌");
        assert_eq!(bar(2.5, 4.0), "  ██");
        assert_eq!(bar(3.0, 3.0), "   ▏");
    }
}
