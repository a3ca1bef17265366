//! Feeds the trainer with the batches of a loader, and masks labels by selective loss on the way.
//!
//! Takes a [`Recipe`] and the share of a dataset's rows that this source reads, and gives batches epoch by
//! epoch. A position means the same in every run with the same seed, so it is all that a checkpoint keeps of
//! the data. Of several processes, each reads the rows of its own batches only.

use crate::{
    config::{DataConfig, OnBadRow},
    group::Group,
    plan::Supply,
    selective_loss::{SelectiveLoss, Statistics},
    trainer::{BatchSource, BoxError, Callback, LogEntry, NextBatch, TrainerState},
};
use garden_data::{
    Batch, BatchTurn, Dataset, Loader, LoaderOptions, Position, Recipe, RowCounts, RowShare, SkippedRows,
    Tally, Turns,
};
use std::{cell::Cell, rc::Rc, sync::Arc};

/// Batches of one part of a dataset.
pub struct Rows {
    dataset: Arc<Dataset>,
    recipe: Arc<Recipe>,
    options: LoaderOptions,
    rows: u64,
    usable: u64,
    /// Bad rows among those that a survey found unusable.
    known_bad: u64,
    loader: Option<Loader>,
    /// The row that comes next.
    position: Position,
    /// The epoch being read.
    epoch: u64,
    selective: Option<SelectiveLoss>,
    selective_from_epoch: u64,
    statistics: Rc<Cell<Option<Statistics>>>,
    /// What became of the rows in earlier loaders.
    tally: Tally,
}

impl Rows {
    /// Rows in the order that `seed` decides; without one, as they are written.
    pub(crate) fn new(
        dataset: Arc<Dataset>,
        recipe: Arc<Recipe>,
        config: &DataConfig,
        share: RowShare,
        supply: Supply,
        seed: Option<u64>,
    ) -> Self {
        let options = LoaderOptions {
            batch_size: supply.batch_size as usize,
            shuffle: seed,
            // Unshuffled rows are evaluation rows: one pass each time.
            epochs: if seed.is_some() { u64::MAX } else { 1 },
            start: Position::default(),
            workers: supply.workers,
            prefetch_bytes: supply.prefetch_bytes,
            on_bad_row: match config.on_bad_row {
                OnBadRow::Fail => garden_data::OnBadRow::Fail,
                // The limit is for training rows: one bad row of a small evaluation set must not end a long
                // run.
                OnBadRow::Skip => garden_data::OnBadRow::Skip {
                    max_share: if seed.is_some() { config.max_bad_share } else { 1.0 },
                },
            },
            on_long_row: config.on_long_row,
            share,
            skip: Arc::default(),
            turns: Turns::default(),
        };
        let rows = share.rows(dataset.rows());
        Self {
            dataset,
            recipe,
            options,
            rows,
            usable: rows,
            known_bad: 0,
            loader: None,
            position: Position::default(),
            epoch: 0,
            selective: None,
            selective_from_epoch: 0,
            statistics: Rc::default(),
            tally: Tally::default(),
        }
    }

    /// Passes over the rows that a survey found unusable; `found` counts those of this part.
    pub(crate) fn skipping(mut self, skip: Arc<SkippedRows>, found: RowCounts) -> Self {
        self.options.skip = skip;
        (self.usable, self.known_bad) = (found.used(), found.bad);
        self
    }

    /// Reads the batches of one process of several; a step has so many batches over all of them.
    pub(crate) fn for_process(mut self, group: &Group, per_step: u64) -> Self {
        self.options.turns = Turns { rank: group.rank() as u64, size: group.size() as u64, per_step };
        self
    }

    /// Masks labels from this epoch on.
    pub fn with_selective_loss(mut self, selective: SelectiveLoss, from_epoch: u64) -> Self {
        self.selective = Some(selective);
        self.selective_from_epoch = from_epoch;
        self
    }

    /// What selective loss has done so far, readable while the rows are in use.
    pub fn selective_statistics(&self) -> Rc<Cell<Option<Statistics>>> {
        self.statistics.clone()
    }

    /// What became of the rows so far.
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        if let Some(loader) = &self.loader {
            tally.add(loader.tally());
        }
        tally
    }

    /// Ends the threads and gives their memory back.
    fn stop(&mut self) {
        self.tally = self.tally();
        self.loader = None;
    }

    fn loader(&mut self) -> Result<&mut Loader, BoxError> {
        if self.loader.is_none() {
            let options = LoaderOptions { start: self.position, ..self.options.clone() };
            self.loader = Some(Loader::start(self.dataset.clone(), self.recipe.clone(), options)?);
        }
        self.loader.as_mut().ok_or_else(|| "the loader is gone".into())
    }
}

impl BatchSource for Rows {
    type Batch = Batch;

    fn rows(&self) -> u64 {
        self.rows
    }

    fn usable_rows(&self) -> u64 {
        self.usable
    }

    fn batch_size(&self) -> u64 {
        self.options.batch_size as u64
    }

    fn seek(&mut self, position: Position) -> Result<(), BoxError> {
        if position != self.position {
            self.stop();
        }
        self.position = position;
        self.epoch = position.epoch;
        Ok(())
    }

    fn ahead(&mut self, most: u64) -> Result<u64, BoxError> {
        let epoch = self.epoch;
        Ok(self.loader()?.ahead(epoch, most))
    }

    fn next(&mut self) -> Result<Option<NextBatch<Batch>>, BoxError> {
        if self.ahead(1)? == 0 {
            return Ok(None);
        }
        let Some(turn) = self.loader()?.next_turn()? else { return Ok(None) };
        let BatchTurn { end, mut batch, .. } = turn;
        let selects = self.epoch >= self.selective_from_epoch;
        if let (Some(selective), Some(batch)) = (self.selective.as_mut().filter(|_| selects), &mut batch) {
            selective.apply(&batch.ids, &mut batch.labels);
            self.statistics.set(Some(selective.statistics()));
        }
        self.position = end;
        Ok(Some(NextBatch { batch, end }))
    }

    fn bad_rows(&self) -> u64 {
        self.loader.as_ref().map_or(0, Loader::bad_in_epoch)
    }

    fn check_bad_rows(&self, bad: u64) -> Result<(), BoxError> {
        let garden_data::OnBadRow::Skip { max_share } = self.options.on_bad_row else { return Ok(()) };
        let bad = bad + self.known_bad;
        if bad as f64 <= max_share * self.rows as f64 {
            return Ok(());
        }
        let percent = 100.0 * max_share;
        Err(format!(
            "{bad} of {} rows of this epoch are bad, more than the {percent}% that may be skipped",
            self.rows
        )
        .into())
    }

    fn pause(&mut self) {
        self.stop();
    }

    fn recycle(&mut self, batch: Batch) {
        if let Some(loader) = &mut self.loader {
            loader.recycle(batch);
        }
    }
}

/// Adds what selective loss did to the logs.
pub struct SelectiveLog {
    statistics: Rc<Cell<Option<Statistics>>>,
}

impl SelectiveLog {
    /// Reads what [`Rows::selective_statistics`] gave.
    pub fn new(statistics: Rc<Cell<Option<Statistics>>>) -> Self {
        Self { statistics }
    }
}

impl Callback for SelectiveLog {
    fn on_log(&mut self, _: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        if let Some(statistics) = self.statistics.get().filter(|_| entry.values.contains_key("loss")) {
            let share = statistics.masked_tokens as f64 / statistics.labelled_tokens.max(1) as f64;
            entry.values.insert("selective_masked_share".into(), share);
            entry.values.insert("selective_json_answers".into(), statistics.json_answers as f64);
            entry.values.insert("selective_other_answers".into(), statistics.other_answers as f64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::TrainOptions,
        selective_loss::Level,
        testing::{answered, open_rows, tiny_model},
    };
    use garden_data::{Encoder, NO_LABEL};
    use std::path::Path;

    const JSON_ROWS: usize = 4;

    /// Four rows that are answered in JSON and one that is answered in words.
    fn rows() -> Vec<String> {
        let answers = [r#"{"colour": "red", "size": null, "sides": [4, true]}"#; JSON_ROWS];
        answers.into_iter().chain(["a red square"]).map(answered).collect()
    }

    /// What the labels of each row say, in words, in two epochs; and what was counted.
    fn learned(folder: &Path, level: Level, start_epoch: u64) -> (Vec<Vec<String>>, Option<Statistics>) {
        let options = TrainOptions {
            selective_loss: Some(level),
            selective_loss_start_epoch: Some(start_epoch),
            ..TrainOptions::default()
        };
        let mut rows = open_rows(folder, &rows(), options).unwrap().training;
        let encoder = Encoder::from_dir(&folder.join("model")).unwrap();
        let epochs = (0..2).map(|epoch| {
            rows.seek(Position::start_of(epoch)).unwrap();
            let mut said = Vec::new();
            while said.len() <= JSON_ROWS {
                let next = rows.next().unwrap().expect("five rows an epoch");
                let batch = next.batch.expect("one process has all batches");
                let labels = batch.labels.iter().filter(|label| **label != NO_LABEL);
                said.push(encoder.decode(&labels.map(|label| *label as u32).collect::<Vec<_>>()).unwrap());
            }
            said.sort();
            said
        });
        (epochs.collect(), rows.selective_statistics().get())
    }

    #[test]
    fn each_level_of_selective_loss_leaves_the_labels_it_says() {
        let folder = tempfile::tempdir().unwrap();
        tiny_model(folder.path());
        let whole = r#"{"colour": "red", "size": null, "sides": [4, true]}<|im_end|>"#;
        let levels = [
            (Level::None, whole, None),
            // The brace and the first quote are one token; so are a comma and a quote that others begin with.
            (Level::Conservative, r#"{"colour": "red", "size": null "sides":4 true<|im_end|>"#, Some(40)),
            (Level::Moderate, "colourredsizesides4 true<|im_end|>", Some(112)),
            (Level::Aggressive, "red4 true<|im_end|>", Some(176)),
        ];
        for (level, expected, masked_tokens) in levels {
            let (epochs, counted) = learned(folder.path(), level, 0);
            let mut rows = vec![expected; JSON_ROWS];
            rows.insert(0, "a red square<|im_end|>");
            assert_eq!(epochs, [rows.clone(), rows], "{level:?}");
            let of_two_epochs = |masked_tokens| Statistics {
                labelled_tokens: 224,
                masked_tokens,
                json_answers: 8,
                other_answers: 2,
            };
            assert_eq!(counted, masked_tokens.map(of_two_epochs), "{level:?}");
        }
        let (epochs, _) = learned(folder.path(), Level::Aggressive, 1);
        assert_eq!(
            [&epochs[0][1], &epochs[1][1]],
            [whole, "red4 true<|im_end|>"],
            "from the second epoch on"
        );
    }
}
