//! Rows of files for PyTorch's DataLoader.
//!
//! Takes a name as the trainer takes it (a file, a folder, a hub id) and gives any row by its number, as dictionaries and
//! lists whose images are bytes. Memory does not grow with the number of rows. A process that was forked opens its files
//! again.

use crate::errors::{Exception, data_error};
use garden_data::{Columns, Conversation, Dataset, DatasetOptions, Json, Part, RowReader, SplitChoice, Turn};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString},
};
use std::{
    borrow::Cow,
    path::PathBuf,
    process,
    sync::{Arc, Mutex, PoisonError},
};

/// The rows of a dataset; `model_garden.VisionDataset` is what people use.
#[pyclass(module = "model_garden._native", frozen)]
pub(crate) struct Rows {
    dataset: Arc<Dataset>,
    readers: Mutex<Readers>,
}

/// Readers that nobody uses just now, and the process that opened their files. Locked only with the interpreter's lock
/// held, as `workers.rs` explains.
#[derive(Default)]
struct Readers {
    pid: u32,
    idle: Vec<RowReader>,
}

#[pymethods]
impl Rows {
    #[new]
    #[pyo3(signature = (name, *, split, image_roots, allow_remote_images, columns))]
    fn new(
        py: Python<'_>,
        name: &str,
        split: Option<String>,
        image_roots: Vec<PathBuf>,
        allow_remote_images: bool,
        columns: Option<&str>,
    ) -> PyResult<Self> {
        let columns: Option<Columns> = columns
            .map(str::parse)
            .transpose()
            .map_err(|error| Exception::Config.saying(format!("columns: {error}")))?;
        let options = DatasetOptions {
            image_roots,
            allow_remote_images,
            images_inside: false,
            columns: columns.unwrap_or_default(),
            split: split.map(SplitChoice::Named).unwrap_or_default(),
        };
        let dataset = py.detach(|| Dataset::open(name, &options, &())).map_err(|error| data_error(&error))?;
        Ok(Self { dataset: Arc::new(dataset), readers: Mutex::default() })
    }

    fn __len__(&self) -> usize {
        self.dataset.rows() as usize
    }

    /// A row and its name in messages.
    fn row<'py>(&self, py: Python<'py>, number: u64) -> PyResult<(Bound<'py, PyDict>, String)> {
        let mut reader = self.reader();
        let (reader, read) = py.detach(|| {
            let read = read(&mut reader, number);
            (reader, read)
        });
        self.readers().idle.push(reader);
        let (conversation, name) = read.map_err(|error| data_error(&error))?;
        Ok((row(py, conversation)?, name))
    }
}

/// A row with the bytes of its images, in their order.
type WithImages = (Conversation, Vec<Vec<u8>>);

fn read(reader: &mut RowReader, number: u64) -> Result<(WithImages, String), garden_data::DataError> {
    let row = reader.read(number)?;
    let images =
        row.conversation.images().map(|image| reader.image_bytes(number, image).map(Cow::into_owned));
    let images = images.collect::<Result<_, _>>()?;
    Ok(((row.conversation, images), row.id.to_string()))
}

impl Rows {
    fn readers(&self) -> std::sync::MutexGuard<'_, Readers> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.pid != process::id() {
            *readers = Readers { pid: process::id(), idle: Vec::new() };
        }
        readers
    }

    fn reader(&self) -> RowReader {
        let idle = self.readers().idle.pop();
        idle.unwrap_or_else(|| RowReader::new(self.dataset.clone()))
    }
}

/// The row as `VisionCollator` takes it: messages with parts, and images as bytes.
fn row<'py>(py: Python<'py>, (conversation, images): WithImages) -> PyResult<Bound<'py, PyDict>> {
    let mut images = images.into_iter();
    let messages = conversation.turns.iter().map(|turn| message(py, turn, &mut images));
    let row = PyDict::new(py);
    row.set_item("messages", PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)?)?;
    if !conversation.tools.is_empty() {
        row.set_item("tools", list(py, &conversation.tools)?)?;
    }
    Ok(row)
}

fn message<'py>(
    py: Python<'py>,
    turn: &Turn,
    images: &mut impl Iterator<Item = Vec<u8>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut parts = Vec::with_capacity(turn.parts.len());
    for part in &turn.parts {
        let dictionary = PyDict::new(py);
        match part {
            Part::Text(text) => {
                dictionary.set_item("type", "text")?;
                dictionary.set_item("text", text)?;
            }
            Part::Image(_) => {
                dictionary.set_item("type", "image")?;
                dictionary.set_item("image", PyBytes::new(py, &images.next().unwrap_or_default()))?;
            }
        }
        parts.push(dictionary);
    }
    let message = PyDict::new(py);
    message.set_item("role", turn.role.name())?;
    message.set_item("content", PyList::new(py, parts)?)?;
    if !turn.learned {
        message.set_item("weight", 0)?;
    }
    if !turn.tool_calls.is_empty() {
        message.set_item("tool_calls", list(py, &turn.tool_calls)?)?;
    }
    for (name, value) in [("name", &turn.name), ("tool_call_id", &turn.tool_call_id)] {
        if let Some(value) = value {
            message.set_item(name, value)?;
        }
    }
    Ok(message)
}

fn list<'py>(py: Python<'py>, values: &[Json]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, values.iter().map(|value| object(py, value)).collect::<PyResult<Vec<_>>>()?)
}

fn object<'py>(py: Python<'py>, value: &Json) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Json::Null => py.None().into_bound(py),
        Json::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
        Json::Integer(number) => number.into_pyobject(py)?.into_any(),
        Json::Number(number) => number.into_pyobject(py)?.into_any(),
        Json::Text(text) => PyString::new(py, text).into_any(),
        Json::List(values) => list(py, values)?.into_any(),
        Json::Map(fields) => {
            let dictionary = PyDict::new(py);
            for (name, value) in fields {
                dictionary.set_item(name, object(py, value)?)?;
            }
            dictionary.into_any()
        }
    })
}
