//! A survey of some of a dataset's rows, which can be joined with those of the others.
//!
//! Takes a range of rows and gives a [`SurveyPart`], which travels between processes as bytes. Parts that
//! follow each other, joined in the order of the dataset, become the [`Survey`] that one process would have
//! made alone. A part names rows by number only, so whoever finishes it needs the dataset as well.

use super::{
    Lengths, RowCounts, SizeClass, Survey, SurveyOptions,
    examiner::{Examiner, Facts},
};
use crate::{
    dataset::Dataset,
    error::{DataError, RowError},
    prefetch::Prefetch,
    processor::ImageHeader,
    progress::{Progress, ProgressUnit},
    shape::Shape,
    skipped::SkippedRows,
};
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::BTreeMap, ops::Range, sync::Arc};

/// Bad rows that are named; all are counted.
const NAMED_BAD_ROWS: usize = 100;
/// Different image sizes that are listed; images of further sizes are counted, their sizes are not.
const MAX_SIZES: usize = 10_000;
/// Different names of fields and kinds of mistakes that are counted; rows may make up any number of names.
const MAX_NAMES: usize = 200;
/// Facts are small: a thousand of them may wait.
const WAITING_FACTS: u64 = 1000;

/// What some of a dataset's rows hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SurveyPart {
    range: Range<u64>,
    all: RowCounts,
    held_out: RowCounts,
    skipped: SkippedRows,
    shapes: BTreeMap<Shape, u64>,
    images: u64,
    image_bytes: u64,
    most_image_bytes: u64,
    most_decoding_bytes: u64,
    /// In the order of their width and height.
    sizes: Vec<SizeClass>,
    tokens: Option<Lengths>,
    used_tokens: Lengths,
    label_tokens: Lengths,
    image_tokens: Lengths,
    patches: Lengths,
    bad_rows: Vec<NamedRow>,
    bad_kinds: BTreeMap<String, u64>,
    ignored: BTreeMap<String, u64>,
    first_trained: Option<u64>,
}

/// A bad row that the survey names.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct NamedRow {
    row: u64,
    /// What is wrong with it, until the part travels: whoever gets it looks at the row again.
    #[serde(skip)]
    fault: Option<RowError>,
}

/// Looks at some rows of a dataset.
pub fn survey_part(
    dataset: &Arc<Dataset>,
    options: &SurveyOptions,
    rows: Range<u64>,
    progress: &dyn Progress,
) -> Result<SurveyPart, DataError> {
    let shared = Arc::new(options.clone());
    let examiner = |_| {
        let mut examiner = Examiner::new(dataset, &shared);
        move |row| examiner.examine(row)
    };
    let workers = (0..options.workers.max(1)).map(examiner).collect();
    let mut facts = Prefetch::start(workers, WAITING_FACTS, rows.clone());
    let is_held_out = options.held_out.map(|share| share.membership(dataset.rows()));
    let mut part = SurveyPart::new(options, rows.clone());
    progress.begin("Reading rows", ProgressUnit::Rows, rows.end.saturating_sub(rows.start));
    for row in rows {
        let facts = facts.take_next().map_err(|_| DataError::Worker)?.ok_or(DataError::Worker)?;
        let held_out = is_held_out.as_ref().is_some_and(|has| has(row));
        part.add(row, facts, held_out, options.measure.processor().config().patch_size)?;
        progress.advance(1);
    }
    progress.end();
    Ok(part)
}

impl SurveyPart {
    fn new(options: &SurveyOptions, range: Range<u64>) -> Self {
        Self {
            range,
            all: RowCounts::default(),
            held_out: RowCounts::default(),
            skipped: SkippedRows::default(),
            shapes: BTreeMap::new(),
            images: 0,
            image_bytes: 0,
            most_image_bytes: 0,
            most_decoding_bytes: 0,
            sizes: Vec::new(),
            tokens: options.measure.recipe().map(|_| Lengths::default()),
            used_tokens: Lengths::default(),
            label_tokens: Lengths::default(),
            image_tokens: Lengths::default(),
            patches: Lengths::default(),
            bad_rows: Vec::new(),
            bad_kinds: BTreeMap::new(),
            ignored: BTreeMap::new(),
            first_trained: None,
        }
    }

    fn add(
        &mut self,
        row: u64,
        facts: Result<Facts, DataError>,
        held_out: bool,
        patch_size: u32,
    ) -> Result<(), DataError> {
        self.all.add(&facts);
        if held_out {
            self.held_out.add(&facts);
        }
        match facts {
            Ok(facts) => self.add_good(row, facts, held_out, patch_size),
            Err(DataError::Row { row: id, reason }) => {
                self.skipped.insert(row);
                count(&mut self.bad_kinds, reason.kind(), 1);
                if self.bad_rows.len() < NAMED_BAD_ROWS {
                    self.bad_rows.push(NamedRow { row, fault: Some(RowError { row: id, reason }) });
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn add_good(&mut self, row: u64, facts: Facts, held_out: bool, patch_size: u32) {
        *self.shapes.entry(facts.shape).or_default() += 1;
        facts.ignored.into_iter().for_each(|name| count(&mut self.ignored, name, 1));
        self.images += facts.images.len() as u64;
        self.image_bytes += facts.images.iter().map(|image| image.encoded_bytes).sum::<u64>();
        let used = facts.left_out.is_none();
        if used {
            self.image_tokens.add(facts.images.iter().map(|image| image.tokens).sum());
            self.patches.add(facts.images.iter().map(|image| image.grid.patches()).sum());
        } else {
            self.skipped.insert(row);
        }
        if used && !held_out {
            self.first_trained.get_or_insert(row);
        }
        if let (Some((tokens, learned)), Some(lengths)) = (facts.tokens, &mut self.tokens) {
            lengths.add(tokens);
            if used {
                self.used_tokens.add(tokens);
                self.label_tokens.add(learned);
            }
        }
        for image in facts.images {
            self.most_image_bytes = self.most_image_bytes.max(image.encoded_bytes);
            self.most_decoding_bytes = self.most_decoding_bytes.max(image.decoding_bytes);
            let ImageHeader { size, grid, tokens, .. } = image;
            self.count_size(SizeClass { size, resized: grid.pixels(patch_size), tokens, count: 1 });
        }
    }

    fn count_size(&mut self, class: SizeClass) {
        match self.sizes.binary_search_by_key(&class.size, |known| known.size) {
            Ok(at) => self.sizes[at].count += class.count,
            Err(at) if self.sizes.len() < MAX_SIZES => self.sizes.insert(at, class),
            Err(_) => {}
        }
    }

    /// Adds the part of the rows that follow directly. The result is the part of the rows of both. Only
    /// where the rows have more different sizes or names than are listed may it list others.
    pub fn join(&mut self, following: Self) {
        // A part that does not follow leaves a gap, which `finish` finds.
        self.range.end = following.range.end;
        self.all.join(following.all);
        self.held_out.join(following.held_out);
        self.skipped.extend(&following.skipped);
        following.shapes.into_iter().for_each(|(shape, n)| *self.shapes.entry(shape).or_default() += n);
        self.images += following.images;
        self.image_bytes += following.image_bytes;
        self.most_image_bytes = self.most_image_bytes.max(following.most_image_bytes);
        self.most_decoding_bytes = self.most_decoding_bytes.max(following.most_decoding_bytes);
        following.sizes.into_iter().for_each(|class| self.count_size(class));
        if let (Some(tokens), Some(others)) = (&mut self.tokens, following.tokens) {
            tokens.join(others);
        }
        self.used_tokens.join(following.used_tokens);
        self.label_tokens.join(following.label_tokens);
        self.image_tokens.join(following.image_tokens);
        self.patches.join(following.patches);
        self.bad_rows.extend(following.bad_rows);
        self.bad_rows.truncate(NAMED_BAD_ROWS);
        following.bad_kinds.into_iter().for_each(|(kind, n)| count(&mut self.bad_kinds, kind, n));
        following.ignored.into_iter().for_each(|(name, n)| count(&mut self.ignored, name, n));
        self.first_trained = self.first_trained.or(following.first_trained);
    }

    /// Makes the survey, once all parts are joined. Looks again at the few rows that it names. It is an error
    /// if the parts are not those of this dataset.
    pub fn finish(self, dataset: &Arc<Dataset>, options: &SurveyOptions) -> Result<Survey, DataError> {
        let (surveyed, rows) = (self.all.rows, dataset.rows());
        if surveyed != rows || self.range != (0..rows) {
            return Err(DataError::OtherRows { surveyed, rows });
        }
        let mut examiner = Examiner::new(dataset, &Arc::new(options.clone()));
        let sample = self.first_trained.map(|row| examiner.sample(row)).transpose()?.flatten();
        let mut bad_rows = Vec::new();
        for named in self.bad_rows {
            bad_rows.extend(named.look(&mut examiner)?);
        }
        let config = options.measure.processor().config();
        let mut sizes = self.sizes;
        sizes.sort_unstable_by_key(|class| (Reverse(class.count), class.size));
        let RowCounts { rows, too_long, no_label, bad } = self.all;
        Ok(Survey {
            rows,
            shapes: self.shapes,
            images: self.images,
            image_bytes: self.image_bytes,
            most_image_bytes: self.most_image_bytes,
            most_decoding_bytes: self.most_decoding_bytes,
            sizes,
            tokens: self.tokens,
            used_tokens: self.used_tokens,
            label_tokens: self.label_tokens,
            image_tokens: self.image_tokens,
            patches: self.patches,
            patch_bytes: config.patch_bytes() as u64,
            pixel_value_bytes: (config.patch_values() * size_of::<f32>()) as u64,
            too_long,
            no_label,
            bad,
            bad_rows,
            bad_kinds: self.bad_kinds,
            ignored: self.ignored,
            held_out: self.held_out,
            skipped: Arc::new(self.skipped),
            sample,
        })
    }
}

impl NamedRow {
    /// What is wrong with the row; nothing if it was mended since.
    fn look(self, examiner: &mut Examiner) -> Result<Option<RowError>, DataError> {
        if self.fault.is_some() {
            return Ok(self.fault);
        }
        match examiner.examine(self.row) {
            Ok(_) => Ok(None),
            Err(DataError::Row { row, reason }) => Ok(Some(RowError { row, reason })),
            Err(error) => Err(error),
        }
    }
}

/// Counts a name, as long as there are not too many.
fn count(names: &mut BTreeMap<String, u64>, name: String, times: u64) {
    if names.len() < MAX_NAMES || names.contains_key(&name) {
        *names.entry(name).or_default() += times;
    }
}
