//! What a dataset holds and what training will make of it, before anything is trained.
//!
//! Takes a dataset, a processor and, where there is one, a model's tokenizer; gives a [`Survey`]: shapes,
//! sizes, token lengths, which rows are left out and why, what a batch costs. Where images are decoded, a row
//! that is bad in training is bad here. Memory is bounded by the number of different sizes, not of rows.

mod report;

pub use report::{SurveyLine, SurveyReport, SurveyTopic};

use crate::{
    dataset::{Dataset, Row, RowReader},
    error::{BadRow, DataError, RowError},
    image,
    prefetch::{Prefetch, Weight},
    processor::{ImageHeader, Processor},
    progress::{Progress, ProgressUnit},
    recipe::{EncodedRow, LeftOut, Recipe},
    row::RowId,
    shape::Shape,
    share::RowShare,
    text::{Encoded, TokenRuns},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Bad rows that are named; all are counted.
const NAMED_BAD_ROWS: usize = 100;
/// Different image sizes that are listed; images of further sizes are counted, their sizes are not.
const MAX_SIZES: usize = 10_000;
/// Different names of fields and kinds of mistakes that are counted; rows may make up any number of names.
const MAX_NAMES: usize = 200;

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
}

/// Images of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// How often each length occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lengths(BTreeMap<usize, u64>);

impl Lengths {
    /// Counts a length.
    pub fn add(&mut self, length: usize) {
        *self.0.entry(length).or_default() += 1;
    }

    /// How many lengths were counted.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(length, count)| *length as u64 * count).sum()
    }

    /// The mean of all.
    pub fn mean(&self) -> f64 {
        self.total() as f64 / self.count().max(1) as f64
    }

    /// The longest.
    pub fn max(&self) -> usize {
        self.0.last_key_value().map_or(0, |(length, _)| *length)
    }

    /// The length that a share of the rows does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> usize {
        let wanted = (share * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        let reached = self.0.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        reached.map_or(0, |(length, _)| *length)
    }

    /// The sum of the `n` longest: what the heaviest batch of `n` rows can have.
    pub fn longest(&self, n: u64) -> u64 {
        let (mut left, mut sum) = (n, 0);
        for (length, count) in self.0.iter().rev() {
            let taken = left.min(*count);
            sum += taken * *length as u64;
            left -= taken;
        }
        sum
    }

    /// Counts by ranges of equal width, at most `bars` of them: (from, to, count).
    pub(crate) fn histogram(&self, bars: usize) -> Vec<(usize, usize, u64)> {
        let Some((min, _)) = self.0.first_key_value() else { return Vec::new() };
        let width = nice_width((self.max() - min) / bars.max(1) + 1);
        let first = min / width;
        let mut counts = vec![0; self.max() / width - first + 1];
        for (length, count) in &self.0 {
            counts[length / width - first] += count;
        }
        let bar = |(i, count)| ((first + i) * width, (first + i + 1) * width - 1, count);
        counts.into_iter().enumerate().map(bar).collect()
    }
}

/// The next of 1, 2, 5, 10, 20, 50, ... that is not smaller.
fn nice_width(width: usize) -> usize {
    let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(10));
    let candidates = powers.flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)));
    candidates.take(40).find(|candidate| *candidate >= width).unwrap_or(width)
}

/// What one row holds.
struct Facts {
    shape: Shape,
    images: Vec<ImageHeader>,
    /// All tokens and those with a label, where there is a tokenizer.
    tokens: Option<(usize, usize)>,
    left_out: Option<LeftOut>,
    ignored: Vec<String>,
}

impl Weight for Result<Facts, DataError> {
    fn bytes(&self) -> u64 {
        1
    }
}

/// Looks at every row.
pub fn survey(
    dataset: &Arc<Dataset>,
    options: SurveyOptions,
    progress: &dyn Progress,
) -> Result<Survey, DataError> {
    let options = Arc::new(options);
    let examiner = |_| {
        let mut examiner = Examiner::new(dataset, &options);
        move |row| examiner.examine(row)
    };
    let workers = (0..options.workers.max(1)).map(examiner).collect();
    // Facts are small: a thousand of them may wait.
    let mut facts = Prefetch::start(workers, 1000, 0..dataset.rows());
    let mut tables = Tables::new(&options);
    let is_held_out = options.held_out.map(|share| share.membership(dataset.rows()));
    progress.begin("Reading rows", ProgressUnit::Rows, dataset.rows());
    while let Some(facts) = facts.take_next().map_err(|_| DataError::Worker)? {
        let held_out = is_held_out.as_ref().is_some_and(|has| has(tables.survey.rows));
        if held_out {
            tables.survey.held_out.add(&facts);
        }
        tables.add(facts, held_out)?;
        progress.advance(1);
    }
    progress.end();
    let sample = tables.first_trained.map(|row| Examiner::new(dataset, &options).sample(row)).transpose()?;
    Ok(Survey { sample: sample.flatten(), ..tables.finish() })
}

struct Examiner {
    reader: RowReader,
    decoder: image::ImageDecoder,
    options: Arc<SurveyOptions>,
}

impl Examiner {
    fn new(dataset: &Arc<Dataset>, options: &Arc<SurveyOptions>) -> Self {
        Self {
            reader: RowReader::new(dataset.clone()),
            decoder: image::ImageDecoder::default(),
            options: options.clone(),
        }
    }

    fn examine(&mut self, number: u64) -> Result<Facts, DataError> {
        let row = self.reader.read(number)?;
        let images = self.headers(number, &row)?;
        let Some(recipe) = self.options.measure.recipe() else {
            return Ok(Facts {
                shape: row.shape,
                images,
                tokens: None,
                left_out: None,
                ignored: row.ignored,
            });
        };
        let bad = |reason| DataError::Row { row: row.id.clone(), reason };
        let EncodedRow { images, tokens, left_out } =
            recipe.encode(&row.conversation, images).map_err(bad)?;
        let tokens = Some((tokens.ids.len(), tokens.labels()));
        Ok(Facts { shape: row.shape, images, tokens, left_out, ignored: row.ignored })
    }

    /// The headers of a row's images, each decoded too where that is asked for. One encoded image is held at a time.
    fn headers(&mut self, number: u64, row: &Row) -> Result<Vec<ImageHeader>, DataError> {
        let Self { reader, decoder, options } = self;
        let processor = options.measure.processor();
        let mut headers = Vec::new();
        reader.for_each_image(number, row, |index, bytes| {
            let bad = |error| BadRow::image(index, error);
            headers.push(processor.header(&bytes).map_err(bad)?);
            if options.decode {
                decoder.decode(&bytes, processor.limits()).map_err(bad)?;
            }
            Ok(())
        })?;
        Ok(headers)
    }

    /// A row as the model will read it.
    fn sample(&mut self, number: u64) -> Result<Option<SampleRow>, DataError> {
        let row = self.reader.read(number)?;
        let images = self.headers(number, &row)?;
        let Some(recipe) = self.options.measure.recipe() else { return Ok(None) };
        let shown = recipe.encode(&row.conversation, images).and_then(|encoded| {
            let runs = recipe.encoder.runs(&encoded.tokens).map_err(BadRow::Text)?;
            Ok((encoded.tokens, runs))
        });
        match shown {
            Ok((encoded, runs)) => Ok(Some(SampleRow { id: row.id, encoded, runs })),
            Err(reason) => Err(DataError::Row { row: row.id, reason }),
        }
    }
}

/// Counts a name, as long as there are not too many.
fn count(names: &mut BTreeMap<String, u64>, name: String) {
    if names.len() < MAX_NAMES || names.contains_key(&name) {
        *names.entry(name).or_default() += 1;
    }
}

/// The survey while it is made.
struct Tables {
    survey: Survey,
    sizes: HashMap<(u32, u32), (ImageHeader, u64)>,
    first_trained: Option<u64>,
    patch_size: u32,
}

impl Tables {
    fn new(options: &SurveyOptions) -> Self {
        let tokens = options.measure.recipe().map(|_| Lengths::default());
        let config = options.measure.processor().config();
        let survey = Survey {
            tokens,
            patch_bytes: config.patch_bytes() as u64,
            pixel_value_bytes: (config.patch_values() * size_of::<f32>()) as u64,
            ..Survey::default()
        };
        let patch_size = config.patch_size;
        Self { survey, sizes: HashMap::new(), first_trained: None, patch_size }
    }

    fn add(&mut self, facts: Result<Facts, DataError>, held_out: bool) -> Result<(), DataError> {
        let survey = &mut self.survey;
        survey.rows += 1;
        let facts = match facts {
            Ok(facts) => facts,
            Err(DataError::Row { row, reason }) => {
                survey.bad += 1;
                count(&mut survey.bad_kinds, reason.kind());
                if survey.bad_rows.len() < NAMED_BAD_ROWS {
                    survey.bad_rows.push(RowError { row, reason });
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        *survey.shapes.entry(facts.shape).or_default() += 1;
        facts.ignored.into_iter().for_each(|name| count(&mut survey.ignored, name));
        survey.images += facts.images.len() as u64;
        survey.image_bytes += facts.images.iter().map(|image| image.encoded_bytes).sum::<u64>();
        match facts.left_out {
            Some(LeftOut::TooLong { .. }) => survey.too_long += 1,
            Some(LeftOut::NoLabel) => survey.no_label += 1,
            None => {
                if !held_out {
                    self.first_trained.get_or_insert(survey.rows - 1);
                }
                survey.image_tokens.add(facts.images.iter().map(|image| image.tokens).sum());
                survey.patches.add(facts.images.iter().map(|image| image.grid.patches()).sum());
            }
        }
        if let (Some((tokens, learned)), Some(lengths)) = (facts.tokens, &mut survey.tokens) {
            lengths.add(tokens);
            if facts.left_out.is_none() {
                survey.used_tokens.add(tokens);
                survey.label_tokens.add(learned);
            }
        }
        for image in facts.images {
            survey.most_image_bytes = survey.most_image_bytes.max(image.encoded_bytes);
            survey.most_decoding_bytes = survey.most_decoding_bytes.max(image.decoding_bytes);
            if self.sizes.len() < MAX_SIZES || self.sizes.contains_key(&image.size) {
                self.sizes.entry(image.size).or_insert((image, 0)).1 += 1;
            }
        }
        Ok(())
    }

    fn finish(self) -> Survey {
        let class = |(size, (image, count)): ((u32, u32), (ImageHeader, u64))| SizeClass {
            size,
            resized: image.grid.pixels(self.patch_size),
            tokens: image.tokens,
            count,
        };
        let mut sizes: Vec<_> = self.sizes.into_iter().map(class).collect();
        sizes.sort_unstable_by_key(|class| (std::cmp::Reverse(class.count), class.size));
        Survey { sizes, ..self.survey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(values: &[usize]) -> Lengths {
        let mut lengths = Lengths::default();
        values.iter().for_each(|value| lengths.add(*value));
        lengths
    }

    #[test]
    fn lengths_know_their_quantiles_and_their_heaviest_batch() {
        let lengths = lengths(&[10, 30, 20, 20, 100]);
        assert_eq!((lengths.count(), lengths.total(), lengths.max()), (5, 180, 100));
        assert_eq!((lengths.quantile(0.5), lengths.quantile(0.9), lengths.quantile(0.0)), (20, 100, 10));
        assert_eq!((lengths.longest(1), lengths.longest(3), lengths.longest(9)), (100, 150, 180));
        assert_eq!(Lengths::default().quantile(0.5), 0);
    }

    #[test]
    fn histograms_have_round_bounds_and_lose_nothing() {
        let lengths = lengths(&[103, 110, 111, 199, 250]);
        assert_eq!(lengths.histogram(3), [(100, 149, 3), (150, 199, 1), (200, 249, 0), (250, 299, 1)]);
        assert_eq!(Lengths::default().histogram(5), []);
        assert_eq!(super::Lengths(BTreeMap::from([(usize::MAX - 1, 1)])).histogram(4).len(), 1);
    }
}
