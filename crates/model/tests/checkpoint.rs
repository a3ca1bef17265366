//! Model folders in every layout they come in, and every way they can be broken.

mod common;

use common::{Layout, PLAIN, Tensors, load_model, manifest, weight, write_model};
use garden_engine::{Elements, StoredAs, Weight, stored_bytes};
use garden_engine::{Nf4, Nf4Scales};
use garden_model::{
    Checkpoint, Dtype, ModelConfig, ModelWeights, Precision, TensorEntry, TensorFile, TensorSpec,
    TensorWriter,
};
use std::path::Path;

#[test]
fn every_layout_gives_the_same_weights() {
    let model = &manifest().models[1];
    let config = model.config();
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        for (old_names, files) in [(false, 1), (true, 1), (false, 3), (true, 2)] {
            let layout = Layout { old_names, files, dtype };
            let loaded = load_model(model, layout, Precision::AsStored);
            let drawn = |name: &str, shape: &[usize]| layout.rounded(weight(model.seed, name, shape));
            let down = &loaded.text.layers[1].mlp.down.weight;
            let width = config.text.hidden_size;
            assert_eq!(
                down.to_f32(),
                drawn("model.language_model.layers.1.mlp.down_proj.weight", &[width, 72])
            );
            let qkv = &loaded.vision.blocks[3].qkv;
            assert_eq!(qkv.weight.to_f32(), drawn("model.visual.blocks.3.attn.qkv.weight", &[72, 24]));
            assert_eq!(qkv.bias.clone().unwrap(), drawn("model.visual.blocks.3.attn.qkv.bias", &[72]));
            let head = loaded.text.head.as_ref().expect("this model's head is its own");
            assert_eq!(head.to_f32(), drawn("lm_head.weight", &[96, 64]));
            assert_eq!(loaded.vision.merger_norm, drawn("model.visual.merger.ln_q.weight", &[24]));
        }
    }
}

#[test]
fn what_is_kept_as_stored_stays_in_the_file() {
    let loaded = load_model(&manifest().models[0], PLAIN, Precision::AsStored);
    let Elements::F32(values) = loaded.text.layers[0].q.weight.elements() else { panic!("not f32") };
    assert!(!values.is_owned(), "an f32 matrix of an f32 checkpoint must be borrowed from the mapped file");
}

#[test]
fn each_precision_holds_the_matrices_it_says() {
    let model = &manifest().models[0];
    for (precision, layers, embedding) in [
        (Precision::AsStored, StoredAs::F32, StoredAs::F32),
        (Precision::F32, StoredAs::F32, StoredAs::F32),
        (Precision::Bits16, StoredAs::Bf16, StoredAs::Bf16),
        (Precision::Bits8, StoredAs::Int8, StoredAs::F32),
        (Precision::Bits4, StoredAs::Nf4, StoredAs::F32),
    ] {
        let loaded = load_model(model, PLAIN, precision);
        assert_eq!(loaded.text.layers[2].q.weight.stored_as(), layers, "{precision:?}");
        assert_eq!(loaded.vision.blocks[0].mlp.up.weight.stored_as(), layers, "{precision:?}");
        assert_eq!(loaded.text.embedding.stored_as(), embedding, "{precision:?}");
        assert_eq!(loaded.vision.merger[0].weight.stored_as(), embedding, "{precision:?}");
    }
}

fn bnb(folder: &str) -> ModelWeights {
    let dir = common::folder().join(folder);
    let config = ModelConfig::read(&dir).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    ModelWeights::load(&checkpoint, &config, Precision::AsStored, |_| {}).unwrap()
}

fn first_layer(weights: &ModelWeights) -> Vec<(&'static str, &Weight)> {
    let (text, vision) = (&weights.text.layers[0], &weights.vision.blocks[0]);
    vec![
        ("model.language_model.layers.0.self_attn.q_proj.weight", &text.q.weight),
        ("model.language_model.layers.0.self_attn.k_proj.weight", &text.k.weight),
        ("model.language_model.layers.0.mlp.down_proj.weight", &text.mlp.down.weight),
        ("model.visual.blocks.0.attn.qkv.weight", &vision.qkv.weight),
        ("model.visual.blocks.0.mlp.gate_proj.weight", &vision.mlp.gate.weight),
    ]
}

const MERGER: &str = "model.visual.merger.mlp.2.weight";

#[test]
fn bitsandbytes_checkpoints_dequantise_as_bitsandbytes_does() {
    let stored = Tensors::open("bnb-dequantized.safetensors");
    let nested = bnb("bnb-nested");
    for (name, weight) in first_layer(&nested) {
        assert_eq!(weight.stored_as(), StoredAs::Nf4, "{name}");
        assert_eq!(weight.to_f32(), stored.f32(name), "{name}");
    }
    assert_eq!(nested.vision.merger[1].weight.to_f32(), stored.f32(MERGER));
    let plain = bnb("bnb-plain");
    for ((name, ours), (_, nested)) in first_layer(&plain).into_iter().zip(first_layer(&nested)) {
        let (Elements::Nf4(ours), Elements::Nf4(nested)) = (ours.elements(), nested.elements()) else {
            panic!("{name} is not NF4")
        };
        assert!(matches!(ours.scales(), Nf4Scales::Plain(_)), "{name}");
        assert_eq!(ours.packed(), nested.packed(), "{name}: only the scales differ between the two forms");
    }
}

/// Hugging Face quantises the merger unless told not to; we leave it as it is, in either case.
#[test]
fn a_merger_in_four_bits_is_held_as_it_is_stored() {
    let dir = common::folder().join("bnb-nested");
    let config = ModelConfig::read(&dir).unwrap();
    let checkpoint = Checkpoint::open(&dir).unwrap();
    for (precision, merger) in [
        (Precision::AsStored, StoredAs::Nf4),
        (Precision::F32, StoredAs::F32),
        (Precision::Bits16, StoredAs::Nf4),
        (Precision::Bits8, StoredAs::Nf4),
        (Precision::Bits4, StoredAs::Nf4),
    ] {
        let loaded = ModelWeights::load(&checkpoint, &config, precision, |_| {}).unwrap();
        assert_eq!(loaded.vision.merger[0].weight.stored_as(), merger, "{precision:?}");
        // Of what config.json tells, the merger alone is not known.
        let (stored, assumed) = (checkpoint.stored(&config).unwrap(), config.stored());
        let bytes = |stored| stored_bytes(128, 128, stored) + stored_bytes(48, 128, stored);
        let more =
            bytes(if merger == StoredAs::F32 { StoredAs::F32 } else { StoredAs::Bf16 }) - bytes(merger);
        let [counted, assumed] = [stored, assumed].map(|held| held.loaded(precision).bytes());
        assert_eq!(assumed - counted, more, "{precision:?}");
    }
}

/// What bitsandbytes wrote is what loading the 16-bit model in 4 bits makes, bit for bit.
#[test]
fn quantising_on_load_gives_the_bytes_bitsandbytes_gives() {
    let theirs = bnb("bnb-nested");
    let layout = Layout { dtype: Dtype::BF16, ..PLAIN };
    let ours = load_model(&manifest().models[0], layout, Precision::Bits4);
    let parts = |weight: &Weight| -> (Vec<u8>, Vec<u8>, Vec<f32>, f32) {
        let Elements::Nf4(nf4) = weight.elements() else { panic!("not NF4") };
        let nf4: &Nf4 = nf4;
        let Nf4Scales::Nested { codes, scales, offset, .. } = nf4.scales() else { panic!("not nested") };
        (nf4.packed().to_vec(), codes.to_vec(), scales.to_vec(), *offset)
    };
    for ((name, ours), (_, theirs)) in first_layer(&ours).into_iter().zip(first_layer(&theirs)) {
        assert_eq!(parts(ours), parts(theirs), "{name}");
    }
}

/// A whole model in a folder, the file changed by `spoil`, then opened, checked and loaded: the message.
fn refusal(spoil: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let model = &manifest().models[0];
    write_model(dir.path(), model, PLAIN);
    spoil(&dir.path().join("model.safetensors"));
    load(dir.path()).expect_err("a broken checkpoint must be refused")
}

fn load(dir: &Path) -> Result<ModelWeights, String> {
    let config = ModelConfig::read(dir).map_err(|error| error.to_string())?;
    let checkpoint = Checkpoint::open(dir).map_err(|error| error.to_string())?;
    ModelWeights::load(&checkpoint, &config, Precision::AsStored, |_| {}).map_err(|error| error.to_string())
}

/// Rewrites the JSON header of a file; the data stays as it is.
fn edit_header(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    edit(&mut header);
    let text = header.to_string();
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out.extend(&bytes[8 + length..]);
    std::fs::write(path, out).unwrap();
}

const NAME: &str = "model.language_model.layers.1.mlp.up_proj.weight";

#[test]
fn a_truncated_file_names_the_first_tensor_it_lacks() {
    let message = refusal(|path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() - 1000]).unwrap();
    });
    assert!(message.contains("model.safetensors") && message.contains("truncated"), "{message}");
    assert!(message.contains("model.language_model.layers.2"), "{message}");
}

#[test]
fn offsets_beyond_the_end_name_their_tensor() {
    for end in [u64::MAX, u64::MAX - 7, 1 << 40] {
        let message = refusal(|path| {
            edit_header(path, |header| {
                header[NAME]["data_offsets"] = serde_json::json!([end - 4 * 80 * 48, end]);
            });
        });
        assert!(message.contains("model.safetensors") && message.contains(NAME), "{message}");
    }
}

#[test]
fn a_shape_that_does_not_fit_is_named_with_both_shapes() {
    let message = refusal(|path| {
        edit_header(path, |header| header[NAME]["shape"] = serde_json::json!([48, 80]));
    });
    assert!(
        message.contains(NAME) && message.contains("[48, 80]") && message.contains("[80, 48]"),
        "{message}"
    );
}

#[test]
fn overlapping_tensors_are_named() {
    let message = refusal(|path| {
        edit_header(path, |header| {
            let other = header["model.language_model.layers.0.mlp.up_proj.weight"]["data_offsets"].clone();
            header[NAME]["data_offsets"] = other;
        });
    });
    assert!(message.contains("expected"), "{message}");
}

#[test]
fn unknown_and_missing_tensors_are_named() {
    let rename = |path: &Path| {
        edit_header(path, |header| {
            let object = header.as_object_mut().unwrap();
            let entry = object.remove(NAME).unwrap();
            object.insert("model.layers.1.mlp.wrong.weight".into(), entry);
        });
    };
    let message = refusal(rename);
    assert!(message.contains(NAME) && message.contains("missing") && message.contains("1 more"), "{message}");
    let dir = tempfile::tempdir().unwrap();
    let model = &manifest().models[0];
    write_model(dir.path(), model, PLAIN);
    rename(&dir.path().join("model.safetensors"));
    let faults = Checkpoint::open(dir.path()).unwrap().faults(&model.config());
    let listed: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(listed[1].contains("model.layers.1.mlp.wrong.weight"), "{listed:?}");
}

#[test]
fn nan_and_infinity_are_named_with_their_place() {
    for (dtype, precision) in [
        (Dtype::F32, Precision::AsStored),
        (Dtype::F32, Precision::Bits4),
        (Dtype::BF16, Precision::Bits16),
        (Dtype::F16, Precision::F32),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let model = &manifest().models[0];
        write_model(dir.path(), model, Layout { dtype, ..PLAIN });
        let path = dir.path().join("model.safetensors");
        let entry = TensorFile::open(&path).unwrap().entries()[NAME].clone();
        let mut bytes = std::fs::read(&path).unwrap();
        let size = dtype.bitsize() / 8;
        let end = entry.bytes.start as usize + 6 * size;
        // All ones is a NaN in every float type.
        bytes[end - size..end].fill(0xFF);
        std::fs::write(&path, bytes).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let message =
            ModelWeights::load(&checkpoint, &model.config(), precision, |_| {}).unwrap_err().to_string();
        assert!(message.contains(NAME) && message.contains("element 5"), "{dtype:?}: {message}");
    }
}

#[test]
fn a_matrix_in_a_type_that_cannot_be_read_is_named() {
    let message = refusal(|path| {
        edit_header(path, |header| header[NAME]["dtype"] = serde_json::json!("I32"));
    });
    assert!(message.contains(NAME) && message.contains("I32"), "{message}");
}

#[test]
fn one_tensor_under_both_names_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |name: &str| TensorSpec { name: name.into(), dtype: Dtype::F32, shape: vec![1] };
    let twins = [spec("model.norm.weight"), spec("model.language_model.norm.weight")];
    let mut writer = TensorWriter::create(&dir.path().join("model.safetensors"), &twins, &[]).unwrap();
    writer.write_f32(&[1.0, 2.0]).unwrap();
    writer.finish().unwrap();
    let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("model.norm.weight") && message.contains("also in"), "{message}");
}

#[test]
fn an_index_may_not_lead_out_of_its_folder() {
    for name in ["../model.safetensors", "/etc/passwd", "model.bin"] {
        let dir = tempfile::tempdir().unwrap();
        let index = serde_json::json!({"weight_map": {"lm_head.weight": name}});
        std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("index.json"), "{message}");
    }
}

#[test]
fn a_file_that_the_index_names_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &manifest().models[0], Layout { files: 3, ..PLAIN });
    let lost = "model-00002-of-00003.safetensors";
    std::fs::remove_file(dir.path().join(lost)).unwrap();
    let message = load(dir.path()).unwrap_err();
    assert!(message.contains(lost) && message.contains("is the download complete?"), "{message}");
}

#[test]
fn folders_without_weights_say_what_they_lack() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("model.safetensors"));
    std::fs::write(dir.path().join("pytorch_model.bin"), b"").unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("safe_serialization"));
    assert!(Checkpoint::open(&dir.path().join("none")).unwrap_err().to_string().contains("no such folder"));
}

/// A part of a quantised matrix, to be damaged.
type Part = (TensorSpec, Vec<u8>);

/// Copies a quantised model with its tensor whose name ends with `end` changed, or left out where nothing is
/// given back.
fn write_damaged(dir: &Path, folder: &str, end: &str, damage: fn(Part) -> Option<Part>) {
    let source = common::folder().join(folder);
    std::fs::copy(source.join("config.json"), dir.join("config.json")).unwrap();
    let file = TensorFile::open(&source.join("model.safetensors")).unwrap();
    let read = |(name, entry): (&String, &TensorEntry)| {
        let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
        file.read_at(entry.bytes.start, &mut bytes).unwrap();
        let part = (TensorSpec { name: name.clone(), dtype: entry.dtype, shape: entry.shape.clone() }, bytes);
        if name.ends_with(end) { damage(part) } else { Some(part) }
    };
    let (specs, values): (Vec<_>, Vec<_>) = file.entries().iter().filter_map(read).unzip();
    let mut writer = TensorWriter::create(&dir.join("model.safetensors"), &specs, &[]).unwrap();
    values.iter().for_each(|bytes| writer.write(bytes).unwrap());
    writer.finish().unwrap();
}

fn left_out(_: Part) -> Option<Part> {
    None
}

fn one_short((mut spec, mut bytes): Part) -> Option<Part> {
    let size = bytes.len() / spec.shape[0];
    spec.shape[0] -= 1;
    bytes.truncate(bytes.len() - size);
    Some((spec, bytes))
}

fn signed((mut spec, bytes): Part) -> Option<Part> {
    spec.dtype = Dtype::I8;
    Some((spec, bytes))
}

fn all_ones((spec, mut bytes): Part) -> Option<Part> {
    bytes.fill(0xFF);
    Some((spec, bytes))
}

/// As many elements in another shape: [32, 32] becomes [16, 64].
fn reshaped((spec, bytes): Part) -> Option<Part> {
    let text = String::from_utf8(bytes).unwrap().replace("[32, 32]", "[16, 64]");
    Some((spec, text.into_bytes()))
}

/// What is not a value of codes or scales is seen without loading, which is what `inspect` does.
#[test]
fn broken_quantisation_parts_are_named() {
    const STATE: &str = "quant_state.bitsandbytes__nf4";
    type Case = (&'static str, &'static str, fn(Part) -> Option<Part>, &'static str, bool);
    let cases: [Case; 14] = [
        ("bnb-nested", "absmax", left_out, "missing", true),
        ("bnb-nested", "absmax", one_short, "15 values", true),
        ("bnb-nested", "absmax", signed, "16 values of I8", true),
        ("bnb-nested", "nested_absmax", left_out, "missing", true),
        ("bnb-nested", "nested_absmax", all_ones, "element 0", false),
        ("bnb-nested", "nested_quant_map", left_out, "missing", true),
        ("bnb-nested", "nested_quant_map", one_short, "255 values", true),
        ("bnb-nested", "nested_quant_map", all_ones, "element 0", false),
        ("bnb-nested", "quant_map", all_ones, "element 0", true),
        ("bnb-nested", STATE, all_ones, "expected value", true),
        ("bnb-nested", STATE, reshaped, "its shape is [16, 64], config.json makes it [32, 32]", true),
        ("bnb-plain", "absmax", left_out, "missing", true),
        ("bnb-plain", "absmax", one_short, "15 values", true),
        ("bnb-plain", "absmax", all_ones, "element 0", false),
    ];
    for (folder, part, damage, problem, by_header) in cases {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("visual.blocks.1.attn.proj.weight.{part}");
        write_damaged(dir.path(), folder, &name, damage);
        let message = load(dir.path()).expect_err(part);
        assert!(message.contains(&name) && message.contains(problem), "{folder}: {message}");
        let config = ModelConfig::read(dir.path()).unwrap();
        let faults = Checkpoint::open(dir.path()).unwrap().faults(&config);
        assert_eq!(faults.len(), usize::from(by_header), "{folder}, {part}: {faults:?}");
    }
}

/// Hundreds of damaged files: each is refused or read, none brings the process down.
#[test]
fn damaged_headers_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let model = &manifest().models[0];
    write_model(dir.path(), model, PLAIN);
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let config = model.config();
    let noise = common::random::Stream::new(7, "damage");
    let mut refused = 0;
    for round in 0..400u64 {
        let mut bytes = whole.clone();
        for change in 0..1 + round % 4 {
            let word = noise.bits(round * 8 + change);
            let at = (word >> 32) as usize % header;
            match word % 3 {
                0 => bytes[at] = word as u8,
                1 => bytes[at] = b"0123456789[]{},:\""[(word >> 8) as usize % 17],
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.len() < header {
                break;
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        let outcome = Checkpoint::open(dir.path()).and_then(|checkpoint| checkpoint.check(&config));
        refused += usize::from(outcome.is_err());
    }
    assert!(refused > 300, "most damage is seen ({refused} of 400)");
}
