//! Batches for PyTorch from rows that Python holds.
//!
//! Takes a list of rows and gives the arrays of HF's processor, with labels. Rows are read with the interpreter's lock
//! held; images are decoded and texts are encoded without it, on threads. No image outlives its batch.

use crate::{
    errors::{Exception, data_error},
    pixels::Shelf,
    row::{self, Unreadable},
    workers::{OwnWorkers, Workers},
};
use garden_data::{
    BadRow, Batch, EncodedRow, Facing, FoundImage, HeldImage, ImageError, ImageFinder, ImageHeader,
    ImageInput, LeftOut, Padded, PixelLimits, Processor, ProcessorConfig, Purpose, Recipe, cached_model,
    parsers::{Reading, Value, read_row},
};
use garden_train::selective::{KeyFinder, Level, SelectiveLoss, TokenBytes};
use numpy::{IntoPyArray, PyArray2, PyArrayMethods, ndarray::Array2};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyTuple},
};
use serde::de::{DeserializeOwned, value::StrDeserializer};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Makes batches; `model_garden.VisionCollator` is what people use.
#[pyclass(module = "model_garden._native", frozen)]
pub(crate) struct Collator {
    recipe: Recipe,
    finder: ImageFinder,
    pad: u32,
    drop_long: bool,
    selective: Option<Mutex<Selective>>,
    workers: OwnWorkers,
    shelf: Mutex<Shelf>,
}

/// Takes the layout of JSON out of the labels.
struct Selective {
    loss: SelectiveLoss,
    /// Looks for keys until it has seen enough answers, unless the user gave them.
    finder: Option<KeyFinder>,
}

/// A row that is ready but for its pixels.
struct Prepared {
    number: usize,
    conversation: garden_data::Conversation,
    images: Vec<FoundImage>,
    encoded: EncodedRow,
}

/// What a row is called in messages: its number in the batch, or a name of its own.
enum RowName {
    Number(usize),
    Own(String),
}

impl RowName {
    fn of(row: &Bound<'_, PyAny>, number: usize) -> Self {
        let own = (!row.is_exact_instance_of::<PyDict>() && row.is_instance_of::<PyDict>())
            .then(|| row.getattr("id"));
        match own.and_then(Result::ok).and_then(|id| id.extract::<String>().ok()) {
            Some(name) => Self::Own(name),
            None => Self::Number(number),
        }
    }

    fn error(&self, py: Python<'_>, reason: &str) -> PyErr {
        let class = py.import("model_garden.exceptions").and_then(|module| module.getattr("RowError"));
        let error = class.and_then(|class| match self {
            Self::Number(number) => {
                class.call1((format!("row {number} of the batch: {reason}"), *number, reason))
            }
            Self::Own(name) => class.call1((format!("{name}: {reason}"), name, reason)),
        });
        error.map_or_else(|error| error, PyErr::from_value)
    }

    /// What is raised about this row.
    fn raised(&self, py: Python<'_>, unreadable: Unreadable) -> PyErr {
        match unreadable {
            Unreadable::Row(reason) => self.error(py, &reason),
            Unreadable::Raised(error) => error,
        }
    }
}

#[pymethods]
impl Collator {
    #[new]
    #[pyo3(signature = (
        folder, *, max_length, drop_long, train_on, selective_loss, selective_loss_keys, min_pixels, max_pixels,
        allow_remote_images, image_roots
    ))]
    #[expect(clippy::too_many_arguments, reason = "named in Python, where people set them")]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        max_length: Option<usize>,
        drop_long: bool,
        train_on: &str,
        selective_loss: &str,
        selective_loss_keys: Option<Vec<String>>,
        min_pixels: Option<u64>,
        max_pixels: Option<u64>,
        allow_remote_images: bool,
        image_roots: Vec<PathBuf>,
    ) -> PyResult<Self> {
        let purpose = Purpose::Learn { train_on: named("train_on", train_on)?, max_tokens: max_length };
        let level: Level = named("selective_loss", selective_loss)?;
        let limits = PixelLimits { min: min_pixels, max: max_pixels };
        let recipe = py
            .detach(|| recipe(&folder, limits, purpose))
            .map_err(|error| Exception::Config.saying(error))?;
        let finder =
            ImageFinder::new(&image_roots, allow_remote_images).map_err(|error| data_error(&error))?;
        let selective = (level != Level::None).then(|| Selective {
            finder: (level == Level::Aggressive && selective_loss_keys.is_none()).then(KeyFinder::default),
            loss: SelectiveLoss::new(
                level,
                selective_loss_keys.unwrap_or_default(),
                TokenBytes::of(&recipe.encoder),
            ),
        });
        Ok(Self {
            pad: recipe.encoder.pad_token().unwrap_or_default(),
            selective: selective.map(Mutex::new),
            workers: OwnWorkers::default(),
            shelf: Mutex::default(),
            recipe,
            finder,
            drop_long,
        })
    }

    /// The arrays of a batch. `threads` is asked once in each process for how many threads there should be.
    fn collate<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        threads: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (names, values) = read_rows(py, rows)?;
        let workers = self.workers.get(|| threads.call0()?.extract::<usize>().map_err(Failed))?;
        let prepared = py.detach(|| workers.map(values, |(number, value)| self.prepare(number, &value)));
        let kept = self.kept(py, &names, prepared)?;
        let mut batch = Batch::of_tokens(kept.iter().map(|row| &row.encoded));
        self.mask(&kept, &mut batch);
        let padded = Padded::of_tokens(&batch, self.pad);
        let values = self.space(py, &kept)?;
        if let Some(values) = &values {
            let mut values = values.try_readwrite()?;
            let space = values.as_slice_mut()?;
            if let Some((number, reason)) = py.detach(|| self.put_pixel_values(&kept, &workers, space)) {
                return Err(names[number].raised(py, reason));
            }
        }
        // Encoded images are freed before anything else is made of the batch.
        drop(kept);
        self.arrays(py, padded, values)
    }

    /// The keys that the aggressive level of selective loss masks by now.
    fn selective_loss_keys(&self) -> Vec<String> {
        let Some(selective) = &self.selective else { return Vec::new() };
        let selective = selective.lock().unwrap_or_else(PoisonError::into_inner);
        selective.finder.as_ref().map(KeyFinder::keys).unwrap_or_default()
    }
}

/// Reads the rows of a batch.
#[expect(clippy::type_complexity, reason = "two lists")]
fn read_rows(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
) -> PyResult<(Vec<RowName>, Vec<(usize, Value<'static>)>)> {
    if !(rows.is_instance_of::<PyList>() || rows.is_instance_of::<PyTuple>()) {
        let found = rows.get_type().name()?;
        return Err(Exception::Row.saying(format!("a batch is a list of rows, not {found}")));
    }
    let plain = py.import("model_garden.images")?.getattr("plain")?;
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for (number, row) in rows.try_iter()?.enumerate() {
        let row = row?;
        let name = RowName::of(&row, number);
        match row::read(&row, &plain) {
            Ok(value) => values.push((number, value)),
            Err(unreadable) => return Err(name.raised(py, unreadable)),
        }
        names.push(name);
    }
    match names.is_empty() {
        true => Err(Exception::Row.saying("the batch has no rows")),
        false => Ok((names, values)),
    }
}

impl Collator {
    fn prepare(&self, number: usize, row: &Value<'_>) -> Result<Prepared, (usize, Unreadable)> {
        let prepared = || {
            let Reading { mut conversation, .. } = read_row(row)?;
            let (mut images, mut headers) = (Vec::new(), Vec::new());
            for (index, source) in conversation.take_images().into_iter().enumerate() {
                let (image, header) = self.find(index, self.finder.find(source)?)?;
                images.push(image);
                headers.push(header);
            }
            let encoded = self.recipe.encode(&conversation, headers)?;
            Ok(Prepared { number, conversation, images, encoded })
        };
        prepared().map_err(|reason| (number, reason))
    }

    /// Reads an image's header. An image that is Pillow's to decode is decoded here.
    fn find(&self, index: usize, image: FoundImage) -> Result<(FoundImage, ImageHeader), Unreadable> {
        let processor = &self.recipe.processor;
        let number = index + 1;
        let bad = |source| BadRow::Image { number, source };
        let image = match (processor.header_of(image.input()), image.said_size()) {
            (Ok(header), Some(then)) if header.size != then => {
                by_pillow(&image)?.ok_or(BadRow::ImageChanged { number, now: header.size, then })?
            }
            (Ok(header), _) => return Ok((image, header)),
            (Err(error), _) if is_pillows(&error, &image) => by_pillow(&image)?.ok_or_else(|| bad(error))?,
            (Err(error), _) => return Err(bad(error).into()),
        };
        let header = processor.header_of(image.input()).map_err(bad)?;
        Ok((image, header))
    }

    /// The rows that are in the batch.
    fn kept(
        &self,
        py: Python<'_>,
        names: &[RowName],
        prepared: Vec<Result<Prepared, (usize, Unreadable)>>,
    ) -> PyResult<Vec<Prepared>> {
        let (mut kept, mut dropped) = (Vec::with_capacity(prepared.len()), None);
        for row in prepared {
            let row = row.map_err(|(number, reason)| names[number].raised(py, reason))?;
            match row.encoded.left_out {
                Some(why @ LeftOut::TooLong { .. }) if self.drop_long => {
                    dropped.get_or_insert((row.number, why));
                }
                Some(why) => return Err(names[row.number].error(py, &why.to_string())),
                None => kept.push(row),
            }
        }
        match dropped.filter(|_| kept.is_empty()) {
            Some((number, why)) => {
                let reason = format!("{why}; every row of the batch is longer than max_length");
                Err(names[number].error(py, &reason))
            }
            None => Ok(kept),
        }
    }

    /// Takes the layout of JSON out of the labels. Held by whoever has the interpreter's lock, and never for long.
    fn mask(&self, rows: &[Prepared], batch: &mut Batch) {
        let Some(selective) = &self.selective else { return };
        let mut selective = selective.lock().unwrap_or_else(PoisonError::into_inner);
        let Selective { loss, finder } = &mut *selective;
        if let Some(finder) = finder.as_mut().filter(|finder| !finder.is_done()) {
            rows.iter().for_each(|row| finder.observe_row(&row.conversation));
            loss.set_keys(finder.keys());
        }
        loss.apply(&batch.ids, &mut batch.labels);
    }

    /// Where the pixel values of a batch go; nothing if it has no images.
    fn space<'py>(&self, py: Python<'py>, rows: &[Prepared]) -> PyResult<Option<Bound<'py, PyArray2<f32>>>> {
        let headers = rows.iter().flat_map(|row| &row.encoded.images);
        let patches = headers.map(|header| header.grid.patches()).sum();
        let wide = self.recipe.processor.config().patch_values();
        // Whoever waited here would hold the interpreter's lock, which the other thread may need to go on.
        let space = |patches| match self.shelf.try_lock() {
            Ok(mut shelf) => shelf.take(py, patches, wide),
            Err(_) => Shelf::default().take(py, patches, wide),
        };
        Some(patches).filter(|&patches| patches > 0).map(space).transpose()
    }

    /// Decodes the images of a batch, and says which row could not be used and why.
    fn put_pixel_values(
        &self,
        rows: &[Prepared],
        workers: &Workers,
        mut rest: &mut [f32],
    ) -> Option<(usize, Unreadable)> {
        let processor = &self.recipe.processor;
        let values_of = |header: &ImageHeader| header.grid.patches() * processor.config().patch_values();
        let mut work = Vec::new();
        for row in rows {
            for (index, (image, header)) in row.images.iter().zip(&row.encoded.images).enumerate() {
                let own = rest.split_off_mut(..values_of(header)).unwrap_or_default();
                work.push((row.number, index, image, header, own));
            }
        }
        let done = workers.map(work, |(number, index, image, header, values)| {
            let decoded = workers.with_space(|space| {
                space.patches.clear();
                let cut = processor.append_patches_of(image.input(), &mut space.work, &mut space.patches);
                let cut = match cut {
                    Err(error) if is_pillows(&error, image) => match by_pillow(image)? {
                        Some(image) => {
                            processor.append_patches_of(image.input(), &mut space.work, &mut space.patches)
                        }
                        None => Err(error),
                    },
                    cut => cut,
                };
                if cut.map_err(|source| BadRow::Image { number: index + 1, source })? != header.grid {
                    return Err(BadRow::ImageHeader { number: index + 1 }.into());
                }
                processor.put_pixel_values(&space.patches, values);
                Ok(())
            });
            decoded.map_err(|reason| (number, reason))
        });
        done.into_iter().find_map(Result::err)
    }

    fn arrays<'py>(
        &self,
        py: Python<'py>,
        padded: Padded,
        values: Option<Bound<'py, PyArray2<f32>>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let Padded { rows, length, .. } = padded;
        let arrays = PyDict::new(py);
        let tokens = [
            ("input_ids", padded.input_ids),
            ("attention_mask", padded.attention_mask),
            ("mm_token_type_ids", padded.mm_token_type_ids),
        ];
        for (name, values) in tokens {
            arrays.set_item(name, array(py, rows, length, values)?)?;
        }
        if let Some(values) = values {
            arrays.set_item("pixel_values", values)?;
            arrays.set_item(
                "image_grid_thw",
                array(py, padded.image_grid_thw.len() / 3, 3, padded.image_grid_thw)?,
            )?;
        }
        arrays.set_item("labels", array(py, rows, length, padded.labels)?)?;
        Ok(arrays)
    }
}

/// An array that takes the values over.
fn array<'py, T: numpy::Element>(
    py: Python<'py>,
    rows: usize,
    columns: usize,
    values: Vec<T>,
) -> PyResult<Bound<'py, PyAny>> {
    let array =
        Array2::from_shape_vec((rows, columns), values).map_err(|error| Exception::Row.saying(error))?;
    Ok(array.into_pyarray(py).into_any())
}

fn recipe(folder: &Path, limits: PixelLimits, purpose: Purpose) -> Result<Recipe, garden_data::RecipeError> {
    let processor = Processor::new(ProcessorConfig::of_any_model(folder, limits)?, Default::default());
    Ok(Recipe { processor, encoder: Arc::new(garden_data::Encoder::from_dir(folder)?), purpose })
}

/// A choice by its name, as in configuration files.
fn named<T: DeserializeOwned>(setting: &str, name: &str) -> PyResult<T> {
    T::deserialize(StrDeserializer::<serde::de::value::Error>::new(name))
        .map_err(|error| Exception::Config.saying(format!("{setting}: {error}")))
}

/// Whether Pillow decides about an image that our decoders refuse: about any of a kind that they do not know, and about
/// a damaged one that Pillow itself has opened, since its user may have allowed damage (`LOAD_TRUNCATED_IMAGES`).
fn is_pillows(error: &ImageError, image: &FoundImage) -> bool {
    match error {
        ImageError::UnknownFormat { .. } | ImageError::Unsupported { .. } => true,
        ImageError::Truncated { .. } | ImageError::Broken { .. } => image.said_size().is_some(),
        _ => false,
    }
}

/// Decodes a private copy of an image by Pillow, if that can.
fn by_pillow(image: &FoundImage) -> Result<Option<FoundImage>, Unreadable> {
    let ImageInput::Encoded(bytes, facing) = image.input() else { return Ok(None) };
    let decoded = Python::attach(|py| {
        let decode = py.import("model_garden.images")?.getattr("decode")?;
        let decoded =
            decode.call1((PyBytes::new(py, bytes), facing == Facing::Upright, image.said_size()))?;
        let (width, height, rgb): (u32, u32, Bound<'_, PyBytes>) = decoded.extract()?;
        row::pixels(width, height, rgb.as_bytes().to_vec())
    });
    match decoded {
        Ok(pixels) => Ok(Some(FoundImage::Held(Arc::new(HeldImage::Pixels(pixels))))),
        Err(error) if Python::attach(|py| row::is_fatal(py, &error)) => Err(Unreadable::Raised(error)),
        Err(_) => Ok(None),
    }
}

/// The snapshot of a model of the hub in this machine's cache.
#[pyfunction]
pub(crate) fn cached_model_folder(name: &str) -> Option<PathBuf> {
    cached_model(name)
}

/// Why there are no threads.
struct Failed(PyErr);

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self(Exception::Config.saying(format!("no threads to decode images: {reason}")))
    }
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<Failed> for PyErr {
    fn from(failed: Failed) -> Self {
        failed.0
    }
}
