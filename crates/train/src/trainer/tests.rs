//! The loop on a toy model: a softmax over linear features, whose gradient is plain to see.

use super::*;
use crate::{
    optimizer::AdamSettings,
    schedule::{Shape, Warmup},
    testing::uniform,
};
use garden_model::{MatrixShape, TrainableTensor};
use std::{cell::RefCell, path::Path, rc::Rc};

const CLASSES: usize = 3;
const FEATURES: usize = 5;

/// Rows with one to four label tokens each, so that batches differ in their number of tokens.
#[derive(Clone)]
struct ToyRow {
    features: Vec<f32>,
    label: usize,
    tokens: u64,
}

struct ToyModel {
    weights: Vec<f32>,
    gradient: Vec<f32>,
    noise: Vec<u64>,
}

impl ToyModel {
    fn new() -> Self {
        let weights = uniform(CLASSES * FEATURES, 1);
        Self { gradient: vec![0.0; weights.len()], weights, noise: Vec::new() }
    }

    fn probabilities(&self, row: &ToyRow) -> Vec<f64> {
        let logits = self.weights.chunks(FEATURES).map(|weights| {
            weights.iter().zip(&row.features).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>().exp()
        });
        let exponentials: Vec<f64> = logits.collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.iter().map(|x| x / sum).collect()
    }
}

impl TrainableModel for ToyModel {
    type Batch = Vec<ToyRow>;

    fn forward_backward(&mut self, batch: &Self::Batch, noise: u64) -> Result<BatchSums, BoxError> {
        self.noise.push(noise);
        for row in batch {
            let mut probabilities = self.probabilities(row);
            probabilities[row.label] -= 1.0;
            for (gradient, p) in self.gradient.chunks_mut(FEATURES).zip(&probabilities) {
                for (gradient, x) in gradient.iter_mut().zip(&row.features) {
                    *gradient += (row.tokens as f64 * p) as f32 * x;
                }
            }
        }
        self.evaluate(batch)
    }

    fn evaluate(&mut self, batch: &Self::Batch) -> Result<BatchSums, BoxError> {
        let mut sums = BatchSums { rows: batch.len() as u64, ..BatchSums::default() };
        for row in batch {
            let probabilities = self.probabilities(row);
            sums.loss -= row.tokens as f64 * probabilities[row.label].ln();
            sums.label_tokens += row.tokens;
            let hit = probabilities.iter().all(|p| *p <= probabilities[row.label]);
            sums.correct += if hit { row.tokens } else { 0 };
        }
        Ok(sums)
    }

    fn gradients(&mut self) -> &mut Vec<f32> {
        &mut self.gradient
    }

    fn visit(&mut self, visit: &mut dyn FnMut(TrainableTensor<'_>)) {
        visit(TrainableTensor {
            name: "weights",
            shape: MatrixShape { rows: CLASSES, columns: FEATURES },
            values: &mut self.weights,
            gradient: &self.gradient[..CLASSES * FEATURES],
            decays: true,
        });
    }

    fn save(&mut self, dir: &Path) -> Result<(), BoxError> {
        let bytes: Vec<u8> = self.weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        Ok(std::fs::write(dir.join("weights.bin"), bytes)?)
    }

    fn load(&mut self, dir: &Path) -> Result<(), BoxError> {
        let bytes = std::fs::read(dir.join("weights.bin"))?;
        self.weights = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(())
    }
}

/// Rows in an order that rotates with the epoch.
struct ToyData {
    rows: Vec<ToyRow>,
    batch_size: usize,
    position: Position,
    /// The epoch that was sought.
    epoch: u64,
    /// Rows that never come in a batch, as those that are too long.
    dropped: fn(usize) -> bool,
    /// Fails when this row of any epoch is reached, as a kill would.
    fails_at: Option<Position>,
    /// From this place on every row turns out bad, which nobody knew before.
    dropped_from: Option<usize>,
    /// From this place on rows are gone after the first pass, as images that somebody moves away.
    vanishes_from: Option<usize>,
    passes: u64,
    /// Batches that begin here turn out to have no usable row, which nobody knew before.
    spoiled: fn(Position) -> bool,
    /// Which of the batches of an epoch are this process's: those with this remainder.
    turns: Turns,
    /// Batches of the step at hand that were given or passed over.
    turn: u64,
}

/// Batches of a step, processes, and which of these this is.
#[derive(Clone, Copy)]
struct Turns {
    per_step: u64,
    processes: u64,
    rank: u64,
}

impl ToyData {
    fn new(count: usize, batch_size: usize) -> Self {
        let values = uniform(count * FEATURES, 9);
        let row = |(index, features): (usize, &[f32])| {
            let label = if features[0] > 0.2 { 0 } else { 1 + usize::from(features[1] > 0.0) };
            ToyRow { features: features.to_vec(), label, tokens: 1 + index as u64 % 4 }
        };
        let rows = values.chunks(FEATURES).enumerate().map(row).collect();
        Self {
            rows,
            batch_size,
            position: Position::default(),
            epoch: 0,
            dropped: |_| false,
            fails_at: None,
            dropped_from: None,
            vanishes_from: None,
            passes: 0,
            spoiled: |_| false,
            turns: Turns { per_step: 1, processes: 1, rank: 0 },
            turn: 0,
        }
    }

    fn shared(self, group: &Group, per_step: u64) -> Self {
        let (processes, rank) = (group.size() as u64, group.rank() as u64);
        Self { turns: Turns { per_step, processes, rank }, ..self }
    }

    /// The batch at a position, and the position after it.
    fn batch_at(&self, mut position: Position) -> Option<(Vec<ToyRow>, Position)> {
        if position.epoch > self.epoch {
            return None;
        }
        let begun_at = position;
        let shift = position.epoch as usize * 7;
        let mut batch = Vec::new();
        let end = self.dropped_from.map_or(self.rows(), |place| place as u64);
        while batch.len() < self.batch_size && position.row < end {
            let row = (position.row as usize + shift) % self.rows.len();
            position.row += 1;
            if !(self.dropped)(row) {
                batch.push(self.rows[row].clone());
            }
        }
        let spoiled = (self.spoiled)(begun_at);
        (!batch.is_empty()).then(|| {
            let batch = if spoiled { Vec::new() } else { batch };
            (batch, position.normalised(self.rows()))
        })
    }
}

impl BatchSource for ToyData {
    type Batch = Vec<ToyRow>;

    fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    fn usable_rows(&self) -> u64 {
        (0..self.rows.len()).filter(|row| !(self.dropped)(*row)).count() as u64
    }

    fn batch_size(&self) -> u64 {
        self.batch_size as u64
    }

    fn seek(&mut self, position: Position) -> Result<(), BoxError> {
        self.position = position;
        self.epoch = position.epoch;
        self.passes += 1;
        if self.passes > 1 {
            self.dropped_from = self.dropped_from.or(self.vanishes_from);
        }
        Ok(())
    }

    fn ahead(&mut self, most: u64) -> Result<u64, BoxError> {
        self.turn = 0;
        let batches =
            std::iter::successors(self.batch_at(self.position), |(_, position)| self.batch_at(*position));
        Ok(batches.take(most.min(1000) as usize).count() as u64)
    }

    fn next(&mut self) -> Result<Option<NextBatch<Self::Batch>>, BoxError> {
        let Some((batch, position)) = self.batch_at(self.position) else { return Ok(None) };
        let Turns { per_step, processes, rank } = self.turns;
        let is_own = self.turn % per_step % processes == rank;
        if is_own && self.fails_at.is_some_and(|at| self.position >= at) {
            return Err("killed".into());
        }
        (self.position, self.turn) = (position, self.turn + 1);
        Ok(Some(NextBatch { batch: is_own.then_some(batch), end: position }))
    }

    fn recycle(&mut self, _: Self::Batch) {}
}

fn settings() -> TrainerSettings {
    TrainerSettings {
        epochs: 3.0,
        max_steps: None,
        accumulation: 2,
        optimizer: OptimizerKind::Adamw,
        adam: AdamSettings { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 },
        max_gradient_norm: 1.0,
        logging_steps: 4,
        evaluate: When::Never,
        save: When::Steps(3),
        save_limit: None,
        seed: 1,
        data_fingerprint: 11,
    }
}

fn schedule(settings: &TrainerSettings, data: &ToyData) -> Schedule {
    let steps = settings.steps(data.usable_rows(), data.batch_size()).total;
    Schedule::new(Shape::Linear, 0.1, Warmup::Steps(2), steps).unwrap()
}

/// Trains a new model to the end, resuming from what the folder holds.
fn train(
    dir: &Path,
    settings: TrainerSettings,
    data: &mut ToyData,
    evaluation: Option<&mut ToyData>,
    callbacks: Vec<&mut dyn Callback>,
) -> Result<(ToyModel, Outcome), TrainError> {
    train_in(&Group::alone(), dir, settings, data, evaluation, callbacks)
}

/// The same in a group.
fn train_in(
    group: &Group,
    dir: &Path,
    settings: TrainerSettings,
    data: &mut ToyData,
    evaluation: Option<&mut ToyData>,
    callbacks: Vec<&mut dyn Callback>,
) -> Result<(ToyModel, Outcome), TrainError> {
    let mut model = ToyModel::new();
    let store = CheckpointStore::open(dir).unwrap();
    let found = store.newest().unwrap();
    let schedule = schedule(&settings, data);
    let rows = TrainingData { training: data, evaluation };
    let mut learner = NativeLearner::new(&mut model, &settings, group);
    let trainer = Trainer::new(&mut learner, rows, settings, schedule, store, callbacks);
    let mut trainer = trainer.together(group);
    if let Some(checkpoint) = &found.newest {
        trainer.resume(checkpoint)?;
    }
    let outcome = trainer.run()?;
    Ok((model, outcome))
}

#[test]
fn a_run_learns_and_its_history_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { epochs: 20.0, ..settings() };
    let (_, outcome) = train(dir.path(), settings, &mut ToyData::new(60, 4), None, vec![]).unwrap();
    // 15 batches of 4 in pairs: 8 steps an epoch.
    assert_eq!((outcome.state.global_step, outcome.state.epoch), (160, 20.0));
    let losses = outcome.state.series("loss");
    assert_eq!(losses.len(), 40);
    assert!(losses[39].1 < 0.5 * losses[0].1, "{losses:?}");
    assert_eq!(outcome.checkpoint.step, 160);
}

#[test]
fn batch_eight_equals_two_times_four() {
    let run = |batch_size, accumulation| {
        let dir = tempfile::tempdir().unwrap();
        let settings = TrainerSettings { accumulation, ..settings() };
        let (model, outcome) =
            train(dir.path(), settings, &mut ToyData::new(64, batch_size), None, vec![]).unwrap();
        (model.weights, outcome.state.series("loss"))
    };
    let (whole, parts) = (run(8, 1), run(2, 4));
    for (a, b) in whole.0.iter().zip(&parts.0) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    for ((_, a), (_, b)) in whole.1.iter().zip(&parts.1) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
}

#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let whole = {
        let dir = tempfile::tempdir().unwrap();
        train(dir.path(), settings(), &mut ToyData::new(50, 3), None, vec![]).unwrap()
    };
    for fails_at in [(0, 9), (0, 48), (1, 0), (1, 21), (2, 3), (2, 48)] {
        let dir = tempfile::tempdir().unwrap();
        let mut data = ToyData::new(50, 3);
        data.fails_at = Some(Position { epoch: fails_at.0, row: fails_at.1 });
        assert!(train(dir.path(), settings(), &mut data, None, vec![]).is_err());
        data.fails_at = None;
        let (model, outcome) = train(dir.path(), settings(), &mut data, None, vec![]).unwrap();
        let bits = |weights: &[f32]| weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&model.weights), bits(&whole.0.weights), "killed at {fails_at:?}");
        assert_eq!(outcome.state.series("loss"), whole.1.state.series("loss"), "killed at {fails_at:?}");
        assert_eq!(whole.0.noise[whole.0.noise.len() - model.noise.len()..], model.noise, "dropout seeds");
    }
}

#[test]
fn a_finished_run_has_nothing_left_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = train(dir.path(), settings(), &mut ToyData::new(20, 4), None, vec![]).unwrap();
    let (again, outcome) = train(dir.path(), settings(), &mut ToyData::new(20, 4), None, vec![]).unwrap();
    assert_eq!(first.weights, again.weights);
    assert!(again.noise.is_empty(), "no batch was trained on");
    assert_eq!(outcome.checkpoint.step, outcome.state.max_steps);
    let finished = |settings: &TrainerSettings, patience| {
        let steps = settings.steps(20, 4).total;
        end_of(&outcome.checkpoint, settings, steps, patience).map_err(|error| error.to_string())
    };
    assert_eq!(finished(&settings(), None), Ok(Some(End::Steps)));
    assert_eq!(finished(&settings(), Some(1)), Ok(Some(End::Steps)));
    let longer = TrainerSettings { epochs: 4.0, ..settings() };
    assert_eq!(finished(&longer, None), Ok(None), "more epochs go on");
    let longer = TrainerSettings { max_steps: Some(10), ..settings() };
    assert_eq!(finished(&longer, None), Ok(None), "and so do more steps");
    let others = TrainerSettings { data_fingerprint: 5, ..settings() };
    assert!(finished(&others, None).unwrap_err().contains(" was made with other rows: the dataset has"));
}

#[test]
fn another_seed_does_not_continue_a_run() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), settings(), &mut ToyData::new(20, 4), None, vec![]).unwrap();
    let other = TrainerSettings { seed: 2, ..settings() };
    let error = train(dir.path(), other, &mut ToyData::new(20, 4), None, vec![]).err().unwrap();
    assert!(error.to_string().contains("seed 1, this run has 2"), "{error}");
}

#[test]
fn other_rows_do_not_continue_a_run() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), settings(), &mut ToyData::new(20, 4), None, vec![]).unwrap();
    let other = TrainerSettings { data_fingerprint: 12, ..settings() };
    let error = train(dir.path(), other, &mut ToyData::new(20, 4), None, vec![]).err().unwrap();
    assert!(error.to_string().contains("the dataset has changed"), "{error}");
}

#[test]
fn evaluations_keep_the_best_and_stop_early() {
    let dir = tempfile::tempdir().unwrap();
    // A rate that overshoots: the evaluation gets worse after a while.
    let settings = TrainerSettings {
        epochs: 50.0,
        evaluate: When::Steps(2),
        save: When::Steps(2),
        save_limit: Some(1),
        max_gradient_norm: 0.0,
        ..settings()
    };
    let mut early = EarlyStopping::new(2);
    let mut evaluation = ToyData::new(6, 4);
    let (_, outcome) =
        train(dir.path(), settings, &mut ToyData::new(20, 4), Some(&mut evaluation), vec![&mut early])
            .unwrap();
    let evaluations = outcome.state.series("eval_loss");
    let best = evaluations.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert_eq!(outcome.stopped, Some(StopReason::EarlyStopping));
    assert_eq!(outcome.state.best_global_step, Some(best.0 as u64));
    assert_eq!(outcome.state.global_step, best.0 as u64 + 4, "two evaluations of patience");
    let kept: Vec<u64> =
        CheckpointStore::open(dir.path()).unwrap().list().unwrap().iter().map(|c| c.step).collect();
    assert_eq!(kept, [best.0 as u64, outcome.state.global_step], "the best one and the newest");
    let accuracy = outcome.state.latest("eval_token_accuracy").unwrap();
    assert!((0.0..=1.0).contains(&accuracy));
}

#[test]
fn an_epoch_with_a_rest_takes_one_shorter_step() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { epochs: 2.0, evaluate: When::Epoch, ..settings() };
    let mut evaluation = ToyData::new(4, 4);
    // 5 batches in pairs: steps of 2, 2 and 1.
    let (model, outcome) =
        train(dir.path(), settings, &mut ToyData::new(10, 2), Some(&mut evaluation), vec![]).unwrap();
    assert_eq!(outcome.state.global_step, 6);
    assert_eq!(model.noise.len(), 10, "every batch was used once an epoch");
    let steps: Vec<f64> = outcome.state.series("eval_loss").iter().map(|point| point.0).collect();
    assert_eq!(steps, [3.0, 6.0]);
}

#[test]
fn an_epoch_whose_last_rows_are_dropped_still_ends_with_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { epochs: 2.0, accumulation: 1, save: When::Epoch, ..settings() };
    let mut data = ToyData::new(10, 2);
    data.dropped_from = Some(8);
    // Killed in the second epoch.
    data.fails_at = Some(Position { epoch: 1, row: 4 });
    assert!(train(dir.path(), settings.clone(), &mut data, None, vec![]).is_err());
    let store = CheckpointStore::open(dir.path()).unwrap();
    assert_eq!(store.newest().unwrap().newest.unwrap().step, 4);
    data.fails_at = None;
    let (model, outcome) = train(dir.path(), settings, &mut data, None, vec![]).unwrap();
    assert_eq!((outcome.state.global_step, outcome.state.epoch, model.noise.len()), (8, 2.0, 4));
}

/// Asks for the end while an evaluation is under way, or after a step.
struct Impatient {
    at_step: Option<u64>,
    at_batch: Option<u64>,
}

impl Callback for Impatient {
    fn on_step_end(
        &mut self,
        state: &TrainerState,
        _: &StepFacts,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        if self.at_step == Some(state.global_step) {
            control.stop = Some(StopReason::Cancelled);
        }
        Ok(())
    }
    fn on_evaluation_batch(&mut self, control: &mut Control) -> Result<(), BoxError> {
        if let Some(left) = &mut self.at_batch {
            *left = left.saturating_sub(1);
            if *left == 0 {
                control.stop = Some(StopReason::Cancelled);
            }
        }
        Ok(())
    }
}

#[test]
fn an_interrupt_does_not_wait_for_an_evaluation_and_the_next_run_makes_up_for_it() {
    let run = |dir: &Path, impatient: Option<&mut Impatient>, evaluate| {
        let settings = TrainerSettings { evaluate, save: When::Steps(2), ..settings() };
        let mut evaluation = ToyData::new(12, 4);
        let callbacks = impatient.map(|impatient| impatient as &mut dyn Callback).into_iter().collect();
        train(dir, settings, &mut ToyData::new(20, 4), Some(&mut evaluation), callbacks).unwrap()
    };
    for evaluate in [When::Steps(2), When::Epoch] {
        let whole_dir = tempfile::tempdir().unwrap();
        let (whole, whole_outcome) = run(whole_dir.path(), None, evaluate);
        for (at_step, at_batch) in
            [(Some(3), None), (Some(6), None), (Some(9), None), (None, Some(2)), (None, Some(8))]
        {
            let dir = tempfile::tempdir().unwrap();
            let (_, first) = run(dir.path(), Some(&mut Impatient { at_step, at_batch }), evaluate);
            assert_eq!(first.stopped, Some(StopReason::Cancelled));
            let last = first.state.log_history.iter().rfind(|entry| entry.values.contains_key("eval_loss"));
            assert_ne!(last.map(|entry| entry.step), Some(first.state.global_step), "it was waited for");
            let (model, outcome) = run(dir.path(), None, evaluate);
            assert_eq!(outcome.stopped, None);
            assert_eq!(model.weights, whole.weights);
            for series in ["eval_loss", "loss"] {
                assert_eq!(outcome.state.series(series), whole_outcome.state.series(series), "{evaluate:?}");
            }
            assert_eq!(outcome.state.best_global_step, whole_outcome.state.best_global_step);
        }
    }
}

#[test]
fn an_evaluation_that_fails_costs_no_training() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { evaluate: When::Epoch, save: When::Epoch, ..settings() };
    let mut evaluation = ToyData::new(8, 4);
    evaluation.fails_at = Some(Position { epoch: 0, row: 4 });
    let error = train(dir.path(), settings.clone(), &mut ToyData::new(20, 4), Some(&mut evaluation), vec![])
        .err()
        .unwrap();
    assert!(error.to_string().starts_with("step 3, in the evaluation: "), "{error}");
    evaluation.fails_at = None;
    let (model, outcome) =
        train(dir.path(), settings, &mut ToyData::new(20, 4), Some(&mut evaluation), vec![]).unwrap();
    assert_eq!(model.noise.len(), 10, "the first epoch was not trained again");
    assert_eq!(outcome.state.series("eval_loss").len(), 3);
}

#[test]
fn an_evaluation_that_is_not_a_number_ends_the_run_before_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { evaluate: When::Steps(2), save: When::Steps(2), ..settings() };
    let mut evaluation = ToyData::new(6, 4);
    evaluation.rows[5].features[0] = f32::NAN;
    let error =
        train(dir.path(), settings, &mut ToyData::new(20, 4), Some(&mut evaluation), vec![]).err().unwrap();
    assert!(error.to_string().starts_with("step 2: the evaluation loss is NaN"), "{error}");
    assert!(CheckpointStore::open(dir.path()).unwrap().list().unwrap().is_empty());
}

#[test]
fn a_run_that_stopped_early_has_come_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings {
        epochs: 50.0,
        evaluate: When::Steps(2),
        save: When::Steps(2),
        max_gradient_norm: 0.0,
        ..settings()
    };
    let run = |patience| {
        let mut early = EarlyStopping::new(patience);
        let mut evaluation = ToyData::new(6, 4);
        let callbacks: Vec<&mut dyn Callback> = vec![&mut early];
        let data = &mut ToyData::new(20, 4);
        train(dir.path(), settings.clone(), data, Some(&mut evaluation), callbacks).unwrap()
    };
    let (first, stopped) = run(2);
    let (again, outcome) = run(2);
    assert_eq!(outcome.stopped, Some(StopReason::EarlyStopping));
    assert_eq!((again.weights, again.noise.len()), (first.weights, 0));
    assert_eq!(outcome.state.log_history, stopped.state.log_history);
    let steps = settings.steps(20, 4).total;
    let finished = |patience| end_of(&outcome.checkpoint, &settings, steps, Some(patience)).unwrap();
    assert_eq!(finished(2), Some(End::Patience), "more epochs would not make it go on");
    assert_eq!(finished(4), None, "more patience would");
    let (_, patient) = run(4);
    assert!(patient.state.global_step > stopped.state.global_step, "with more patience it goes on");
}

/// Twenty rows in batches of four, of which four are dropped: four steps an epoch. In the first epoch the
/// last row is one of them.
fn partly_dropped() -> (TrainerSettings, ToyData) {
    let settings = TrainerSettings { accumulation: 1, logging_steps: 1, save: When::Epoch, ..settings() };
    (settings, ToyData { dropped: |row| row % 5 == 4, ..ToyData::new(20, 4) })
}

#[test]
fn steps_and_schedule_count_the_rows_that_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let (settings, mut data) = partly_dropped();
    let (_, outcome) = train(dir.path(), settings, &mut data, None, vec![]).unwrap();
    assert_eq!((outcome.state.global_step, outcome.state.max_steps), (12, 12));
    let (step, rate) = outcome.state.series("learning_rate").pop().unwrap();
    assert!(step == 12.0 && (rate - 0.1 / 10.0).abs() < 1e-12, "the schedule ends with the run: {rate}");
    let kept = CheckpointStore::open(dir.path()).unwrap().list().unwrap();
    assert_eq!(kept.iter().map(|c| c.step).collect::<Vec<_>>(), [4, 8, 12], "one at the end of each epoch");
}

#[test]
fn half_an_epoch_is_half_of_the_rows_that_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let (settings, mut data) = partly_dropped();
    let settings = TrainerSettings { epochs: 0.5, ..settings };
    let (model, outcome) = train(dir.path(), settings, &mut data, None, vec![]).unwrap();
    assert_eq!((outcome.state.global_step, model.noise.len()), (2, 2));
    assert_eq!(outcome.state.epoch, 0.45, "the place counts all rows: nine are behind");
}

#[test]
fn a_run_with_dropped_rows_resumes_to_the_same_bits() {
    let run = |dir: &Path, fails_at| {
        let (settings, mut data) = partly_dropped();
        data.fails_at = fails_at;
        let settings = TrainerSettings { save: When::Steps(1), ..settings };
        train(dir, settings, &mut data, None, vec![])
    };
    let whole = tempfile::tempdir().unwrap();
    let (whole, _) = run(whole.path(), None).unwrap();
    for (epoch, row) in [(0, 9), (0, 19), (1, 0), (1, 20), (2, 5)] {
        let dir = tempfile::tempdir().unwrap();
        assert!(run(dir.path(), Some(Position { epoch, row })).is_err());
        let (resumed, outcome) = run(dir.path(), None).unwrap();
        assert_eq!(resumed.weights, whole.weights, "killed at {epoch}, {row}");
        assert_eq!(outcome.state.global_step, 12);
    }
}

#[test]
fn a_checkpoint_that_writes_the_end_of_an_epoch_the_older_way_resumes_to_the_same_bits() {
    let settings = || TrainerSettings { epochs: 2.0, save: When::Epoch, ..settings() };
    let rows = || ToyData::new(60, 4);
    let whole = tempfile::tempdir().unwrap();
    let (whole, _) = train(whole.path(), settings(), &mut rows(), None, vec![]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut killed = ToyData { fails_at: Some(Position::start_of(1)), ..rows() };
    assert!(train(dir.path(), settings(), &mut killed, None, vec![]).is_err());
    let store = CheckpointStore::open(dir.path()).unwrap();
    let checkpoint = store.newest().unwrap().newest.expect("one after the first epoch");
    let path = checkpoint.path.join("progress.json");
    let mut progress: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(progress["position"], serde_json::json!({"epoch": 1, "row": 0}));
    progress["position"] = serde_json::json!({"epoch": 0, "row": 60});
    std::fs::write(&path, progress.to_string()).unwrap();
    let (mut model, mut data) = (ToyModel::new(), rows());
    let schedule = schedule(&settings(), &data);
    let mut learner = NativeLearner::new(&mut model, &settings(), &Group::alone());
    let mut trainer = Trainer::new(
        &mut learner,
        TrainingData { training: &mut data, evaluation: None },
        settings(),
        schedule,
        store,
        vec![],
    );
    trainer.resume(&checkpoint).unwrap();
    assert_eq!(trainer.progress.position, Position::start_of(1));
    trainer.run().unwrap();
    assert_eq!(model.weights, whole.weights);
}

/// Puts a file where pruning makes room for each checkpoint, which cannot be removed as a folder is.
#[derive(Default)]
struct Obstacle {
    notes: Vec<String>,
}

impl Callback for Obstacle {
    fn on_save(&mut self, state: &TrainerState, checkpoint: &Path) -> Result<(), BoxError> {
        Ok(std::fs::write(
            checkpoint.with_file_name(format!(".unfinished-checkpoint-{}", state.global_step)),
            "",
        )?)
    }
    fn on_note(&mut self, note: &crate::event::Note) -> Result<(), BoxError> {
        self.notes.push(note.text.clone());
        Ok(())
    }
}

#[test]
fn an_old_checkpoint_that_cannot_be_removed_is_noted_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { save_limit: Some(1), ..settings() };
    let mut obstacle = Obstacle::default();
    let (_, outcome) =
        train(dir.path(), settings, &mut ToyData::new(20, 4), None, vec![&mut obstacle]).unwrap();
    assert_eq!(outcome.state.global_step, outcome.state.max_steps);
    assert!(obstacle.notes[0].contains("could not be removed"), "{:?}", obstacle.notes);
}

/// Writes down the events it hears, and stops the run at a step.
struct Recorder {
    events: Rc<RefCell<Vec<String>>>,
    stop_at: u64,
}

impl Callback for Recorder {
    fn on_start(&mut self, _: &TrainerState, _: &mut Control) -> Result<(), BoxError> {
        self.events.borrow_mut().push("start".into());
        Ok(())
    }
    fn on_step_begin(&mut self, state: &TrainerState) -> Result<(), BoxError> {
        self.events.borrow_mut().push(format!("begin {}", state.global_step));
        Ok(())
    }
    fn on_step_end(
        &mut self,
        state: &TrainerState,
        step: &StepFacts,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        assert!(step.sums.label_tokens > 0 && step.gradient_norm > 0.0);
        self.events.borrow_mut().push(format!("end {}", state.global_step));
        if state.global_step == self.stop_at {
            control.stop = Some(StopReason::MemoryLimit("near".into()));
        }
        Ok(())
    }
    fn on_log(&mut self, _: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        entry.values.insert("seen".into(), 1.0);
        self.events.borrow_mut().push("log".into());
        Ok(())
    }
    fn on_save(&mut self, _: &TrainerState, checkpoint: &Path) -> Result<(), BoxError> {
        assert!(checkpoint.join(TRAINER_STATE).exists());
        self.events.borrow_mut().push("save".into());
        Ok(())
    }
    fn on_end(&mut self, _: &TrainerState, stopped: Option<&StopReason>) -> Result<(), BoxError> {
        self.events.borrow_mut().push(format!("stopped {}", stopped.is_some()));
        Ok(())
    }
}

#[test]
fn callbacks_hear_everything_in_order_and_can_stop_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let mut recorder = Recorder { events: events.clone(), stop_at: 2 };
    let settings = TrainerSettings { logging_steps: 1, save: When::Never, ..settings() };
    let (_, outcome) =
        train(dir.path(), settings, &mut ToyData::new(40, 4), None, vec![&mut recorder]).unwrap();
    let expected = ["start", "begin 0", "end 1", "log", "begin 1", "end 2", "log", "save", "stopped true"];
    assert_eq!(*events.borrow(), expected);
    assert_eq!(outcome.checkpoint.step, 2, "a stopped run leaves a checkpoint");
    assert_eq!(outcome.state.log_history[0].values["seen"], 1.0, "callbacks add to the history");
}

#[test]
fn divergence_is_an_error_that_names_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = ToyData::new(40, 4);
    data.rows[17].features[0] = f32::NAN;
    let error = train(dir.path(), settings(), &mut data, None, vec![]).err().unwrap();
    assert!(error.to_string().starts_with("step 3: the loss is NaN"), "{error}");
}

#[test]
fn values_that_are_not_finite_are_never_written() {
    let dir = tempfile::tempdir().unwrap();
    // A decay that overflows as soon as the warm-up gives a rate: the second loss is fine, the values after
    // its step are not.
    let adam = AdamSettings { weight_decay: 1e300, ..settings().adam };
    let settings = TrainerSettings { adam, save: When::Steps(1), max_steps: Some(2), ..settings() };
    let error = train(dir.path(), settings, &mut ToyData::new(40, 4), None, vec![]).err().unwrap();
    assert!(error.to_string().starts_with("step 2: weights holds values that are not finite"), "{error}");
    assert_eq!(error.divergence(), Some((2, "weights".to_owned())));
    assert_eq!(CheckpointStore::open(dir.path()).unwrap().list().unwrap().len(), 1, "that of step 1");
}

#[test]
fn an_evaluation_without_a_label_token_is_an_error_and_no_best_one() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { evaluate: When::Steps(2), save: When::Never, ..settings() };
    let mut evaluation = ToyData::new(6, 4);
    evaluation.rows.iter_mut().for_each(|row| row.tokens = 0);
    let error =
        train(dir.path(), settings, &mut ToyData::new(20, 4), Some(&mut evaluation), vec![]).err().unwrap();
    assert!(
        error.to_string().starts_with("step 2: the evaluation has no token to judge by: 6 of"),
        "{error}"
    );
    let kept = CheckpointStore::open(dir.path()).unwrap().newest().unwrap().newest.unwrap();
    let state = TrainerState::load(&kept.path).unwrap();
    assert_eq!((kept.step, state.best_global_step), (2, None), "what was trained is kept");
}

#[test]
fn an_evaluation_of_fewer_rows_is_never_the_best() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { evaluate: When::Steps(2), save: When::Steps(2), ..settings() };
    let evaluations = |vanishes_from| {
        let mut evaluation = ToyData { vanishes_from, ..ToyData::new(12, 4) };
        let mut heard = Obstacle::default();
        let (data, callbacks) = (&mut ToyData::new(20, 4), vec![&mut heard as &mut dyn Callback]);
        let (_, outcome) =
            train(dir.path(), settings.clone(), data, Some(&mut evaluation), callbacks).unwrap();
        std::fs::remove_dir_all(dir.path()).unwrap();
        (outcome.state, heard.notes)
    };
    let (whole, notes) = evaluations(None);
    assert!(whole.best_global_step > Some(2) && notes.is_empty(), "it learns: {notes:?}");
    let (partial, notes) = evaluations(Some(4));
    assert_eq!(partial.best_global_step, Some(2), "the only one on all rows");
    assert!(notes[0].contains("in 4 rows, an earlier one had"), "{notes:?}");
}

mod in_a_group;
