//! Our side of `bench/train_step.py`: a model in training that takes a step when it is told to.
//!
//!     train_step init tiny|small|medium|3b FOLDER
//!     train_step run MODEL ADAPTER BATCH f32|nf4 keep|recompute
//!
//! `run` answers every line on its standard input with a line of JSON: `step` with the seconds and the loss
//! of one step of AdamW, `memory` with the peak of the process and what was planned, `limit` with the speed
//! of large products.

use anyhow::{Context, Result, bail};
use garden_bench::{processor_seconds, resident};
use garden_engine::product::{self, Matrix, Output, Right, Start, Term, multiply};
use garden_model::{
    Adapter, Checkpoint, MemoryPlan, Model, ModelConfig, ModelWeights, PackedBatch, PlanRequest, Precision,
    Recompute, Session, Shapes,
    init::{Plan, Preset},
};
use garden_train::{AdamSettings, Optimizer, OptimizerKind};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, stdin};
use std::path::Path;
use std::time::Instant;

/// As in `bench/train_step_hf.py`.
const RATE: f64 = 1e-4;
const ADAM: AdamSettings = AdamSettings { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["init", preset, folder] => init(preset, Path::new(folder)),
        ["run", model, adapter, batch, precision, recompute] => {
            let began = Instant::now();
            let mut run =
                Run::new(Path::new(model), Path::new(adapter), Path::new(batch), precision, recompute)?;
            println!("{}", json!({ "load_s": began.elapsed().as_secs_f64() }));
            for line in stdin().lock().lines() {
                println!("{}", run.answer(&line?)?);
            }
            Ok(())
        }
        _ => bail!("train_step init PRESET FOLDER | run MODEL ADAPTER BATCH f32|nf4 keep|recompute"),
    }
}

fn init(preset: &str, folder: &Path) -> Result<()> {
    let preset = Preset::ALL.into_iter().find(|known| known.name() == preset).context("no such preset")?;
    Plan::new(preset)?.write(folder, 0, |_| {})?;
    Ok(())
}

/// The batch as `bench/train_step.py` writes it; the patches are bytes in a file beside it.
#[derive(Deserialize)]
struct Batch {
    rows: Vec<Vec<u32>>,
    labels: Vec<Vec<i32>>,
    grids: Vec<[usize; 3]>,
    #[serde(skip)]
    patches: Vec<u8>,
}

impl Batch {
    fn read(folder: &Path) -> Result<Self> {
        let mut batch: Self = serde_json::from_slice(&fs::read(folder.join("batch.json"))?)?;
        batch.patches = fs::read(folder.join("patches.bin"))?;
        Ok(batch)
    }
}

/// A model, its optimizer, and the one batch they see.
struct Run {
    model: Model,
    session: Session,
    optimizer: Optimizer,
    ids: Vec<u32>,
    labels: Vec<i32>,
    segments: Vec<usize>,
    batch: Batch,
    labelled: usize,
    plan: MemoryPlan,
}

impl Run {
    fn new(model: &Path, adapter: &Path, batch: &Path, precision: &str, recompute: &str) -> Result<Self> {
        let precision = match precision {
            "f32" => Precision::AsStored,
            "nf4" => Precision::Bits4,
            other => bail!("{other}: f32 or nf4"),
        };
        let recompute = match recompute {
            "keep" => Recompute::Never,
            "recompute" => Recompute::Always,
            other => bail!("{other}: keep or recompute"),
        };
        let process = usize::try_from(resident()?.peak)?;
        let config = ModelConfig::read(model)?;
        let checkpoint = Checkpoint::open(model)?;
        let held = checkpoint.stored(&config)?.loaded(precision);
        let weights = ModelWeights::load(&checkpoint, &config, precision, |_| {})?;
        drop(checkpoint);
        let adapter = Adapter::read(adapter, &config)?;
        let lora = adapter.settings.clone();
        let mut model = Model::with_adapter(config, weights, adapter);

        let batch = Batch::read(batch)?;
        let (ids, labels) = (batch.rows.concat(), batch.labels.concat());
        let mut segments = vec![0];
        segments.extend(batch.rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        }));
        let labelled = labels.iter().filter(|label| **label >= 0).count();
        let patches = batch.grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        let shapes = Shapes { tokens: ids.len(), patches, labels: labelled };
        let session = Session::new(&model, shapes, recompute)?;
        let mut shapes_trained = Vec::new();
        session.visit(&mut model, &mut |tensor| shapes_trained.push(tensor.shape));
        let optimizer = Optimizer::new(OptimizerKind::Adamw, ADAM, shapes_trained);
        let request = PlanRequest {
            held,
            lora: Some(&lora),
            optimizer: usize::try_from(optimizer.bytes())?,
            gradient_sum: 0,
            shapes,
            batches: size_of_val(&*batch.patches),
            process,
        };
        let plan = MemoryPlan::new(model.config(), &request, recompute)?;
        Ok(Self { model, session, optimizer, ids, labels, segments, batch, labelled, plan })
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        Ok(match line {
            "step" => self.step()?,
            "memory" => json!({ "peak_bytes": resident()?.peak, "planned_bytes": self.plan.total(),
                "arena_bytes": self.session.usage().peak_bytes, "parts": self.plan.parts() }),
            "limit" => json!({ "flops": limit() }),
            other => bail!("{other}: step, memory or limit"),
        })
    }

    fn step(&mut self) -> Result<Value> {
        let batch = PackedBatch {
            ids: &self.ids,
            labels: &self.labels,
            segments: &self.segments,
            patches: &self.batch.patches,
            grids: &self.batch.grids,
        };
        let (began, before) = (Instant::now(), product::multiplications());
        let processor = processor_seconds();
        let sums = self.session.step(&self.model, &batch, 1.0 / self.labelled as f32, 0)?;
        self.optimizer.begin_step();
        let mut tensor = 0;
        self.session.visit(&mut self.model, &mut |shown| {
            self.optimizer.update(tensor, shown, RATE, 1.0);
            tensor += 1;
        });
        self.session.clear_gradients();
        let seconds = began.elapsed().as_secs_f64();
        let processor = processor_seconds() - processor;
        let operations = 2 * (product::multiplications() - before);
        let loss = sums.loss / sums.tokens as f64;
        Ok(json!({ "seconds": seconds, "processor_s": processor, "loss": loss, "operations": operations }))
    }
}

/// Side of the square matrices whose product is the limit: far too large for any cache, and as favourable as
/// a product gets.
const SIDE: usize = 2048;

/// Multiplications and additions per second, in the best of several products of large square matrices.
fn limit() -> f64 {
    let (left, right) = (vec![0.5f32; SIDE * SIDE], vec![0.25f32; SIDE * SIDE]);
    let mut out = vec![0.0; SIDE * SIDE];
    let mut scratch = vec![0.0; product::scratch_len(SIDE, SIDE)];
    let right = Right::Dense(Matrix::new(&right, SIDE, SIDE));
    let term = Term { left: Matrix::new(&left, SIDE, SIDE), right };
    let fastest = (0..8)
        .map(|_| {
            let began = Instant::now();
            multiply(Output::new(&mut out, SIDE, SIDE), Start::ZERO, &[term], &mut scratch);
            began.elapsed().as_secs_f64()
        })
        .fold(f64::MAX, f64::min);
    2.0 * (SIDE * SIDE * SIDE) as f64 / fastest
}
