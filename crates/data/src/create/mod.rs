//! Makes datasets for trials and benchmarks: images with questions that can be answered by looking at them.
//!
//! Takes a kind, a number of rows, a size and a seed, and writes a folder with rows in JSON Lines. The same
//! seed makes the same files, whatever the number of threads.

mod photo;
mod random;
mod shapes;

use crate::{
    error::DataError,
    prefetch::{Prefetch, Weight},
    progress::{Progress, ProgressUnit},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use image::{ImageEncoder, codecs::jpeg::JpegEncoder, codecs::png::PngEncoder};
pub use shapes::shape_colours;

use random::Random;
use serde_json::json;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// The quality that cameras write.
const JPEG_QUALITY: u8 = 90;
/// Bytes of made images that may wait to be written.
const WAITING_BYTES: u64 = 32_000_000;
/// The largest side: twice what cameras have.
const MAX_SIDE: u32 = 16_384;
/// The smallest side on which shapes can be told apart.
const MIN_SIDE: u32 = 16;

/// What is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateKind {
    /// Coloured shapes as PNG files, with questions a small model can learn to answer.
    Shapes,
    /// The same images, always asked for the colour: the easiest task that still needs eyes.
    Colours,
    /// Images with the detail of photos as base64 JPEG inside the rows.
    Photos,
}

/// What is made, and how much.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// What is made.
    pub kind: CreateKind,
    /// Rows.
    pub rows: u64,
    /// Width of the images.
    pub width: u32,
    /// Height of the images.
    pub height: u32,
    /// Determines everything else.
    pub seed: u64,
    /// Threads.
    pub workers: usize,
}

/// An image with its question and answer.
struct Made {
    rgb: Vec<u8>,
    question: String,
    answer: String,
}

/// A row as it is written: a line, and an image beside it where the kind has files.
struct Written {
    line: String,
    image: Option<(PathBuf, Vec<u8>)>,
}

impl Weight for io::Result<Written> {
    fn bytes(&self) -> u64 {
        let image = |written: &Written| written.image.as_ref().map_or(0, |(_, bytes)| bytes.len());
        self.as_ref().map_or(0, |written| (written.line.len() + image(written)) as u64)
    }
}

/// Makes a dataset in a new or empty folder and returns its data file.
pub fn create(folder: &Path, options: &CreateOptions, progress: &dyn Progress) -> Result<PathBuf, DataError> {
    check(folder, options)?;
    let images = folder.join("images");
    let folders = if options.kind == CreateKind::Photos { folder } else { &images };
    fs::create_dir_all(folders).map_err(DataError::io(folders))?;
    let data = folder.join("train.jsonl");
    let worker = {
        let options = options.clone();
        move |row| write_row(&options, row)
    };
    let mut rows = Prefetch::start(vec![worker; options.workers.max(1)], WAITING_BYTES, 0..options.rows);
    progress.begin("Making rows", ProgressUnit::Rows, options.rows);
    let written = garden_files::write_with(
        &data,
        |error| DataError::io(&data)(error),
        |file| write_all(file, folder, &mut rows, progress),
    );
    progress.end();
    written?;
    Ok(data)
}

fn check(folder: &Path, options: &CreateOptions) -> Result<(), DataError> {
    let refuse = |reason: String| Err(DataError::NoData { path: folder.to_owned(), reason });
    let sides = [options.width, options.height];
    if sides.iter().any(|side| !(MIN_SIDE..=MAX_SIDE).contains(side)) {
        return refuse(format!("images have sides of {MIN_SIDE} to {MAX_SIDE} pixels"));
    }
    match fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(true) => refuse("the folder is not empty: name another one".into()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DataError::io(folder)(error)),
        _ => Ok(()),
    }
}

fn write_all(
    file: &mut File,
    folder: &Path,
    rows: &mut Prefetch<io::Result<Written>>,
    progress: &dyn Progress,
) -> Result<(), DataError> {
    let mut writer = BufWriter::new(file);
    while let Some(row) = rows.take_next().map_err(|_| DataError::Worker)? {
        let Written { line, image } = row.map_err(DataError::io(folder))?;
        if let Some((name, bytes)) = image {
            let path = folder.join(name);
            fs::write(&path, bytes).map_err(DataError::io(&path))?;
        }
        writeln!(writer, "{line}").map_err(DataError::io(folder))?;
        progress.advance(1);
    }
    writer.flush().map_err(DataError::io(folder))
}

fn write_row(options: &CreateOptions, row: u64) -> io::Result<Written> {
    let &CreateOptions { kind, width, height, seed, .. } = options;
    let mut random = Random::new(seed, row);
    match kind {
        CreateKind::Shapes | CreateKind::Colours => {
            let made = shapes::make(width, height, kind == CreateKind::Colours, &mut random);
            let mut png = Vec::new();
            let encoder = PngEncoder::new(&mut png);
            let colours = image::ExtendedColorType::Rgb8;
            encoder.write_image(&made.rgb, width, height, colours).map_err(io::Error::other)?;
            let name = format!("images/{row:06}.png");
            let content = json!([{"type": "image", "image": name}, {"type": "text", "text": made.question}]);
            Ok(Written { line: line(&content, &made.answer), image: Some((name.into(), png)) })
        }
        CreateKind::Photos => {
            let made = photo::make(width, height, &mut random);
            let mut jpeg = Vec::new();
            let encoder = JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY);
            let colours = image::ExtendedColorType::Rgb8;
            encoder.write_image(&made.rgb, width, height, colours).map_err(io::Error::other)?;
            let url = format!("data:image/jpeg;base64,{}", STANDARD.encode(jpeg));
            let image = json!({"type": "image_url", "image_url": {"url": url}});
            let content = json!([image, {"type": "text", "text": made.question}]);
            Ok(Written { line: line(&content, &made.answer), image: None })
        }
    }
}

fn line(content: &serde_json::Value, answer: &str) -> String {
    let turns = json!([{"role": "user", "content": content}, {"role": "assistant", "content": answer}]);
    json!({"messages": turns}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataset::{Dataset, DatasetOptions, RowReader},
        image::{DecodeLimits, decode},
        row::Part,
    };
    use std::sync::Arc;

    fn options(kind: CreateKind) -> CreateOptions {
        CreateOptions { kind, rows: 12, width: 60, height: 40, seed: 3, workers: 2 }
    }

    #[test]
    fn every_row_can_be_read_and_its_image_decoded() {
        for kind in [CreateKind::Shapes, CreateKind::Colours, CreateKind::Photos] {
            let folder = tempfile::tempdir().unwrap();
            let data = create(folder.path(), &options(kind), &()).unwrap();
            let dataset = Dataset::open(data.to_str().unwrap(), &DatasetOptions::default(), &()).unwrap();
            assert_eq!(dataset.rows(), 12);
            let mut reader = RowReader::new(Arc::new(dataset));
            for row in 0..12 {
                let read = reader.read(row).unwrap();
                let image = read.conversation.images().next().unwrap();
                let pixels =
                    decode(&reader.image_bytes(row, image).unwrap(), DecodeLimits::default()).unwrap();
                assert_eq!((pixels.width, pixels.height), (60, 40));
                let answer = &read.conversation.turns[1].parts;
                assert!(matches!(&answer[..], [Part::Text(text)] if !text.is_empty()));
            }
        }
    }

    #[test]
    fn the_seed_decides_everything_and_threads_nothing() {
        let make = |seed, workers| {
            let folder = tempfile::tempdir().unwrap();
            let data =
                create(folder.path(), &CreateOptions { seed, workers, ..options(CreateKind::Photos) }, &())
                    .unwrap();
            fs::read(data).unwrap()
        };
        assert_eq!(make(3, 1), make(3, 4));
        assert_ne!(make(3, 1), make(4, 1));
    }

    #[test]
    fn nothing_is_overwritten_and_sizes_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path(), &options(CreateKind::Shapes), &()).unwrap();
        let again = create(folder.path(), &options(CreateKind::Shapes), &()).unwrap_err().to_string();
        assert!(again.contains("not empty"), "{again}");
        let thin = CreateOptions { width: 1, ..options(CreateKind::Shapes) };
        assert!(create(&folder.path().join("other"), &thin, &()).is_err());
    }
}
