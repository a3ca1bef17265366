//! Compares with Pillow and HF's Qwen2.5-VL processor, through the files that `goldens/make.py` made with
//! them.

use garden_data::{
    Conversation, DecodeLimits, Encoded, EncodedRow, Encoder, Grid, ImageSource, ImageWorkspace, Part,
    PixelLimits, Processor, ProcessorConfig, Purpose, Recipe, Role, TrainOn, Turn,
    parsers::{Value, decode_image, image_extent, read_row},
};
use serde::Deserialize;
use std::{fs, path::Path, path::PathBuf, sync::Arc};

#[derive(Deserialize)]
struct Goldens {
    images: Vec<ImageGolden>,
    texts: Vec<TextGolden>,
    hostile: HostileGolden,
    sizes: Vec<SizeGolden>,
}

/// Width, height, fewest and most pixels; then the width and height after resizing, unless it is refused.
type SizeGolden = (u32, u32, u64, u64, Option<u32>, Option<u32>);

#[derive(Deserialize)]
struct ImageGolden {
    file: String,
    min_pixels: u64,
    max_pixels: u64,
    width: u32,
    height: u32,
    decoded_crc: u32,
    grid: [u32; 3],
    resized_crc: u32,
    values_crc: u32,
    values: Vec<(usize, f32)>,
}

#[derive(Deserialize)]
struct TextGolden {
    turns: Vec<TurnGolden>,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    assistant: Vec<usize>,
    image_positions: Vec<usize>,
    grids: Vec<[u32; 3]>,
}

#[derive(Deserialize)]
struct HostileGolden {
    turns: Vec<TurnGolden>,
    ids: Vec<u32>,
    assistant: Vec<usize>,
}

#[derive(Deserialize)]
struct TurnGolden {
    role: String,
    parts: Vec<PartGolden>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartGolden {
    Text(String),
    Image(String),
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

fn goldens() -> Goldens {
    let text = fs::read_to_string(folder().join("goldens.json")).expect("goldens.json");
    serde_json::from_str(&text).expect("as make.py writes it")
}

fn encoded_image(name: &str) -> Vec<u8> {
    fs::read(folder().join("images").join(name)).expect(name)
}

fn encoder() -> Encoder {
    Encoder::from_dir(&folder().join("checkpoint")).expect("the small checkpoint")
}

fn processor(min: u64, max: u64) -> Processor {
    let limits = PixelLimits { min: Some(min), max: Some(max) };
    Processor::from_dir(&folder().join("checkpoint"), limits, DecodeLimits::default())
        .expect("the small checkpoint")
}

fn conversation(turns: &[TurnGolden]) -> Conversation {
    let part = |part: &PartGolden| match part {
        PartGolden::Text(text) => Part::Text(text.clone()),
        PartGolden::Image(name) => Part::Image(ImageSource::Path(name.into())),
    };
    let turn = |turn: &TurnGolden| {
        let role = Role::from_name(&turn.role).expect("a known role");
        Turn::new(role, turn.parts.iter().map(part).collect())
    };
    Conversation::new(turns.iter().map(turn).collect())
}

fn positions(flags: &[bool]) -> Vec<usize> {
    flags.iter().enumerate().filter_map(|(at, &flag)| flag.then_some(at)).collect()
}

#[test]
fn images_decode_to_pillows_pixels() {
    for golden in goldens().images {
        let encoded = encoded_image(&golden.file);
        let pixels = decode_image(&encoded, DecodeLimits::default()).expect(&golden.file);
        assert_eq!((pixels.width, pixels.height), (golden.width, golden.height), "{}", golden.file);
        assert_eq!(crc32fast::hash(&pixels.rgb), golden.decoded_crc, "{}: pixels differ", golden.file);
        let extent = image_extent(&encoded, DecodeLimits::default()).expect(&golden.file);
        let size = (extent.width, extent.height);
        assert_eq!(size, (golden.width, golden.height), "{}: by the header alone", golden.file);
    }
}

#[test]
fn patches_and_values_are_hfs_bit_for_bit() {
    let mut work = ImageWorkspace::default();
    for golden in goldens().images {
        let processor = processor(golden.min_pixels, golden.max_pixels);
        let encoded = encoded_image(&golden.file);
        let (mut patches, mut values) = (Vec::new(), Vec::new());
        let grid = processor.append_patches(&encoded, &mut work, &mut patches).expect(&golden.file);
        assert_eq!([1, grid.rows, grid.columns], golden.grid, "{}", golden.file);
        assert_eq!(
            processor.header(&encoded).expect(&golden.file).grid,
            grid,
            "{}: by the header",
            golden.file
        );
        assert_eq!(
            crc32fast::hash(&unpatched(&patches, grid)),
            golden.resized_crc,
            "{}: resized",
            golden.file
        );
        processor.append_pixel_values(&patches, &mut values);
        for (at, expected) in golden.values {
            assert!((values[at] - expected).abs() <= 1e-6, "{}: value {at}", golden.file);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(crc32fast::hash(&bytes), golden.values_crc, "{}: values", golden.file);
    }
}

/// Lays compact patches out as an image again, written apart from the code under test.
fn unpatched(patches: &[u8], grid: Grid) -> Vec<u8> {
    let (width, height) = (grid.columns as usize * 14, grid.rows as usize * 14);
    let mut rgb = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let (block_row, block_column) = (y / 28, x / 28);
            let block = block_row * (width / 28) + block_column;
            let patch = block * 4 + (y % 28 / 14) * 2 + (x % 28 / 14);
            for channel in 0..3 {
                rgb.push(patches[patch * 588 + channel * 196 + (y % 14) * 14 + x % 14]);
            }
        }
    }
    rgb
}

#[test]
fn sizes_are_those_of_smart_resize() {
    for (width, height, min_pixels, max_pixels, wide, high) in goldens().sizes {
        let config = ProcessorConfig { min_pixels, max_pixels, ..ProcessorConfig::default() };
        let grid = config.grid(width, height).ok();
        let expected = wide.zip(high).map(|(wide, high)| Grid { rows: high / 14, columns: wide / 14 });
        assert_eq!(grid, expected, "{width}x{height} within {min_pixels}..{max_pixels}");
    }
}

#[test]
fn ids_and_labels_are_hfs() {
    let encoder = Arc::new(encoder());
    let recipe =
        |purpose| Recipe { processor: processor(3136, 12_845_056), encoder: encoder.clone(), purpose };
    let (learn, answer) = (recipe(Purpose::default()), recipe(Purpose::Answer));
    for golden in goldens().texts {
        let row = conversation(&golden.turns);
        let bytes = |source: &ImageSource| match source {
            ImageSource::Path(name) => encoded_image(&name.to_string_lossy()),
            other => panic!("{other:?}"),
        };
        let images: Vec<Vec<u8>> = row.images().map(bytes).collect();
        let EncodedRow { images: headers, tokens: encoded, .. } =
            learn.encode(&row, learn.processor.headers(&images).expect("headers")).expect("encodes");
        let grids: Vec<_> = headers.iter().map(|image| [1, image.grid.rows, image.grid.columns]).collect();
        assert_eq!(grids, golden.grids);
        assert_eq!(encoded.ids, golden.ids, "{row:?}");
        assert_eq!(positions(&encoded.trained), golden.assistant, "labels of {row:?}");
        assert_eq!(encoded.images.iter().cloned().flatten().collect::<Vec<_>>(), golden.image_positions);
        let prompt =
            answer.encode(&row, answer.processor.headers(&images).expect("headers")).expect("encodes").tokens;
        assert_eq!(prompt.ids, golden.prompt_ids, "prompt of {row:?}");
        assert!(positions(&prompt.trained).is_empty());
    }
}

#[derive(Deserialize)]
struct RowGolden {
    row: String,
    ids: Vec<u32>,
    assistant: Vec<usize>,
}

/// The small checkpoint with a template that shows tools.
fn encoder_with_tools() -> Encoder {
    let checkpoint = tempfile::tempdir().expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder().join("checkpoint").join(name), checkpoint.path().join(name)).expect(name);
    }
    fs::copy(folder().join("tools.jinja"), checkpoint.path().join("chat_template.jinja"))
        .expect("tools.jinja");
    Encoder::from_dir(checkpoint.path()).expect("the small checkpoint")
}

fn row(text: &str) -> Conversation {
    let value = Value::from_json(text.as_bytes()).expect("JSON");
    read_row(&value).unwrap_or_else(|error| panic!("{text}: {error}")).conversation
}

#[test]
fn grounding_tokens_tools_and_calls_are_hfs() {
    let text = fs::read_to_string(folder().join("rows.json")).expect("rows.json");
    let goldens: Vec<RowGolden> = serde_json::from_str(&text).expect("as make_rows.py writes it");
    let encoder = encoder_with_tools();
    for golden in goldens {
        let encoded = encoder.encode(&row(&golden.row), &[], TrainOn::Assistant).expect("encodes");
        assert_eq!(encoder.decode(&encoded.ids), encoder.decode(&golden.ids), "{}", golden.row);
        assert_eq!(encoded.ids, golden.ids, "{}", golden.row);
        assert_eq!(positions(&encoded.trained), golden.assistant, "labels of {}", golden.row);
    }
}

#[test]
fn a_template_without_tools_refuses_them_by_name() {
    let rows = [
        (
            r#"{"tools": [{"name": "f"}], "messages": [{"role": "user", "content": "x"}]}"#,
            "remove 'tools' from the row",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"name": "f", "arguments": {}}]}]}"#,
            "shows no tool calls",
        ),
    ];
    for (text, message) in rows {
        let error = encoder().encode(&row(text), &[], TrainOn::Assistant).expect_err(text).to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn only_what_a_row_lets_be_learned_is() {
    let weighted = r#"{"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "one", "weight": 0},
        {"role": "user", "content": "ask"}, {"role": "assistant", "content": "two"}]}"#;
    let completion = r#"{"prompt": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "one"},
        {"role": "user", "content": "ask"}], "completion": "two"}"#;
    let encoder = encoder();
    for text in [weighted, completion] {
        let said = |train_on| learned(&encoder, &encoder.encode(&row(text), &[], train_on).expect("encodes"));
        assert_eq!(said(TrainOn::Assistant), "two<|im_end|>", "{text}");
        assert_eq!(said(TrainOn::Last), "two<|im_end|>", "{text}");
        let all = said(TrainOn::All);
        assert!(
            !all.contains("one<|im_end|>") && all.contains("assistant\n\n<|im_start|>user\nask"),
            "{all}"
        );
    }
}

#[test]
fn control_tokens_in_text_stay_text() {
    let golden = goldens().hostile;
    let encoded = encoder().encode(&conversation(&golden.turns), &[], TrainOn::Assistant).expect("encodes");
    assert_eq!(encoded.ids, golden.ids);
    assert_eq!(positions(&encoded.trained), golden.assistant);
}

fn exchange(answers: &[&str]) -> Conversation {
    let text = |role, text: &str| Turn::new(role, vec![Part::Text(text.into())]);
    let turns = answers.iter().flat_map(|answer| [text(Role::User, "ask"), text(Role::Assistant, answer)]);
    Conversation::new(turns.collect())
}

fn learned(encoder: &Encoder, encoded: &Encoded) -> String {
    encoder
        .runs(encoded)
        .expect("decodes")
        .0
        .iter()
        .filter(|run| run.trained)
        .map(|run| &run.text[..])
        .collect()
}

#[test]
fn train_on_chooses_the_turns() {
    let (encoder, row) = (encoder(), exchange(&["one", "two"]));
    let learned = |train_on| learned(&encoder, &encoder.encode(&row, &[], train_on).expect("encodes"));
    assert_eq!(learned(TrainOn::Assistant), "one<|im_end|>two<|im_end|>");
    assert_eq!(learned(TrainOn::Last), "two<|im_end|>");
    let all = learned(TrainOn::All);
    assert!(all.starts_with("system\n") && all.ends_with("two<|im_end|>\n"), "{all}");
    let unanswered = Conversation::new(row.turns[..1].to_vec());
    let encoded = encoder.encode(&unanswered, &[], TrainOn::Assistant).expect("encodes");
    assert!(positions(&encoded.trained).is_empty());
}

#[test]
fn a_sample_shows_its_labels_and_images() {
    let mut row = exchange(&["A lake."]);
    row.turns[0].parts.insert(0, Part::Image(ImageSource::Path("lake.jpg".into())));
    let encoder = encoder();
    let encoded = encoder.encode(&row, &[12], TrainOn::Assistant).expect("encodes");
    let shown = encoder.runs(&encoded).expect("decodes").shown(usize::MAX);
    let expected = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n\
                    <|vision_start|><|image_pad|>x12<|vision_end|>ask<|im_end|>\n\
                    <|im_start|>assistant\n[[A lake.<|im_end|>]]\n";
    assert_eq!(shown, expected);
}

#[test]
fn a_sample_shows_each_token_by_itself() {
    let encoder = encoder();
    let mut encoded = encoder.encode(&exchange(&["👩 [[1]]"]), &[], TrainOn::Assistant).expect("encodes");
    let first = encoded.trained.iter().position(|trained| *trained).expect("an answer");
    // As if another rule had excluded the first token of the answer, which is a piece of a character.
    encoded.trained[first] = false;
    let shown = encoder.runs(&encoded).expect("decodes").shown(usize::MAX);
    let (_, answer) = shown.split_once("assistant\n").expect("an answer");
    assert_eq!(
        answer, "\\xf0⟦\\x9f\\x91\\xa9 [[1]]<|im_end|>⟧\n",
        "a cut character as bytes, other brackets"
    );
}

#[test]
fn images_and_placeholders_must_agree() {
    let encoder = encoder();
    let failure = encoder.encode(&exchange(&["x"]), &[4], TrainOn::All).expect_err("no image is shown");
    assert_eq!(failure.to_string(), "the chat template shows 0 images where the row has 1");
}
