//! One row for people: what it says, its images, and what a model reads and learns of it.
//!
//! Takes a row of a dataset and what it is measured with, and gives its turns, its images with or without their
//! pixels, and its runs of learned and unlearned text. As JSON it is what the pages of the server show.

use crate::{
    dataset::{Row, RowReader},
    error::{BadRow, DataError},
    image::{self, DecodeLimits, ImageError, ImageFormat},
    processor::ImageHeader,
    recipe::{EncodedRow, Recipe},
    row::Part,
    survey::Measure,
    text::TokenRuns,
};
use ::image::{ImageBuffer, ImageEncoder, Rgb, codecs::jpeg::JpegEncoder, imageops};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

const JPEG_QUALITY: u8 = 82;

/// Which images a preview holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PreviewImages {
    /// None: their sizes alone.
    #[default]
    None,
    /// As JPEG, no side longer than this many pixels.
    Thumbnails(u32),
    /// As they are stored.
    Stored,
}

/// A row that was looked at.
#[derive(Debug)]
pub struct Preview {
    /// The row.
    pub row: Row,
    /// Its number in the dataset, from 0.
    pub number: u64,
    /// Its images in their order.
    pub images: Vec<PreviewImage>,
    /// How a model reads it, where one was given.
    pub encoded: Option<(EncodedRow, TokenRuns)>,
}

/// An image of a preview.
#[derive(Debug)]
pub struct PreviewImage {
    /// What its header says.
    pub header: ImageHeader,
    /// Width and height after resizing.
    pub resized: (u32, u32),
    /// Its pixels as a data URI, where they were asked for.
    pub uri: Option<String>,
}

/// Looks at a row of the reader's dataset, numbered from 0.
pub fn preview(
    reader: &mut RowReader,
    number: u64,
    measure: &Measure,
    images: PreviewImages,
) -> Result<Preview, DataError> {
    let row = reader.read(number)?;
    let bad = |reason| DataError::Row { row: row.id.clone(), reason };
    let patch_size = measure.processor().config().patch_size;
    let mut seen = Vec::new();
    for (index, source) in row.conversation.images().enumerate() {
        let bytes = reader.image_bytes(number, source)?;
        let fault = |error| bad(BadRow::image(index, error));
        let header = measure.processor().header(&bytes).map_err(fault)?;
        let resized = header.grid.pixels(patch_size);
        let uri = match images {
            PreviewImages::None => None,
            PreviewImages::Thumbnails(side) => Some(thumbnail(&bytes, side).map_err(fault)?),
            PreviewImages::Stored => Some(stored(&bytes)),
        };
        seen.push(PreviewImage { header, resized, uri });
    }
    let headers = seen.iter().map(|image| image.header).collect();
    let encode = |recipe: &Recipe| {
        let encoded = recipe.encode(&row.conversation, headers)?;
        let runs = recipe.encoder.runs(&encoded.tokens).map_err(BadRow::Text)?;
        Ok((encoded, runs))
    };
    let encoded = measure.recipe().map(encode).transpose().map_err(bad)?;
    Ok(Preview { row, number, images: seen, encoded })
}

/// An encoded image as a data URI.
pub(crate) fn stored(bytes: &[u8]) -> String {
    let kind =
        ImageFormat::of(bytes).map_or("octet-stream".into(), |format| format.to_string().to_lowercase());
    format!("data:image/{kind};base64,{}", STANDARD.encode(bytes))
}

/// A small JPEG of an image, as a data URI.
fn thumbnail(bytes: &[u8], side: u32) -> Result<String, ImageError> {
    let pixels = image::decode(bytes, DecodeLimits::default())?;
    let (width, height) = (pixels.width, pixels.height);
    let shrink = (f64::from(side) / f64::from(width.max(height))).min(1.0);
    let scaled = |length: u32| ((f64::from(length) * shrink).round() as u32).max(1);
    let broken = |reason: String| ImageError::Broken { format: ImageFormat::Jpeg, reason };
    let whole = ImageBuffer::<Rgb<u8>, _>::from_raw(width, height, pixels.rgb)
        .ok_or_else(|| broken("its pixels do not fill its size".into()))?;
    let small = if shrink < 1.0 { imageops::thumbnail(&whole, scaled(width), scaled(height)) } else { whole };
    let mut encoded = Vec::new();
    JpegEncoder::new_with_quality(&mut encoded, JPEG_QUALITY)
        .write_image(small.as_raw(), small.width(), small.height(), ::image::ExtendedColorType::Rgb8)
        .map_err(|error| broken(error.to_string()))?;
    Ok(stored(&encoded))
}

impl Preview {
    /// The preview for programs; `rows` is how many rows there are to choose from.
    pub fn to_json(&self, rows: u64) -> Value {
        let image = |image: &PreviewImage| {
            let PreviewImage { header, resized, uri } = image;
            json!({"width": header.size.0, "height": header.size.1, "resized_width": resized.0,
                   "resized_height": resized.1, "tokens": header.tokens, "bytes": header.encoded_bytes, "uri": uri})
        };
        let encoded = self.encoded.as_ref().map(|(encoded, _)| encoded);
        json!({
            "row": self.number + 1,
            "rows": rows,
            "shape": self.row.shape.id(),
            "turns": self.turns(),
            "images": self.images.iter().map(image).collect::<Vec<_>>(),
            "runs": self.encoded.as_ref().map(|(_, runs)| runs.0.iter().map(|run| run.to_json()).collect::<Vec<_>>()),
            "tokens": encoded.map(|encoded| encoded.tokens.ids.len()),
            "left_out": encoded.and_then(|encoded| encoded.left_out).map(|why| why.to_string()),
            "ignored": self.row.ignored,
        })
    }

    /// What each speaker says, images by their numbers from 0.
    fn turns(&self) -> Vec<Value> {
        let mut numbers = 0..self.images.len();
        let mut turns = Vec::new();
        for turn in &self.row.conversation.turns {
            let part = |part: &Part| match part {
                Part::Text(text) => json!({"text": text}),
                Part::Image(_) => json!({"image": numbers.next()}),
            };
            let parts: Vec<Value> = turn.parts.iter().map(part).collect();
            turns.push(json!({"role": turn.role.name(), "parts": parts}));
        }
        turns
    }

    /// The preview for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{} ({})\n", self.row.id, self.row.shape);
        for PreviewImage { header, resized, .. } in &self.images {
            let ((from, to), (width, height)) = (header.size, resized);
            text += &format!("  image {from}x{to}, resized to {width}x{height}: {} tokens\n", header.tokens);
        }
        if let Some((_, runs)) = &self.encoded {
            return text + &format!("\n{}\n", runs.shown(usize::MAX));
        }
        for turn in &self.row.conversation.turns {
            text += &format!("\n{}:\n", turn.role.name());
            for part in &turn.parts {
                text += match part {
                    Part::Text(said) => said,
                    Part::Image(_) => "[image]",
                };
                text += "\n";
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataset::{Dataset, DatasetOptions},
        processor::{Processor, ProcessorConfig},
    };
    use std::{fs, sync::Arc};

    #[test]
    fn a_row_is_shown_with_a_small_image() {
        let folder = tempfile::tempdir().unwrap();
        let image = ImageBuffer::from_pixel(200, 100, Rgb([200u8, 30, 30]));
        image.save(folder.path().join("red.png")).unwrap();
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, r#"{"image": "red.png", "question": "Colour?", "answer": "red"}"#).unwrap();
        let dataset = Dataset::open(&path.to_string_lossy(), &DatasetOptions::default(), &()).unwrap();
        let measure = Measure::Images(Processor::new(ProcessorConfig::default(), DecodeLimits::default()));
        let mut reader = RowReader::new(Arc::new(dataset));
        let seen = preview(&mut reader, 0, &measure, PreviewImages::Thumbnails(50)).unwrap();
        let json = seen.to_json(1);
        assert_eq!((&json["row"], &json["images"][0]["width"]), (&json!(1), &json!(200)));
        assert_eq!(json["turns"][0]["parts"][0], json!({"image": 0}));
        let uri = json["images"][0]["uri"].as_str().unwrap();
        let bytes = STANDARD.decode(uri.strip_prefix("data:image/jpeg;base64,").unwrap()).unwrap();
        let small = image::decode(&bytes, DecodeLimits::default()).unwrap();
        assert_eq!((small.width, small.height), (50, 25));
        assert!(seen.text().contains("Colour?"), "{}", seen.text());
    }
}
