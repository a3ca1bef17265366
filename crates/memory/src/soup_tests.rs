//! Bytes in any order: what reads files and outputs gives up on them or reads them, and never panics.

use crate::{
    steps::{OutputParser, StepBoard, StepPatterns},
    trace::{TraceOptions, TraceReader},
};

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

#[test]
fn no_soup_of_bytes_makes_the_readers_panic() {
    let pieces: [&[u8]; 44] = [
        b"Step ",
        b"RAM: ",
        b"rss=",
        b"memory",
        b"5552",
        b"5,552",
        b"1e300",
        b"-5",
        b" MB",
        b"GiB",
        b"/",
        b"{",
        b"}",
        b"'",
        b"\"",
        b":",
        b",",
        b";",
        b"\t",
        b"\n",
        b"\r",
        b"\r\n",
        b"\x1b[",
        b"\x1b",
        b"m",
        b"\x08",
        b"%|",
        b"| 10/83 [",
        "━━━".as_bytes(),
        b"Epoch 1/3",
        b"t,rss\n",
        b"MEM 1 2\n",
        b"CMDLINE x\n",
        b"# Elapsed time real\n",
        b"{\"trace\":\"model-garden/1\"}\n",
        b"\xff\xfe",
        b"\xfe\xff",
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"\xff",
        b"\0",
        "é".as_bytes(),
        b"2025-06-01 10:00:00",
        b"99999999999999999999999",
    ];
    let given = TraceOptions {
        memory: Some(r"(\S+)\s(\S*)".parse().expect("a pattern")),
        column: Some("rss".into()),
        unit: Some("GB".parse().expect("a unit")),
        time_unit: Some("ms".parse().expect("a unit")),
        ..TraceOptions::default()
    };
    let column = TraceOptions { memory: None, ..given.clone() };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("soup");
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..400 {
        let soup: Vec<u8> =
            (0..1 + dice.roll(60)).flat_map(|_| pieces[dice.roll(pieces.len())]).copied().collect();
        std::fs::write(&path, &soup).expect("a file");
        for options in [&TraceOptions::default(), &given, &column] {
            if let Ok(reader) = TraceReader::open_with(&path, options) {
                let samples = reader.map_while(Result::ok);
                assert!(samples.take(1000).all(|sample| sample.t.is_finite() && sample.rss <= 1 << 50));
            }
        }
        OutputParser::new(StepBoard::default(), &StepPatterns::default()).feed(&soup);
    }
}
