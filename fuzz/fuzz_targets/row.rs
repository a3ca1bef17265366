//! Reads any text as a row: no panic, and images only where they may be.
#![no_main]

use garden_data::{
    Part, Role,
    parsers::{Reading, Value, read_row},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(value) = Value::from_json(text) else { return };
    let Ok(Reading { conversation: row, .. }) = read_row(&value) else { return };
    assert!(!row.turns.is_empty());
    for turn in &row.turns {
        let images = turn.parts.iter().any(|part| matches!(part, Part::Image(_)));
        assert!(!images || matches!(turn.role, Role::User | Role::Tool));
    }
});
