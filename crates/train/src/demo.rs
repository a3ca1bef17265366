//! The whole path in a few minutes: a tiny model, some images, training, and what the model learned.
//!
//! Takes a folder and leaves in it a model, two sets of images and an adapter. Gives the share of right
//! answers before and after training, on images that were not trained on. Nothing is prepared in advance: the
//! model starts from random weights, only its adapter is trained, and the seed is fixed.

use crate::{
    announce::Announcer,
    cancel::Cancel,
    config::{RunConfig, TrainOptions},
    event::{EndReason, Observer, Topic},
    generate::{self, Interpreter, Sampling},
    model_folder::ModelFolder,
    optimizer::OptimizerKind,
    outputs::report::{Example, add_examples},
    run::{self, RunError},
    schedule::Shape,
};
use garden_data::{
    CreateKind, CreateOptions, Dataset, DatasetOptions, Part, PixelLimits, Role, RowReader, Turn,
    create_dataset, shape_colours,
};
use garden_model::{
    Precision,
    init::{Plan, Preset},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// Images to train on: each is seen a handful of times.
const TRAINING_ROWS: u64 = 400;
/// Images that are never trained on.
const HELD_OUT_ROWS: u64 = 120;
/// Four patches a side: four tokens an image.
const SIDE: u32 = 56;
/// Weights of the norm before the head. Only the adapter is trained: with weights of one, the frozen head
/// could not become more certain, and the loss of a right answer would end at 5.7.
const LAST_NORM: f32 = 8.0;
/// Answers that are shown.
const SHOWN: usize = 5;
/// The longest answer in tokens: no colour has more, and a model that does not end its answer is wrong
/// anyway.
const LONGEST_ANSWER: usize = 8;

/// What a demo showed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DemoResult {
    /// Images that were asked about.
    pub images: u64,
    /// Share of right answers of the model as it was made.
    pub before: f64,
    /// Share of right answers with the adapter.
    pub after: f64,
    /// What guessing among the colours would reach. A model with random weights does not even know their
    /// names.
    pub chance: f64,
    /// Some answers with the adapter.
    pub shown: Vec<Example>,
    /// The report.
    pub report: PathBuf,
}

/// Runs the demo in a new or empty folder; gives nothing if it was cancelled.
pub fn demo(
    folder: &Path,
    seed: u64,
    observer: &mut dyn Observer,
    cancel: &Cancel,
) -> Result<Option<DemoResult>, RunError> {
    let announcer = Announcer::new(observer);
    let model = folder.join("model");
    announcer.note(Topic::Demo, "making a tiny model with random weights, and images of coloured shapes");
    let plan = Plan::new(Preset::Tiny).map_err(other)?.with_last_norm(LAST_NORM);
    plan.write(&model, seed, |_| {}).map_err(other)?;
    let images = |name: &str, rows, seed| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let options =
            CreateOptions { kind: CreateKind::Colours, rows, width: SIDE, height: SIDE, seed, workers };
        create_dataset(&folder.join(name), &options, &announcer)
    };
    images("training", TRAINING_ROWS, seed)?;
    // Another seed makes other images.
    images("held-out", HELD_OUT_ROWS, seed + 1)?;

    let config = settings(folder, &model, seed).map_err(other)?;
    let before = share_right(&ask(folder, None)?);
    let right = format!("before training: {:.0} % right on {HELD_OUT_ROWS} images", 100.0 * before);
    announcer.note(Topic::Demo, right);
    drop(announcer);
    match run::train(&config, observer, cancel)?.reason {
        EndReason::MemoryLimit => return Err(other("the demo was stopped at a memory limit")),
        EndReason::Cancelled => return Ok(None),
        _ => {}
    }
    let answers = ask(folder, Some(&config.output_dir))?;
    let shown: Vec<Example> = answers.iter().take(SHOWN).cloned().collect();
    add_examples(&config.output_dir, &shown).map_err(RunError::io(&config.output_dir))?;
    Ok(Some(DemoResult {
        images: HELD_OUT_ROWS,
        before,
        after: share_right(&answers),
        chance: 1.0 / shape_colours().count() as f64,
        shown,
        report: config.output_dir.join("report.html"),
    }))
}

/// LoRA beside every layer, of a high rank because the weights beneath it know nothing: the adapter must
/// learn to see and to speak.
fn settings(folder: &Path, model: &Path, seed: u64) -> Result<RunConfig, crate::config::ConfigError> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    RunConfig::resolve(TrainOptions {
        base_model: Some(text(model.to_owned())),
        dataset: Some(text(folder.join("training"))),
        eval_dataset: Some(text(folder.join("held-out"))),
        output_dir: Some(folder.join("run")),
        epochs: Some(4.0),
        batch_size: Some(16),
        gradient_accumulation_steps: Some(1),
        learning_rate: Some(1e-3),
        lr_scheduler_type: Some(Shape::Cosine),
        warmup_steps: Some(20),
        weight_decay: Some(0.0),
        lora_r: Some(64),
        lora_alpha: Some(128.0),
        optim: Some(OptimizerKind::Adamw8bit),
        seed: Some(seed),
        ..TrainOptions::default()
    })
}

fn share_right(answers: &[Example]) -> f64 {
    let right = answers.iter().filter(|answer| answer.given == answer.right).count();
    right as f64 / answers.len().max(1) as f64
}

/// What a model says about the held-out images. It is free to say anything; each token is the likeliest one.
fn ask(folder: &Path, adapter: Option<&Path>) -> Result<Vec<Example>, RunError> {
    let (model, held_out) = (folder.join("model"), folder.join("held-out"));
    let model = ModelFolder::open(&model).map_err(other)?;
    let mut interpreter = Interpreter::new(&model, PixelLimits::default()).map_err(other)?;
    let model = generate::load_model(&model, adapter, Precision::AsStored, |_| {}).map_err(other)?;
    let dataset = Dataset::open(&held_out.to_string_lossy(), &DatasetOptions::default(), &())?;
    let dataset = Arc::new(dataset);
    let mut reader = RowReader::new(dataset.clone());
    let greedy = Sampling { max_tokens: LONGEST_ANSWER, temperature: 0.0, seed: 0 };
    let answer = |number| {
        let mut asked = reader.read(number)?.conversation;
        let right = words(&asked.turns, Role::Assistant);
        asked.turns.retain(|turn| turn.role != Role::Assistant);
        let images: Result<Vec<_>, _> = asked
            .images()
            .map(|image| reader.image_bytes(number, image).map(|bytes| bytes.to_vec()))
            .collect();
        let prompt = interpreter.prompt(&asked, &images?, greedy).map_err(other)?;
        let said = interpreter.answer(&model, prompt, &mut |_| {}).map_err(other)?;
        let image = held_out.join(format!("images/{number:06}.png"));
        Ok(Example { image, right, given: said.text.trim().to_owned() })
    };
    (0..dataset.rows()).map(answer).collect()
}

fn other(error: impl std::fmt::Display) -> RunError {
    RunError::Other(error.to_string().into())
}

/// The text of a speaker.
fn words(turns: &[Turn], role: Role) -> String {
    let parts = turns.iter().filter(|turn| turn.role == role).flat_map(|turn| &turn.parts);
    let text = parts.filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        Part::Image(_) => None,
    });
    text.collect()
}
