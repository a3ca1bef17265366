//! Memory of the loader over photos, epoch after epoch: the founding case, where another loader took 12 GB.
//!
//!     cargo run --release -p garden-bench --bin loader_memory -- [FOLDER [ROWS [WxH [MAX_PIXELS]]]]
//!
//! Makes 663 photos of 6 megapixels as base64 JPEG rows in FOLDER (0.5 GB; made once), then reads two epochs
//! in batches of two and prints resident memory on the way. Making happens in a process of its own, to leave
//! no trace in this one.

use anyhow::{Context, Result, bail};
use garden_bench::resident;
use garden_data::{
    CreateKind, CreateOptions, Dataset, DatasetOptions, DecodeLimits, Encoder, Loader, LoaderOptions,
    PixelLimits, Processor, Purpose, Recipe, create_dataset,
};
use garden_memory::ByteSize;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};

const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/data/tests/goldens/checkpoint");
const EPOCHS: u64 = 2;
const BATCH_SIZE: usize = 2;
/// Batches after which growth is counted.
const WARM_BATCHES: usize = 20;

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let (making, words) = match words.split_first() {
        Some((first, rest)) if first == "make" => (true, rest),
        _ => (false, &words[..]),
    };
    let word = |at: usize, default: &str| words.get(at).map_or(default, String::as_str).to_owned();
    let folder = PathBuf::from(word(0, "target/bench/photos"));
    let (rows, size, max_pixels) =
        (word(1, "663").parse()?, word(2, "3000x2048"), word(3, "1003520").parse()?);
    if making {
        return make(&folder, rows, &size);
    }
    if !folder.join("train.jsonl").exists() {
        let status = Command::new(env::current_exe()?)
            .arg("make")
            .arg(&folder)
            .args([rows.to_string(), size])
            .status()?;
        if !status.success() {
            bail!("making the photos failed");
        }
    }
    measure(&folder, max_pixels)
}

fn make(folder: &Path, rows: u64, size: &str) -> Result<()> {
    let (width, height) = size.split_once('x').context("a size is WxH")?;
    let (width, height) = (width.parse()?, height.parse()?);
    create_dataset(
        folder,
        &CreateOptions { kind: CreateKind::Photos, rows, width, height, seed: 0, workers: 2 },
        &(),
    )?;
    Ok(())
}

fn measure(folder: &Path, max_pixels: u64) -> Result<()> {
    let name = folder.join("train.jsonl");
    let dataset = Arc::new(Dataset::open(&name.to_string_lossy(), &DatasetOptions::default(), &())?);
    let checkpoint = Path::new(CHECKPOINT);
    let pixels = PixelLimits { min: None, max: Some(max_pixels) };
    let recipe = Recipe {
        processor: Processor::from_dir(checkpoint, pixels, DecodeLimits::default())?,
        encoder: Arc::new(Encoder::from_dir(checkpoint)?),
        purpose: Purpose::default(),
    };
    let start = resident()?;
    println!("{} rows, {EPOCHS} epochs, batches of {BATCH_SIZE}, max_pixels {max_pixels}", dataset.rows());
    println!("before the first batch  {:>7}", ByteSize(start.now).to_string());
    let options = LoaderOptions { batch_size: BATCH_SIZE, epochs: EPOCHS, ..LoaderOptions::default() };
    let mut loader = Loader::start(dataset, Arc::new(recipe), options)?;
    let (mut batches, mut rows, mut warm, mut most) = (0, 0, 0, 0);
    let begun = Instant::now();
    while let Some(batch) = loader.next_batch()? {
        batches += 1;
        rows += batch.len();
        let now = resident()?.now;
        if batches == WARM_BATCHES {
            warm = now;
        }
        most = most.max(if batches > WARM_BATCHES { now } else { 0 });
        if batches == WARM_BATCHES || batches % 100 == 0 {
            println!(
                "after batch {batches:<11} {:>7}   epoch {}",
                ByteSize(now).to_string(),
                batch.end.epoch
            );
        }
        loader.recycle(batch);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}", loader.tally());
    println!("growth after batch {WARM_BATCHES}   {:>7}", ByteSize(most.saturating_sub(warm)).to_string());
    println!("peak                    {:>7}", ByteSize(resident()?.peak).to_string());
    println!("speed                   {:.1} rows a second", rows as f64 / seconds);
    Ok(())
}
