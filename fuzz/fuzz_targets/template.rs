//! Turns any text in any turns into token ids: no panic, and text never becomes a control token.
#![no_main]

use garden_data::{Conversation, Encoder, ImageSource, Part, Role, TrainOn, Turn};
use libfuzzer_sys::fuzz_target;
use std::{path::Path, sync::LazyLock};

static ENCODER: LazyLock<Encoder> = LazyLock::new(|| {
    let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/data/tests/goldens/checkpoint");
    Encoder::from_dir(Path::new(checkpoint)).expect("the checkpoint of the tests")
});

/// Each line is a turn: its first byte decides the role, and a tab stands for an image.
fn conversation(text: &str) -> Conversation {
    let turn = |line: &str| {
        let role = [Role::User, Role::Assistant, Role::System, Role::Tool][line.len() % 4];
        let images = matches!(role, Role::User | Role::Tool);
        let mut parts = Vec::new();
        for (i, piece) in line.split('\t').enumerate() {
            if i > 0 && images {
                parts.push(Part::Image(ImageSource::Bytes(vec![0])));
            }
            parts.push(Part::Text(piece.to_owned()));
        }
        Turn::new(role, parts)
    };
    Conversation::new(text.split('\n').map(turn).collect())
}

fuzz_target!(|text: &str| {
    let row = conversation(text);
    let tokens: Vec<_> = row.images().map(|_| 3).collect();
    for train_on in [TrainOn::Assistant, TrainOn::Last, TrainOn::All] {
        let Ok(encoded) = ENCODER.encode(&row, &tokens, train_on) else { continue };
        assert_eq!(encoded.ids.len(), encoded.trained.len());
        assert_eq!(encoded.images.len(), tokens.len());
        let placeholders = encoded.ids.iter().filter(|id| Some(**id) == ENCODER.image_token()).count();
        assert_eq!(placeholders, tokens.iter().sum::<usize>());
    }
});
