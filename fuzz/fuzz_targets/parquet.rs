//! Reads any bytes as a Parquet file: no panic.
#![no_main]

use garden_data::{Dataset, DatasetOptions, RowReader};
use libfuzzer_sys::fuzz_target;
use std::{fs, sync::Arc};

// A panic in a reader that we guard is not a finding; one that escapes the guard is.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("garden-fuzz-{}.parquet", std::process::id()));
    fs::write(&path, bytes).expect("a writable folder");
    let Ok(dataset) = Dataset::open(&path.to_string_lossy(), &DatasetOptions::default(), &()) else { return };
    let rows = dataset.rows();
    let mut reader = RowReader::new(Arc::new(dataset));
    for row in (0..rows.min(4)).chain([rows.saturating_sub(1)]) {
        let _ = reader.read(row);
    }
});
