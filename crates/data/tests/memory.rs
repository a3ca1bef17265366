//! Memory does not depend on the number of rows: the benchmarks `loader_memory` and `index_memory`, small
//! enough for every day. Only one test at a time measures the memory of the process.

use garden_data::{
    CreateKind, CreateOptions, Dataset, DatasetOptions, DecodeLimits, Encoder, Loader, LoaderOptions,
    PixelLimits, Processor, Purpose, Recipe, RowReader, create_dataset,
};
use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/checkpoint");
static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn open(path: &Path) -> Arc<Dataset> {
    Arc::new(Dataset::open(path.to_str().unwrap(), &DatasetOptions::default(), &()).unwrap())
}

#[test]
fn the_loader_is_flat_over_two_epochs_of_photos() {
    const ROWS: u64 = 60;
    const WARM_BATCHES: u32 = 10;
    /// Had each decoded photo been kept, as in the founding case, it would be 3 MB a row: 180 MB.
    const MOST_GROWTH: u64 = 8_000_000;
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let options =
        CreateOptions { kind: CreateKind::Photos, rows: ROWS, width: 1200, height: 840, seed: 0, workers: 2 };
    let data = create_dataset(folder.path(), &options, &()).unwrap();
    let checkpoint = Path::new(CHECKPOINT);
    let pixels = PixelLimits { min: None, max: Some(256 * 28 * 28) };
    let recipe = Recipe {
        processor: Processor::from_dir(checkpoint, pixels, DecodeLimits::default()).unwrap(),
        encoder: Arc::new(Encoder::from_dir(checkpoint).unwrap()),
        purpose: Purpose::default(),
    };
    let options = LoaderOptions { batch_size: 2, epochs: 2, ..LoaderOptions::default() };
    let mut loader = Loader::start(open(&data), Arc::new(recipe), options).unwrap();
    let (mut batches, mut warm, mut most) = (0, u64::MAX, 0);
    while let Some(batch) = loader.next_batch().unwrap() {
        batches += 1;
        if batches == WARM_BATCHES {
            warm = resident();
        }
        most = most.max(resident());
        loader.recycle(batch);
    }
    assert_eq!(loader.tally().used, 2 * ROWS);
    assert!(most < warm + MOST_GROWTH, "grew from {warm} to {most} bytes");
}

#[test]
fn an_index_is_not_read_into_memory() {
    const ROWS: u64 = 1_000_000;
    /// The index alone has 8 MB.
    const MOST_GROWTH: u64 = 4_000_000;
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("train.jsonl");
    let small = folder.path().join("small.jsonl");
    let row = "{\"text\": \"a\", \"response\": \"b\"}\n";
    fs::write(&small, row).unwrap();
    fs::write(&data, row.repeat(ROWS as usize)).unwrap();
    RowReader::new(open(&small)).read(0).unwrap();
    let before = resident();
    let dataset = open(&data);
    assert_eq!(dataset.rows(), ROWS);
    let mut reader = RowReader::new(dataset);
    for row in [0, ROWS / 2, ROWS - 1] {
        reader.read(row).unwrap();
    }
    let after = resident();
    assert!(after < before + MOST_GROWTH, "grew from {before} to {after} bytes");
}
