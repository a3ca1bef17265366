//! Looks at one row for the survey.
//!
//! Takes the number of a row and gives its [`Facts`]: its shape, the headers of its images, its tokens, and
//! why it would be left out. A row that cannot be used is an error that names it.

use super::{SampleRow, SurveyOptions};
use crate::{
    dataset::{Dataset, Row, RowReader},
    error::{BadRow, DataError},
    image,
    prefetch::Weight,
    processor::ImageHeader,
    recipe::{EncodedRow, LeftOut},
    shape::Shape,
};
use std::sync::Arc;

/// What one row holds.
pub(super) struct Facts {
    pub shape: Shape,
    pub images: Vec<ImageHeader>,
    /// All tokens and those with a label, where there is a tokenizer.
    pub tokens: Option<(usize, usize)>,
    pub left_out: Option<LeftOut>,
    pub ignored: Vec<String>,
}

impl Weight for Result<Facts, DataError> {
    fn bytes(&self) -> u64 {
        1
    }
}

/// Looks at rows, for one thread.
pub(super) struct Examiner {
    reader: RowReader,
    decoder: image::ImageDecoder,
    options: Arc<SurveyOptions>,
}

impl Examiner {
    pub fn new(dataset: &Arc<Dataset>, options: &Arc<SurveyOptions>) -> Self {
        Self {
            reader: RowReader::new(dataset.clone()),
            decoder: image::ImageDecoder::default(),
            options: options.clone(),
        }
    }

    pub fn examine(&mut self, number: u64) -> Result<Facts, DataError> {
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

    /// The headers of a row's images, each decoded too where that is asked for. One encoded image is held at
    /// a time.
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
    pub fn sample(&mut self, number: u64) -> Result<Option<SampleRow>, DataError> {
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
