//! What a dataset holds and what training will make of it, before anything is trained.
//!
//! Takes a dataset, a processor and, where there is one, a model's tokenizer; gives a [`Survey`]: shapes,
//! sizes, token lengths, which rows are left out and why, what a batch costs. Where images are decoded, a row
//! that is bad in training is bad here. Memory is bounded by the number of different sizes, and by one bit a
//! row for the rows that cannot be used.
//!
//! Several processes may share the work: [`survey_part`] looks at some of the rows, and parts joined in order
//! are the survey of all.

mod examiner;
mod lengths;
mod part;
mod report;

pub use lengths::Lengths;
pub use part::{SurveyPart, survey_part};
pub use report::{SurveyLine, SurveyReport, SurveyTopic};

use crate::{
    dataset::Dataset,
    error::{DataError, RowError},
    processor::Processor,
    progress::Progress,
    recipe::{LeftOut, Recipe},
    row::RowId,
    shape::Shape,
    share::RowShare,
    skipped::SkippedRows,
    text::{Encoded, TokenRuns},
};
use examiner::Facts;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// What rows are measured with.
#[derive(Clone)]
pub enum Measure {
    /// The images alone: no tokenizer is known.
    Images(Processor),
    /// Images and text, as a recipe encodes them.
    Rows(Arc<Recipe>),
}

impl Measure {
    pub(crate) fn processor(&self) -> &Processor {
        match self {
            Self::Images(processor) => processor,
            Self::Rows(recipe) => &recipe.processor,
        }
    }

    pub(crate) fn recipe(&self) -> Option<&Recipe> {
        match self {
            Self::Images(_) => None,
            Self::Rows(recipe) => Some(recipe),
        }
    }
}

/// How a dataset is looked at.
#[derive(Clone)]
pub struct SurveyOptions {
    /// What rows are measured with.
    pub measure: Measure,
    /// Threads.
    pub workers: usize,
    /// Rows that are not trained on; they are counted separately as well.
    pub held_out: Option<RowShare>,
    /// Whether images are decoded, which finds the broken ones, or only their headers read, which is far
    /// faster.
    pub decode: bool,
}

/// What a dataset holds.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Rows in all.
    pub rows: u64,
    /// How often each shape was seen.
    pub shapes: BTreeMap<Shape, u64>,
    /// Images in all good rows.
    pub images: u64,
    /// Their encoded bytes.
    pub image_bytes: u64,
    /// Encoded bytes of the largest.
    pub most_image_bytes: u64,
    /// Bytes that decoding one of them takes at most.
    pub most_decoding_bytes: u64,
    /// Each size that images have, what it is resized to, and how many have it.
    pub sizes: Vec<SizeClass>,
    /// Tokens of all good rows, where a tokenizer was given.
    pub tokens: Option<Lengths>,
    /// Tokens of rows that are used.
    pub used_tokens: Lengths,
    /// Tokens with a label, in rows that are used.
    pub label_tokens: Lengths,
    /// Image tokens of rows that are used.
    pub image_tokens: Lengths,
    /// Patches of rows that are used.
    pub patches: Lengths,
    /// Bytes of a patch as the engine has it.
    pub patch_bytes: u64,
    /// Bytes of a patch in HF's `pixel_values`.
    pub pixel_value_bytes: u64,
    /// Rows that are too long.
    pub too_long: u64,
    /// Rows without a label.
    pub no_label: u64,
    /// Bad rows.
    pub bad: u64,
    /// The first bad rows, with their reasons.
    pub bad_rows: Vec<RowError>,
    /// How many rows are bad for each reason.
    pub bad_kinds: BTreeMap<String, u64>,
    /// Fields that no shape reads, and how many rows have them.
    pub ignored: BTreeMap<String, u64>,
    /// The rows held out, which are among those above.
    pub held_out: RowCounts,
    /// The rows that are too long, without a label or bad, those held out among them.
    pub skipped: Arc<SkippedRows>,
    /// The first row that is trained on, as the model will read it, where a tokenizer was given.
    pub sample: Option<SampleRow>,
}

/// A row as the model will read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleRow {
    /// Where it is.
    pub id: RowId,
    /// Its tokens, and which of them are learned.
    pub encoded: Encoded,
    /// The same for people.
    pub runs: TokenRuns,
}

impl Survey {
    /// Rows that can be trained on.
    pub fn used_rows(&self) -> u64 {
        self.counts().used()
    }

    /// All rows by what becomes of them.
    fn counts(&self) -> RowCounts {
        let Self { rows, too_long, no_label, bad, .. } = *self;
        RowCounts { rows, too_long, no_label, bad }
    }

    /// The rows that are not held out.
    pub fn rest(&self) -> RowCounts {
        let (all, held_out) = (self.counts(), self.held_out);
        RowCounts {
            rows: all.rows - held_out.rows,
            too_long: all.too_long - held_out.too_long,
            no_label: all.no_label - held_out.no_label,
            bad: all.bad - held_out.bad,
        }
    }
}

/// Rows by what becomes of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// All of them.
    pub rows: u64,
    /// Those that are too long.
    pub too_long: u64,
    /// Those without a label.
    pub no_label: u64,
    /// Those that are bad.
    pub bad: u64,
}

impl RowCounts {
    /// Those that can be trained on.
    pub fn used(&self) -> u64 {
        self.rows.saturating_sub(self.too_long + self.no_label + self.bad)
    }

    fn add(&mut self, facts: &Result<Facts, DataError>) {
        self.rows += 1;
        match facts {
            Ok(Facts { left_out: None, .. }) => {}
            Ok(Facts { left_out: Some(LeftOut::TooLong { .. }), .. }) => self.too_long += 1,
            Ok(Facts { left_out: Some(LeftOut::NoLabel), .. }) => self.no_label += 1,
            Err(_) => self.bad += 1,
        }
    }

    fn join(&mut self, other: Self) {
        self.rows += other.rows;
        self.too_long += other.too_long;
        self.no_label += other.no_label;
        self.bad += other.bad;
    }
}

/// Images of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Upright width and height.
    pub size: (u32, u32),
    /// Width and height after resizing.
    pub resized: (u32, u32),
    /// Tokens each takes.
    pub tokens: usize,
    /// How many there are.
    pub count: u64,
}

/// Looks at every row.
pub fn survey(
    dataset: &Arc<Dataset>,
    options: SurveyOptions,
    progress: &dyn Progress,
) -> Result<Survey, DataError> {
    survey_part(dataset, &options, 0..dataset.rows(), progress)?.finish(dataset, &options)
}

#[cfg(test)]
mod tests;
