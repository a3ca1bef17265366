//! Prepares one row of a dataset for a batch: reads it, encodes its text, decodes its images.
//!
//! Takes the number of a row and gives a [`Sample`], or why the row is left out. Text is encoded before any
//! image is decoded, so a row that is left out costs no decoding.

use crate::{
    batch::Sample,
    dataset::{Dataset, Row, RowReader},
    error::{BadRow, DataError},
    processor::ImageWorkspace,
    recipe::{LeftOut, Recipe},
    row::RowId,
};
use std::sync::Arc;

/// What became of a row.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// It can be learned from.
    Ready(Sample),
    /// It is good, and left out.
    LeftOut(RowId, LeftOut),
}

/// Prepares rows for one thread, in buffers that are reused for each row.
pub(crate) struct Preparer {
    recipe: Arc<Recipe>,
    reader: RowReader,
    work: ImageWorkspace,
}

impl Preparer {
    pub fn new(dataset: Arc<Dataset>, recipe: Arc<Recipe>) -> Self {
        Self { reader: RowReader::new(dataset), recipe, work: ImageWorkspace::default() }
    }

    /// Prepares a row; patches go to the given buffer, which must be empty.
    pub fn prepare(&mut self, number: u64, mut patches: Vec<u8>) -> Result<Prepared, DataError> {
        let row = self.reader.read(number)?;
        let Row { id, conversation, .. } = &row;
        let bad = |reason| DataError::Row { row: id.clone(), reason };
        let (mut images, mut headers) = (Vec::new(), Vec::new());
        self.reader.for_each_image(number, &row, |index, bytes| {
            let header = self.recipe.processor.header(&bytes);
            headers.push(header.map_err(|error| BadRow::image(index, error))?);
            images.push(bytes);
            Ok(())
        })?;
        let encoded = self.recipe.encode(conversation, headers).map_err(bad)?;
        if let Some(why) = encoded.left_out {
            return Ok(Prepared::LeftOut(id.clone(), why));
        }
        self.recipe.append_patches(&encoded, &images, &mut self.work, &mut patches).map_err(bad)?;
        let grids = encoded.images.iter().map(|image| image.grid).collect();
        Ok(Prepared::Ready(Sample { row: number, encoded: encoded.tokens, grids, patches }))
    }
}
