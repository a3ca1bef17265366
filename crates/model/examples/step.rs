//! Times training steps: `step DIR [f32|bf16|int8|nf4] [keep|recompute|BYTES] [STEPS] [vision]`.
//!
//! The batch is that of the peers' script: two rows, each a picture of 336 x 336 and 128 labelled tokens. Prints one line
//! of JSON with the median step, the arena and the peak of resident memory.

use garden_model::compute::{Model, PackedBatch, Recompute, Session, Shapes};
use garden_model::{Adapter, Checkpoint, LayerGroups, LoraSettings, ModelConfig, ModelWeights, Precision};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

const ROWS: usize = 2;
const SIDE: usize = 24;
const TEXT: usize = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| arguments.get(at).map_or(default.to_owned(), Clone::clone);
    let dir = argument(0, ".");
    let config = ModelConfig::read(Path::new(&dir))?;
    let precision = match argument(1, "f32").as_str() {
        "bf16" => Precision::Bits16,
        "int8" => Precision::Bits8,
        "nf4" => Precision::Bits4,
        _ => Precision::AsStored,
    };
    let recompute = match argument(2, "keep").as_str() {
        "keep" => Recompute::Never,
        "recompute" => Recompute::Always,
        bytes => Recompute::Within(bytes.parse()?),
    };
    let began = Instant::now();
    let weights = ModelWeights::load(&Checkpoint::open(Path::new(&dir))?, &config, precision, |_| {})?;
    let load = began.elapsed().as_secs_f64();
    let groups = LayerGroups { vision: argument(4, "") == "vision", ..LayerGroups::default() };
    let target_modules = groups.pattern()?;
    let settings = LoraSettings { rank: 16, alpha: 16.0, dropout: 0.0, rslora: false, target_modules };
    let adapter = Adapter::fresh(&config, settings, 0)?;
    let model = Model::with_adapter(config.clone(), weights, adapter);

    let (patches, tokens) = (SIDE * SIDE, SIDE * SIDE / 4);
    let row = 2 + tokens + TEXT;
    let (mut ids, mut labels, mut segments) = (Vec::new(), Vec::new(), vec![0]);
    for index in 0..ROWS {
        ids.push(config.vision_start_token_id);
        ids.extend(std::iter::repeat_n(config.image_token_id, tokens));
        ids.push(config.vision_end_token_id);
        labels.extend(std::iter::repeat_n(-100, 2 + tokens));
        let text = (0..TEXT as u32).map(|at| 5 + (at * 2654435 + index as u32 * 97) % 1000);
        labels.extend(text.clone().map(|id| id as i32));
        ids.extend(text);
        segments.push(ids.len());
    }
    let bytes: Vec<u8> = (0..ROWS * patches * 588).map(|at| (at * 7919 % 251) as u8).collect();
    let grids = vec![[1, SIDE, SIDE]; ROWS];
    let batch =
        PackedBatch { ids: &ids, labels: &labels, segments: &segments, patches: &bytes, grids: &grids };
    let shapes = Shapes { tokens: ROWS * row, patches: ROWS * patches, labels: ROWS * TEXT };
    let mut session = Session::new(&model, shapes, recompute)?;
    let mut times = Vec::new();
    let mut loss = 0.0;
    for _ in 0..argument(3, "4").parse::<usize>()? {
        let start = Instant::now();
        let sums = session.step(&model, &batch, 1.0, 0)?;
        session.clear_gradients();
        times.push(start.elapsed().as_secs_f64());
        loss = sums.loss / sums.tokens as f64;
    }
    let first = times.remove(0);
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(first);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!(
        "{{\"load_s\": {load:.2}, \"first_s\": {first:.3}, \"step_s\": {median:.3}, \"loss\": {loss:.4}, \
         \"arena_mb\": {}, \"peak\": \"{}\"}}",
        session.usage().peak_bytes >> 20,
        peak.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    );
    Ok(())
}
