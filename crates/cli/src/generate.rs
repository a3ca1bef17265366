//! `model-garden generate`.

use crate::{
    flags::{PixelFlags, PrecisionFlags},
    progress::Format,
};
use anyhow::{Context, Result};
use garden_data::{BadRow, MAX_IMAGE_BYTES, check_folder};
use garden_memory::counted;
use garden_train::{GenerateError, Interpreter, ModelFolder, Prompt, Sampling, load_model, question};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{IsTerminal, Read, Write, stderr, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  model-garden generate --model ./Qwen2.5-VL-3B-Instruct --image photo.jpg --prompt 'What is shown here?'
  model-garden generate --model base --adapter runs/one --image a.png --image b.png --prompt 'What changed?' --max-tokens 200
  model-garden generate --model base --prompt 'Tell me a story' --temperature 0.8 --seed 7 --format json

The answer goes to standard output as it grows, everything else to standard error.";

/// Flags of `generate`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model folder.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// The folder of an adapter that training or PEFT wrote.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// An image; repeat the flag for several. Images come before the words.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// The question.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// The longest answer, in tokens.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tokens: u32,
    /// How random the answer is; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// With a temperature, the same seed gives the same answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    weights: PrecisionFlags,
    #[command(flatten)]
    pixels: PixelFlags,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Asks the model and prints its answer.
pub fn run(args: &Args) -> Result<ExitCode> {
    std::iter::once(&args.model).chain(&args.adapter).try_for_each(|folder| check_folder(folder))?;
    let folder = ModelFolder::open(&args.model)?;
    let mut interpreter = Interpreter::new(&folder, args.pixels.limits())?;
    // A fault in the question is reported before gigabytes are read.
    let prompt = prompt(args, &mut interpreter)?;
    let bar =
        ProgressBar::new(1000).with_style(ProgressStyle::with_template("loading [{bar:30}] {percent} %")?);
    let model = load_model(&folder, args.adapter.as_deref(), args.weights.precision(), |share| {
        bar.set_position((1000.0 * share) as u64);
    })?;
    bar.finish_and_clear();
    let stream = args.format == Format::Text;
    let mut written = Ok(());
    let mut say = |piece: &str| {
        if stream && written.is_ok() {
            written = stdout().write_all(piece.as_bytes()).and_then(|()| stdout().flush());
        }
    };
    let answer = interpreter.answer(&model, prompt, &mut say)?;
    written.context("cannot write the answer")?;
    match args.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Format::Text => println!(),
    }
    if stream && stderr().is_terminal() {
        let pace = answer.tokens.len() as f64 / answer.answer_seconds.max(1e-9);
        eprintln!(
            "\n{} read in {:.1} s, {} written at {pace:.1} a second",
            counted(answer.prompt_tokens as u64, "token"),
            answer.prompt_seconds,
            answer.tokens.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn prompt(args: &Args, interpreter: &mut Interpreter) -> Result<Prompt> {
    let images = args.image.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let sampling =
        Sampling { max_tokens: args.max_tokens as usize, temperature: args.temperature, seed: args.seed };
    let asked = question(&args.prompt, images.len());
    interpreter.prompt(&asked, &images, sampling).map_err(|error| name_image(error, &args.image))
}

/// Names the file of an image that cannot be used.
fn name_image(error: GenerateError, files: &[PathBuf]) -> anyhow::Error {
    match error {
        GenerateError::Question(BadRow::Image { number, source }) if (1..=files.len()).contains(&number) => {
            anyhow::Error::new(source).context(flag_of(&files[number - 1]))
        }
        other => other.into(),
    }
}

fn flag_of(path: &Path) -> String {
    format!("--image {}", path.display())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let of_image = || flag_of(path);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).with_context(of_image)?;
    file.take(MAX_IMAGE_BYTES + 1).read_to_end(&mut bytes).with_context(of_image)?;
    let fits = bytes.len() as u64 <= MAX_IMAGE_BYTES;
    anyhow::ensure!(fits, "{}: larger than {MAX_IMAGE_BYTES} bytes", of_image());
    Ok(bytes)
}
