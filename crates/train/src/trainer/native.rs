//! The native engine as a learner: a model that gives gradients, and the optimizer that moves it.
//!
//! Gradients are those of the sum of the token losses, so the step divides by its label tokens, clips by the
//! global norm and moves every tensor in place. Its part of a checkpoint is the model's and
//! `optimizer.safetensors`.

use super::{
    BatchSums, BoxError, TrainableModel, TrainerSettings,
    learner::{Learner, Move, Moved, NotMoved},
};
use crate::{
    group::{GradientSum, Group},
    optimizer::{Optimizer, SquaredNorm, StateValues},
};
use garden_model::{TensorFile, TensorFileError, TensorSpec, TensorWriter};
use std::{path::Path, time::Duration};

/// The optimizer's state in a checkpoint.
const OPTIMIZER: &str = "optimizer.safetensors";

/// A model with its optimizer.
pub struct NativeLearner<'a, M> {
    model: &'a mut M,
    optimizer: Optimizer,
    norm: SquaredNorm,
    max_gradient_norm: f64,
    sum: GradientSum,
}

impl<'a, M: TrainableModel> NativeLearner<'a, M> {
    /// An optimizer for all that the model trains, in one process or in each of a group.
    pub fn new(model: &'a mut M, settings: &TrainerSettings, group: &Group) -> Self {
        let mut shapes = Vec::new();
        model.visit(&mut |tensor| shapes.push(tensor.shape));
        let optimizer = Optimizer::new(settings.optimizer, settings.adam, shapes);
        let max_gradient_norm = settings.max_gradient_norm;
        let sum = GradientSum::new(group.clone(), model.gradients().len(), settings.accumulation);
        model.gradients().resize(sum.length(), 0.0);
        Self { model, optimizer, norm: SquaredNorm::default(), max_gradient_norm, sum }
    }

    fn save_optimizer(&mut self, path: &Path) -> Result<(), TensorFileError> {
        let names = self.tensor_names();
        let parts = |number| self.optimizer.state(number);
        let spec = |name: &str, part: &str, values: &StateValues| TensorSpec {
            name: format!("{name}.{part}"),
            dtype: values.dtype(),
            shape: vec![values.elements()],
        };
        let specs = names.iter().enumerate();
        let specs = specs
            .flat_map(|(number, name)| parts(number).map(move |(part, values)| spec(name, part, values)));
        let mut writer = TensorWriter::create(path, &specs.collect::<Vec<_>>(), &[])?;
        for (_, values) in (0..names.len()).flat_map(parts) {
            writer.write(values.bytes())?;
        }
        writer.finish()
    }

    fn load_optimizer(&mut self, path: &Path) -> Result<(), TensorFileError> {
        let file = TensorFile::open(path)?;
        for (number, name) in self.tensor_names().iter().enumerate() {
            for (part, values) in self.optimizer.state_mut(number) {
                file.read_into(&format!("{name}.{part}"), values.dtype(), values.bytes_mut())?;
            }
        }
        Ok(())
    }

    /// Names of the trained tensors, in their order.
    fn tensor_names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        self.model.visit(&mut |tensor| names.push(tensor.name.to_owned()));
        names
    }
}

impl<M: TrainableModel> Learner for NativeLearner<'_, M> {
    type Batch = M::Batch;

    fn begin_step(&mut self) {
        self.sum.begin();
    }

    fn add(&mut self, batch: &M::Batch, noise: u64) -> Result<BatchSums, BoxError> {
        self.model.gradients().fill(0.0);
        self.model.forward_backward(batch, noise)
    }

    fn end_round(&mut self, contributions: usize) -> Result<(), BoxError> {
        Ok(self.sum.add(self.model.gradients(), contributions)?)
    }

    fn drop_step(&mut self) -> Result<(), BoxError> {
        Ok(self.sum.discard(self.model.gradients())?)
    }

    fn waited(&self) -> Duration {
        self.sum.waited()
    }

    fn end_step(&mut self, how: Move) -> Result<Moved, NotMoved> {
        self.sum.finish(self.model.gradients()).map_err(|error| NotMoved::Failed(error.into()))?;
        let scale = 1.0 / how.label_tokens.max(1) as f64;
        self.norm.clear();
        self.model.visit(&mut |tensor| self.norm.add(tensor.gradient));
        let gradient_norm = self.norm.norm(scale);
        let moved = Moved { loss: how.loss, gradient_norm }.check()?;
        let scale = (scale * SquaredNorm::factor(gradient_norm, self.max_gradient_norm)) as f32;
        let optimizer = &mut self.optimizer;
        optimizer.begin_step();
        let mut number = 0;
        self.model.visit(&mut |tensor| {
            optimizer.update(number, tensor, how.rate, scale);
            number += 1;
        });
        Ok(moved)
    }

    fn evaluate(&mut self, batch: &M::Batch) -> Result<BatchSums, BoxError> {
        self.model.evaluate(batch)
    }

    fn first_not_finite(&mut self) -> Result<Option<String>, BoxError> {
        let mut wrong = None;
        let (optimizer, mut number) = (&self.optimizer, 0);
        self.model.visit(&mut |tensor| {
            if !is_finite(tensor.values) {
                wrong.get_or_insert_with(|| tensor.name.to_owned());
            }
            for (part, values) in optimizer.state(number) {
                if let StateValues::F32(values) = values
                    && !is_finite(values)
                {
                    wrong.get_or_insert_with(|| format!("the optimizer's {part} of {}", tensor.name));
                }
            }
            number += 1;
        });
        Ok(wrong)
    }

    fn fingerprint(&mut self) -> u64 {
        let mut mark = 0u64;
        self.model.visit(&mut |tensor| {
            let bits = tensor.values.iter().map(|value| u64::from(value.to_bits()));
            mark = bits
                .fold(mark, |mark, bits| (mark ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        });
        mark
    }

    fn save(&mut self, dir: &Path) -> Result<(), BoxError> {
        self.model.save(dir)?;
        Ok(self.save_optimizer(&dir.join(OPTIMIZER))?)
    }

    fn load(&mut self, dir: &Path, optimizer_step: u64) -> Result<(), BoxError> {
        self.model.load(dir)?;
        self.load_optimizer(&dir.join(OPTIMIZER))?;
        self.optimizer.set_step(optimizer_step);
        Ok(())
    }

    fn optimizer_step(&self) -> u64 {
        self.optimizer.step()
    }
}

/// Whether no value is infinite or not a number.
fn is_finite(values: &[f32]) -> bool {
    // Not stopping at the first such value lets the loop vectorise, and there is hardly ever one.
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}
