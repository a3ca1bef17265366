//! Memory and time to open a dataset of ten million rows.
//!
//!     cargo run --release -p garden-bench --bin index_memory -- [FOLDER [ROWS]]
//!
//! Writes the rows once (0.6 GB), then opens them twice, first without and then with their index, and reads
//! some.

use anyhow::Result;
use garden_bench::resident;
use garden_data::{Dataset, DatasetOptions, RowOrder, RowReader};
use garden_memory::ByteSize;
use std::{
    env,
    fs::{self, File},
    io::{BufWriter, Write},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

const READ: u64 = 10_000;

fn main() -> Result<()> {
    let mut words = env::args().skip(1);
    let folder = PathBuf::from(words.next().unwrap_or_else(|| "target/bench/rows".into()));
    let rows: u64 = words.next().unwrap_or_else(|| "10000000".into()).parse()?;
    let data = folder.join("train.jsonl");
    if !data.exists() {
        fs::create_dir_all(&folder)?;
        let mut writer = BufWriter::new(File::create(&data)?);
        for row in 0..rows {
            writeln!(writer, r#"{{"text": "What is {row} plus one?", "response": "{}"}}"#, row + 1)?;
        }
        writer.flush()?;
    }
    let _ = fs::remove_file(folder.join(".train.jsonl.garden-index"));
    println!("{rows} rows, {} of text", ByteSize(fs::metadata(&data)?.len()));
    for what in ["building the index", "opening it again"] {
        let begun = Instant::now();
        let dataset = Arc::new(Dataset::open(&data.to_string_lossy(), &DatasetOptions::default(), &())?);
        let opened = begun.elapsed();
        let order = RowOrder::shuffled(dataset.rows(), 0, 0);
        let mut reader = RowReader::new(dataset);
        for row in (0..READ).filter_map(|place| order.row(place)) {
            reader.read(row)?;
        }
        let read = begun.elapsed() - opened;
        println!(
            "{what:<20} {:>8.3} s, then {:.1} µs a row in random order; peak {}",
            opened.as_secs_f64(),
            read.as_secs_f64() * 1e6 / READ as f64,
            ByteSize(resident()?.peak)
        );
    }
    Ok(())
}
