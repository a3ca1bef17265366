//! Finds the rows of a file: their places do not depend on how the file is read, and a valid array loses
//! none.
#![no_main]

use garden_data::parsers::{Layout, ScanError, Value, scan_rows, trim_row};
use libfuzzer_sys::fuzz_target;
use std::io::{Chain, Read};

fn spans(reader: impl Read, layout: Layout) -> Option<Vec<u64>> {
    let mut offsets = Vec::new();
    let push = |offset| {
        offsets.push(offset);
        Ok::<_, ScanError>(())
    };
    let end = scan_rows(reader, layout, push, |_| {}).ok()?;
    offsets.push(end);
    Some(offsets)
}

fn halves(text: &[u8]) -> Chain<&[u8], &[u8]> {
    // Only the first piece is searched for a byte order mark, and no reader gives less than this.
    let (a, b) = text.split_at((text.len() / 2).max(3).min(text.len()));
    a.chain(b)
}

fuzz_target!(|text: &[u8]| {
    for layout in [Layout::Lines, Layout::Array] {
        let offsets = spans(text, layout);
        assert_eq!(offsets, spans(halves(text), layout));
        let Some(offsets) = offsets else { continue };
        assert!(offsets.is_sorted() && offsets.last().is_some_and(|end| *end <= text.len() as u64));
        if layout != Layout::Array || Layout::of(text) != Layout::Array {
            continue;
        }
        let plain = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        if let Ok(serde_json::Value::Array(rows)) = serde_json::from_slice(plain) {
            assert_eq!(rows.len() + 1, offsets.len());
            for span in offsets.windows(2) {
                let row = trim_row(&text[span[0] as usize..span[1] as usize], layout);
                assert!(Value::from_json(row).is_ok(), "{:?}", String::from_utf8_lossy(row));
            }
        }
    }
});
