//! Evaluation: the loss on rows that are not trained on, and what follows from it.
//!
//! Takes the model and the evaluation data at some step. Gives an entry of the history, and whether it is the
//! best so far. A run that must end at once does not wait for an evaluation: a missing one is made when the
//! run is resumed.

use super::{BatchSource, BatchSums, BoxError, Control, Learner, TrainError, Trainer, step::NumberedSums};
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
        self.tell(|callback, state| callback.on_evaluate(state, improved, control))?;
        self.agree(control)
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

    /// Sums over all the evaluation data; nothing if the run must end before its last batch. Each process evaluates its own
    /// batches.
    fn evaluation_sums(&mut self, control: &mut Control) -> Result<Option<BatchSums>, BoxError> {
        let processes = self.group.size() as u64;
        let (mut own, mut failure) = (Vec::new(), None);
        let batches = self.begin_evaluation().unwrap_or_else(|error| {
            failure = Some(error);
            0
        });
        let batches = self.group.gather(&batches)?.into_iter().max().unwrap_or_default();
        for number in 0..batches {
            if failure.is_none() {
                match self.evaluate_next() {
                    Ok(sums) => own.extend(sums.map(|sums| NumberedSums::new(number, sums))),
                    Err(error) => failure = Some(error),
                }
            }
            if number % processes + 1 < processes && number + 1 < batches {
                continue;
            }
            let told =
                self.callbacks.iter_mut().try_for_each(|callback| callback.on_evaluation_batch(control));
            failure = failure.or(told.err());
            self.agree(control)?;
            // Others learn of a failure at the end: until then they wait for this process's batches.
            if control.must_end() || processes == 1 && failure.is_some() {
                break;
            }
        }
        // Its threads and batches are not needed until the next one.
        self.evaluation.iter_mut().for_each(|data| data.pause());
        // All agree on the end; only a process that is alone may tell its failure instead.
        if control.must_end() && (processes > 1 || failure.is_none()) {
            return Ok(None);
        }
        let said = self.group.gather(&(own, failure.as_ref().map(ToString::to_string)))?;
        let reported =
            said.iter().enumerate().find_map(|(rank, (_, failure))| Some((rank, failure.clone()?)));
        match (failure, reported) {
            (Some(error), _) => Err(error),
            (None, Some((rank, reason))) => Err(format!("rank {rank}: {reason}").into()),
            (None, None) => Ok(Some(NumberedSums::add_up(said.into_iter().flat_map(|(sums, _)| sums)))),
        }
    }

    /// Goes to the first batch, and gives how many there are.
    fn begin_evaluation(&mut self) -> Result<u64, BoxError> {
        let Some(data) = self.evaluation.as_deref_mut() else { return Ok(0) };
        data.seek(Position::default())?;
        data.ahead(u64::MAX)
    }

    /// The sums of the next batch, if it is this process's.
    fn evaluate_next(&mut self) -> Result<Option<BatchSums>, BoxError> {
        let Some(data) = self.evaluation.as_deref_mut() else { return Ok(None) };
        let Some(batch) = data.next()?.and_then(|next| next.batch) else { return Ok(None) };
        let sums = self.learner.evaluate(&batch)?;
        data.recycle(batch);
        Ok(Some(sums))
    }
}
