//! The whole of it in one minute: a tiny model, a few pictures, training, and what it learned.
//!
//! In comes a folder; out come a model, two sets of pictures, an adapter, and the share of right answers before and after, on pictures that were not
//! trained on. Nothing is prepared in advance: the model starts from random weights, only its adapter is trained, and the seed is fixed.

use crate::{
    config::{RunConfig, TrainOptions},
    optimizer::OptimizerKind,
    run::{self, Ended, RunError, VisionModel, open_data},
    schedule::Shape,
    screen::Screen,
    trainer::TrainableModel,
};
use garden_data::{
    Batch, Conversation, Dataset, DatasetOptions, Part, Role, RowReader, Turn,
    batch::Sample,
    create::{CreateOptions, Kind, colours, create},
    image::DecodeLimits,
    processor::{PixelLimits, Processor, Workspace},
    text::{Encoder, TrainOn},
};
use garden_model::init::{Plan, Preset};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// Pictures to train on: each is seen a handful of times.
const TRAINING_ROWS: u64 = 400;
/// Pictures that are never trained on.
const HELD_OUT_ROWS: u64 = 120;
/// Four patches a side: four tokens a picture.
const SIDE: u32 = 56;
/// Answers that are shown.
const SHOWN: usize = 5;

/// One picture, its right answer, and what the model said.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Answer {
    /// The picture's file.
    pub picture: PathBuf,
    /// The right answer.
    pub right: String,
    /// The model's.
    pub given: String,
}

/// What a demo showed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DemoResult {
    /// Pictures that were asked about.
    pub pictures: u64,
    /// Share of right answers of the model as it was made.
    pub before: f64,
    /// Share of right answers with the adapter.
    pub after: f64,
    /// What guessing would reach.
    pub chance: f64,
    /// Some answers with the adapter.
    pub shown: Vec<Answer>,
    /// The report.
    pub report: PathBuf,
}

/// Runs the demo in a new or empty folder.
pub fn demo(folder: &Path, seed: u64, screen: &Screen) -> Result<DemoResult, RunError> {
    garden_engine::return_large_pieces();
    let model = folder.join("model");
    let other = |error: &dyn std::fmt::Display| RunError::Other(error.to_string().into());
    screen.line("making a tiny model with random weights, and pictures of coloured shapes");
    let plan = Plan::new(Preset::Tiny).map_err(|error| other(&error))?;
    plan.write(&model, seed, |_| {}).map_err(|error| other(&error))?;
    let pictures = |name: &str, rows, seed| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let options = CreateOptions { kind: Kind::Colours, rows, width: SIDE, height: SIDE, seed, workers };
        create(&folder.join(name), &options, screen)
    };
    pictures("training", TRAINING_ROWS, seed)?;
    // Another seed makes other pictures.
    pictures("held-out", HELD_OUT_ROWS, seed + 1)?;

    let config = settings(folder, &model, seed).map_err(|error| other(&error))?;
    let before = share_right(&Quiz::new(&config, &model)?.answers()?);
    screen.line(&format!("before training: {:.0} % right on {HELD_OUT_ROWS} pictures", 100.0 * before));
    match run::train(&config)? {
        Ended::Done => {}
        ended => return Err(other(&format!("the demo was stopped: {ended:?}"))),
    }
    let mut quiz = Quiz::new(&config, &model)?;
    quiz.model.load(&config.output_dir).map_err(RunError::Other)?;
    let answers = quiz.answers()?;
    Ok(DemoResult {
        pictures: HELD_OUT_ROWS,
        before,
        after: share_right(&answers),
        chance: 1.0 / colours().count() as f64,
        shown: answers.into_iter().take(SHOWN).collect(),
        report: config.output_dir.join("report.html"),
    })
}

/// LoRA beside every layer, wide because the weights beneath it know nothing: the adapter must learn to see and to speak.
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
        learning_rate: Some(2e-3),
        lr_scheduler_type: Some(Shape::Cosine),
        warmup_steps: Some(10),
        weight_decay: Some(0.0),
        lora_r: Some(64),
        lora_alpha: Some(128.0),
        optim: Some(OptimizerKind::Adamw8bit),
        seed: Some(seed),
        ..TrainOptions::default()
    })
}

fn share_right(answers: &[Answer]) -> f64 {
    let right = answers.iter().filter(|answer| answer.given == answer.right).count();
    right as f64 / answers.len().max(1) as f64
}

/// Asks a model about the pictures that were held out.
struct Quiz {
    model: VisionModel,
    reader: RowReader,
    dataset: Arc<Dataset>,
    processor: Processor,
    encoder: Encoder,
    folder: PathBuf,
}

impl Quiz {
    fn new(config: &RunConfig, model: &Path) -> Result<Self, RunError> {
        let folder = config.output_dir.with_file_name("held-out");
        let dataset = Dataset::open(&folder.to_string_lossy(), &DatasetOptions::default(), &())?;
        let dataset = Arc::new(dataset);
        let data = open_data(config, model, &())?;
        Ok(Self {
            model: VisionModel::load(config, model, &data.load, |_| {})?,
            reader: RowReader::new(dataset.clone()),
            dataset,
            processor: Processor::from_dir(model, PixelLimits::default(), DecodeLimits::default())?,
            encoder: Encoder::from_dir(model)?,
            folder,
        })
    }

    fn answers(&mut self) -> Result<Vec<Answer>, RunError> {
        (0..self.dataset.rows()).map(|row| self.answer(row)).collect()
    }

    /// The colour that the model finds likeliest, of all there are; by the mean over its tokens, for names differ in length.
    fn answer(&mut self, number: u64) -> Result<Answer, RunError> {
        let row = self.reader.read(number)?;
        let right = words(&row.conversation.turns, Role::Assistant);
        let mut likeliest = (f64::INFINITY, String::new());
        for colour in colours() {
            let asked = with_answer(&row.conversation, colour);
            let loss = self.loss(number, &asked)?;
            if loss < likeliest.0 {
                likeliest = (loss, colour.to_owned());
            }
        }
        let picture = self.folder.join(format!("images/{number:06}.png"));
        Ok(Answer { picture, right, given: likeliest.1 })
    }

    fn loss(&mut self, number: u64, conversation: &Conversation) -> Result<f64, RunError> {
        let other = |error: &dyn std::fmt::Display| RunError::Other(error.to_string().into());
        let (mut patches, mut grids) = (Vec::new(), Vec::new());
        for image in conversation.images() {
            let bytes = self.reader.image_bytes(number, image)?;
            let grid = self.processor.append_patches(&bytes, &mut Workspace::default(), &mut patches);
            grids.push(grid.map_err(|error| other(&error))?);
        }
        let merge = self.processor.config().merge_size;
        let tokens: Vec<usize> = grids.iter().map(|grid| grid.tokens(merge)).collect();
        let encoded =
            self.encoder.encode(conversation, &tokens, TrainOn::Assistant).map_err(|error| other(&error))?;
        let mut batch = Batch::default();
        batch.push(&Sample { row: number, encoded, grids, patches });
        Ok(self.model.evaluate(&batch).map_err(RunError::Other)?.mean_loss())
    }
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

/// The same conversation with another answer.
fn with_answer(conversation: &Conversation, answer: &str) -> Conversation {
    let mut asked = conversation.clone();
    for turn in asked.turns.iter_mut().filter(|turn| turn.role == Role::Assistant) {
        turn.parts = vec![Part::Text(answer.to_owned())];
    }
    asked
}
