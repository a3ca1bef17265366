//! What loading a model costs: time, the bytes of the weights, and the peak memory of the process.
//!
//! `cargo run --release -p garden-bench --bin load_memory -- DIR [stored|16|8|4]`, after for example
//! `model-garden init --preset 3b --output DIR`. The peak should be the weights held in memory plus one
//! tensor.

use anyhow::{Context, Result, bail};
use garden_bench::resident;
use garden_memory::ByteSize;
use garden_model::{Checkpoint, ModelConfig, ModelWeights, Precision};
use std::{path::PathBuf, time::Instant};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().context("which model? give its folder")?);
    let precision = match arguments.next().as_deref().unwrap_or("4") {
        "stored" => Precision::AsStored,
        "16" => Precision::Bits16,
        "8" => Precision::Bits8,
        "4" => Precision::Bits4,
        other => bail!("{other} is not a precision: stored, 16, 8 or 4"),
    };
    let before = resident()?.now;
    let start = Instant::now();
    let config = ModelConfig::read(&dir)?;
    let checkpoint = Checkpoint::open(&dir)?;
    let weights = ModelWeights::load(&checkpoint, &config, precision, |_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let after = resident()?;
    println!("loaded {} layers as {precision:?} in {seconds:.1} s", weights.text.layers.len());
    println!("resident before  {}", ByteSize(before));
    println!("resident after   {}", ByteSize(after.now));
    println!("resident at peak {}", ByteSize(after.peak));
    Ok(())
}
