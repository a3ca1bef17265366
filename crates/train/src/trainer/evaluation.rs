//! Evaluation: the loss on rows that are not trained on, and what follows from it.
//!
//! Takes the model and the evaluation data at some step. Gives an entry of the history, and whether it is the
//! best so far. A run that must end at once does not wait for an evaluation: a missing one is made when the
//! run is resumed.

use super::{BatchSource, BatchSums, BoxError, Control, Learner, TrainError, Trainer};
use crate::event::{Note, Topic};
use garden_data::Position;
use garden_memory::counted;
use std::{collections::BTreeMap, time::Instant};

impl<L: Learner, S: BatchSource<Batch = L::Batch>> Trainer<'_, '_, L, S> {
    /// Whether an evaluation was due at this very step and is missing because the run ended before it.
    pub(super) fn lacks_evaluation(&self) -> bool {
        let Position { epoch, row } = self.progress.position;
        let step = self.state.global_step;
        let due = self.settings.evaluate.is_due(step, epoch > 0 && row == 0);
        step > 0 && due && self.evaluated_at != Some(step)
    }

    /// Loss and accuracy on the evaluation data; keeps the best.
    pub(super) fn evaluate(&mut self, control: &mut Control) -> Result<(), TrainError> {
        if self.evaluation.is_none() || control.must_end() {
            return Ok(());
        }
        let step = self.state.global_step;
        // Evaluation has its own threads and batches: two sets of them at once would need more memory.
        self.data.pause();
        let start = Instant::now();
        let sums = match self.evaluation_sums(control) {
            Ok(Some(sums)) => sums,
            Ok(None) => return Ok(()),
            Err(source) => {
                self.save_if_needed()?;
                return Err(TrainError::Evaluation { step, source });
            }
        };
        if sums.label_tokens == 0 {
            self.save_if_needed()?;
            return Err(TrainError::EmptyEvaluation { step, rows: sums.rows });
        }
        self.evaluated_at = Some(step);
        let (seconds, loss) = (start.elapsed().as_secs_f64(), sums.mean_loss());
        if !loss.is_finite() {
            return Err(TrainError::Diverged { step, what: "evaluation loss", value: loss });
        }
        let values = BTreeMap::from([
            ("eval_loss".to_owned(), loss),
            ("eval_token_accuracy".to_owned(), sums.accuracy()),
            ("eval_runtime".to_owned(), seconds),
            ("eval_samples_per_second".to_owned(), sums.rows as f64 / seconds.max(1e-9)),
        ]);
        self.log(values)?;
        let comparable = self.compare_with_earlier_evaluations(&sums)?;
        let improved = comparable && self.state.best_metric.is_none_or(|best| loss < best);
        if improved {
            self.state.best_metric = Some(loss);
            self.state.best_global_step = Some(step);
            self.state.best_model_checkpoint = Some(format!("checkpoint-{step}"));
            control.save = true;
        }
        self.tell(|callback, state| callback.on_evaluate(state, improved, control))
    }

    /// Writes a checkpoint if there is none of this step: an evaluation that fails must not lose what was
    /// trained.
    fn save_if_needed(&mut self) -> Result<(), TrainError> {
        if self.saved.is_none() {
            self.save()?;
        }
        Ok(())
    }

    /// Whether this evaluation used at least as many tokens as the ones before. A lower loss on fewer rows is
    /// not better: rows whose images vanish must not make a step the best one.
    fn compare_with_earlier_evaluations(&mut self, sums: &BatchSums) -> Result<bool, TrainError> {
        let most = self.progress.evaluated_tokens.unwrap_or(0);
        if sums.label_tokens >= most {
            self.progress.evaluated_tokens = Some(sums.label_tokens);
            return Ok(true);
        }
        let text = format!(
            "this evaluation has {} in {}, an earlier one had {most}: it cannot be the best",
            counted(sums.label_tokens, "label token"),
            counted(sums.rows, "row")
        );
        let note = Note { topic: Topic::Evaluation, text };
        self.tell(|callback, _| callback.on_note(&note))?;
        Ok(false)
    }

    /// Sums over all the evaluation data; nothing if the run must end before its last batch.
    fn evaluation_sums(&mut self, control: &mut Control) -> Result<Option<BatchSums>, BoxError> {
        let mut sums = BatchSums::default();
        let Some(data) = self.evaluation.as_deref_mut() else { return Ok(None) };
        data.seek(Position::default())?;
        while let Some((batch, _)) = data.next()? {
            sums += self.learner.evaluate(&batch)?;
            data.recycle(batch);
            for callback in &mut self.callbacks {
                callback.on_evaluation_batch(control)?;
            }
            if control.must_end() {
                data.pause();
                return Ok(None);
            }
        }
        Ok(Some(sums))
    }
}
