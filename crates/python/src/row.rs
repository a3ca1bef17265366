//! Python's rows as garden-data reads them.
//!
//! Takes dictionaries, lists, texts, bytes and images as a dataset gives them, and gives a [`Value`] that owns all it
//! says, so that threads can work on it without the interpreter's lock. The size and the depth of a row are bounded.
//! Nothing that the dataset owns is changed: no image is decoded in place, and no text gets a second encoding.

use garden_data::{
    BadRow, HeldImage, Pixels,
    parsers::{Value, is_known_field},
};
use pyo3::{
    exceptions::{PyException, PyMemoryError},
    prelude::*,
    types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};
use std::{borrow::Cow, sync::Arc};

/// Values in one row, beyond which it is refused. Bytes and lists of small numbers count once.
const MAX_VALUES: usize = 1 << 18;
/// Levels of lists and dictionaries, beyond which a row is refused: one that holds itself has no end.
const MAX_DEPTH: usize = 64;
/// Of a field that no shape reads, only so much is looked at: enough to see that it holds an image.
const GLANCE: usize = 4096;

/// Why a row cannot be read.
pub(crate) enum Unreadable {
    /// The row is wrong, for this reason.
    Row(String),
    /// Something else ended it, such as Ctrl-C.
    Raised(PyErr),
}

impl From<String> for Unreadable {
    fn from(reason: String) -> Self {
        Self::Row(reason)
    }
}

impl From<&str> for Unreadable {
    fn from(reason: &str) -> Self {
        Self::Row(reason.to_owned())
    }
}

impl From<BadRow> for Unreadable {
    fn from(reason: BadRow) -> Self {
        Self::Row(reason.to_string())
    }
}

/// Whether what Python code raised is about more than the row it was working on.
pub(crate) fn is_fatal(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyMemoryError>(py) || !error.is_instance_of::<PyException>(py)
}

/// Reads one row. `plain` is `model_garden.images.plain`, which makes plain values of other objects.
pub(crate) fn read(row: &Bound<'_, PyAny>, plain: &Bound<'_, PyAny>) -> Result<Value<'static>, Unreadable> {
    let mut walker = Walker { plain, left: MAX_VALUES };
    if let Ok(list) = row.cast::<PyList>() {
        return Ok(Value::Map(vec![("messages".into(), walker.list(list.as_any(), 0)?)]));
    }
    let fields = match row.cast::<PyDict>() {
        Ok(fields) => fields.clone(),
        Err(_) => match walker.plain(row).map(Bound::cast_into::<PyDict>) {
            Ok(Ok(fields)) => fields,
            Err(raised @ Unreadable::Raised(_)) => return Err(raised),
            _ => {
                return Err(format!("a row is a dictionary or a list of messages, not {}", kind(row)).into());
            }
        },
    };
    walker.fields(&fields, 0, |walker, name, value| {
        if is_known_field(name) { walker.value(value, 1) } else { walker.glance(value) }
    })
}

/// The name of a value's type, for messages.
fn kind(value: &Bound<'_, PyAny>) -> String {
    let name = value.get_type().name();
    name.map_or_else(|_| "an object".into(), |name| name.to_string())
}

struct Walker<'a, 'py> {
    plain: &'a Bound<'py, PyAny>,
    /// Values that the row may still have.
    left: usize,
}

impl<'py> Walker<'_, 'py> {
    fn value(&mut self, value: &Bound<'py, PyAny>, depth: usize) -> Result<Value<'static>, Unreadable> {
        if depth > MAX_DEPTH {
            return Err(format!("lists and dictionaries in it are more than {MAX_DEPTH} levels deep").into());
        }
        self.left = self.left.checked_sub(1).ok_or(format!("it has more than {MAX_VALUES} values"))?;
        if let Some(value) = scalar(value)? {
            return Ok(value);
        }
        if let Ok(fields) = value.cast::<PyDict>() {
            return self.fields(fields, depth, |walker, _, value| walker.value(value, depth + 1));
        }
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            return self.list(value, depth);
        }
        let plain = self.plain(value)?;
        match plain.cast::<PyTuple>() {
            Ok(image) => held(image).map_err(Unreadable::Raised),
            Err(_) => self.value(&plain, depth + 1),
        }
    }

    fn fields(
        &mut self,
        fields: &Bound<'py, PyDict>,
        depth: usize,
        mut read: impl FnMut(&mut Self, &str, &Bound<'py, PyAny>) -> Result<Value<'static>, Unreadable>,
    ) -> Result<Value<'static>, Unreadable> {
        let mut read_fields = Vec::with_capacity(fields.len());
        // Reading a value may run Python, which may change the dictionary; a copy of it stays as it is.
        for (name, value) in fields.copy().map_err(Unreadable::Raised)? {
            let Ok(name) = name.cast::<PyString>() else {
                return Err(format!("a field is named by {}, not by text", kind(&name)).into());
            };
            let name = text(name)?;
            let value = read(self, &name, &value).map_err(|error| match error {
                Unreadable::Row(reason) if depth == 0 => {
                    Unreadable::Row(format!("'{}': {reason}", shorten(&name)))
                }
                other => other,
            })?;
            read_fields.push((Cow::Owned(name), value));
        }
        Ok(Value::Map(read_fields))
    }

    /// A list. One of numbers from 0 to 255 alone is bytes, as it is in JSON.
    fn list(&mut self, list: &Bound<'py, PyAny>, depth: usize) -> Result<Value<'static>, Unreadable> {
        let mut values = Vec::new();
        let mut bytes = Vec::new();
        for item in list.try_iter().map_err(Unreadable::Raised)? {
            let item = item.map_err(Unreadable::Raised)?;
            let value = self.value(&item, depth + 1)?;
            match value {
                Value::Integer(number @ 0..=255) if values.is_empty() => {
                    self.left += 1;
                    bytes.push(number as u8);
                }
                other => {
                    self.left = self.left.checked_sub(bytes.len()).ok_or("it has too many values")?;
                    values.extend(bytes.drain(..).map(|byte| Value::Integer(i64::from(byte))));
                    values.push(other);
                }
            }
        }
        Ok(if bytes.is_empty() { Value::List(values) } else { Value::Bytes(bytes.into()) })
    }

    /// What a field that no shape reads holds, as far as it could be an image.
    fn glance(&mut self, value: &Bound<'py, PyAny>) -> Result<Value<'static>, Unreadable> {
        let unread = |image| Ok(Value::Unread { image });
        if let Ok(text) = value.cast::<PyString>() {
            return if text.len().unwrap_or(usize::MAX) > GLANCE {
                unread(false)
            } else {
                self.value(value, 1)
            };
        }
        if let Ok(bytes) = value.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return Ok(Value::Bytes(bytes[..bytes.len().min(GLANCE)].to_vec().into()));
        }
        if let Ok(fields) = value.cast::<PyDict>() {
            let mut seen = Vec::new();
            for name in ["bytes", "path"] {
                if let Some(value) = fields.get_item(name).map_err(Unreadable::Raised)? {
                    seen.push((name.into(), self.glance(&value)?));
                }
            }
            return if seen.is_empty() { unread(false) } else { Ok(Value::Map(seen)) };
        }
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            let first = value.get_item(0).ok().map(|first| match first.is_instance_of::<PyList>() {
                true => unread(false),
                false => self.glance(&first),
            });
            return Ok(Value::List(first.transpose()?.into_iter().collect()));
        }
        if value.is_none() {
            return Ok(Value::Null);
        }
        let is_image = value
            .py()
            .import("model_garden.images")
            .and_then(|images| images.getattr("is_image")?.call1((value,))?.extract::<bool>());
        unread(is_image.map_err(Unreadable::Raised)?)
    }

    fn plain(&self, value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, Unreadable> {
        self.plain.call1((value,)).map_err(|error| {
            let py = value.py();
            if is_fatal(py, &error) {
                return Unreadable::Raised(error);
            }
            Unreadable::Row(error.value(py).to_string())
        })
    }
}

/// Values without parts.
fn scalar(value: &Bound<'_, PyAny>) -> Result<Option<Value<'static>>, Unreadable> {
    Ok(Some(if value.is_none() {
        Value::Null
    } else if let Ok(words) = value.cast::<PyString>() {
        Value::Text(text(words)?.into())
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        Value::Bytes(bytes.as_bytes().to_vec().into())
    } else if let Ok(bytes) = value.cast::<PyByteArray>() {
        Value::Bytes(bytes.to_vec().into())
    } else if let Ok(truth) = value.cast::<PyBool>() {
        Value::Bool(truth.is_true())
    } else if value.is_instance_of::<PyInt>() {
        match (value.extract::<i64>(), value.extract::<f64>()) {
            (Ok(number), _) => Value::Integer(number),
            (_, Ok(number)) => Value::Number(number),
            _ => return Err("a number in it is too large".into()),
        }
    } else if let Ok(number) = value.cast::<PyFloat>() {
        Value::Number(number.value())
    } else {
        return Ok(None);
    }))
}

/// A copy of a text. The interpreter keeps the UTF-8 form of a text that is not ASCII with the text once it is asked for
/// it: a dataset would grow by what is read of it. So the text is encoded aside.
fn text(text: &Bound<'_, PyString>) -> Result<String, Unreadable> {
    let encoded = text.encode_utf8().map_err(|_| "a text in it has half a character (a lone surrogate)")?;
    String::from_utf8(encoded.as_bytes().to_vec()).map_err(|_| "a text in it is not UTF-8".into())
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// An image as `model_garden.images` describes it: width, height, bytes, and whether these are encoded.
fn held(image: &Bound<'_, PyTuple>) -> PyResult<Value<'static>> {
    let (width, height, bytes, encoded): (u32, u32, Bound<'_, PyBytes>, bool) = image.extract()?;
    let bytes = bytes.as_bytes().to_vec();
    let image = if encoded {
        HeldImage::Encoded { bytes, size: (width, height) }
    } else {
        HeldImage::Pixels(pixels(width, height, bytes)?)
    };
    Ok(Value::Held(Arc::new(image)))
}

/// Pixels that Python decoded.
pub(crate) fn pixels(width: u32, height: u32, rgb: Vec<u8>) -> PyResult<Pixels> {
    Pixels::new(width, height, rgb)
        .ok_or_else(|| PyException::new_err("an image has another number of pixels than its size says"))
}
