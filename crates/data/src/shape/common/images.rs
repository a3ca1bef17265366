//! Reads images in any of their spellings: text, bytes, or an object with one of them.

use super::fields::Fields;
use crate::{embedded, error::BadRow, row::ImageSource, value::Value};

/// The longest path that systems open; longer text is not a path.
const LONGEST_PATH: usize = 4096;
/// What file names of images end in. Other names in `file_name` are documents that a row only mentions.
const IMAGE_ENDINGS: [&str; 8] = [".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"];
/// Words in the names of fields that hold images.
const NAMES: [&str; 6] = ["image", "img", "photo", "picture", "jpg", "png"];

/// The images beside the turns: `image` or `images`, one or a list, or the `file_name` of an image folder's
/// metadata.
pub(in crate::shape) fn beside(row: &Fields<'_, '_>) -> Result<Vec<ImageSource>, BadRow> {
    if row.peek("image").or(row.peek("images")).is_none() {
        return file_name(row).map_or_else(|| Ok(Vec::new()), |name| row.images_of(name));
    }
    let (one, many) = (row.images_of("image")?, row.images_of("images")?);
    match (one.is_empty(), many.is_empty()) {
        (true, _) => Ok(many),
        (_, true) => Ok(one),
        _ if one == many => Ok(many),
        _ => Err(BadRow::Twice { first: "image", second: "images" }),
    }
}

fn is_file_name(value: &Value<'_>) -> bool {
    let Value::Text(text) = value else { return false };
    text.len() <= LONGEST_PATH
        && IMAGE_ENDINGS.iter().any(|ending| text.to_ascii_lowercase().ends_with(ending))
}

/// The column by which an image folder's metadata names images.
fn file_name(row: &Fields<'_, '_>) -> Option<&'static str> {
    ["file_name", "file_names"].into_iter().find(|name| match row.peek(name) {
        Some(Value::List(names)) => !names.is_empty() && names.iter().all(is_file_name),
        Some(name) => is_file_name(name),
        None => false,
    })
}

/// Whether a field that no shape reads holds an image: bytes, as `datasets` writes them, or the name of an
/// image file in a field of such a name. Other fields may name files only to say where a row comes from.
pub(in crate::shape) fn is_meant(name: &str, value: &Value<'_>) -> bool {
    let name = name.to_ascii_lowercase();
    let named = NAMES.iter().any(|part| name.contains(part));
    match value {
        Value::Unread { image } => *image,
        Value::Held(_) => true,
        // A short list of numbers is bytes, too.
        Value::Bytes(bytes) => ::image::guess_format(bytes).is_ok(),
        Value::Text(_) => named && is_file_name(value),
        Value::Map(_) => {
            let bytes = matches!(value.get("bytes"), Some(Value::Bytes(_)));
            bytes || value.get("path").is_some_and(is_file_name)
        }
        Value::List(list) => list.first().is_some_and(|first| is_meant(&name, first)),
        _ => false,
    }
}

/// Reads one image, or a list of them.
pub(in crate::shape) fn list(value: &Value<'_>) -> Result<Vec<ImageSource>, BadRow> {
    match value {
        Value::List(list) => list.iter().map(image).collect(),
        one => Ok(vec![image(one)?]),
    }
}

/// Reads an image by any of its spellings: text, bytes, or an object with `bytes`, `base64`, `url` or `path`.
pub(in crate::shape) fn image(value: &Value<'_>) -> Result<ImageSource, BadRow> {
    match value {
        Value::Bytes(bytes) if bytes.is_empty() => Err(BadRow::NoImage("bytes that are empty")),
        Value::Bytes(bytes) => Ok(ImageSource::Bytes(bytes.to_vec())),
        Value::Held(image) => Ok(ImageSource::Held(image.clone())),
        Value::Text(text) => image_text(text),
        Value::Map(_) => match ["bytes", "base64", "url", "path"].map(|field| value.get(field)) {
            [Some(Value::Text(text)), ..] | [_, Some(Value::Text(text)), ..] => {
                let text = text.trim();
                let decode = if embedded::is_data_uri(text) {
                    embedded::decode_data_uri
                } else {
                    embedded::decode_base64
                };
                Ok(ImageSource::Bytes(decode(text)?))
            }
            [Some(bytes @ (Value::Bytes(_) | Value::Held(_))), ..]
            | [_, _, Some(bytes @ Value::Held(_)), _] => image(bytes),
            [None, None, Some(Value::Text(text)), _] | [None, None, None, Some(Value::Text(text))] => {
                image_text(text)
            }
            _ => Err(BadRow::NoImage("an object without bytes, base64, url or path")),
        },
        other => Err(BadRow::NoImage(other.kind())),
    }
}

fn image_text(text: &str) -> Result<ImageSource, BadRow> {
    // No image begins or ends with white space, but a path may.
    let encoded = text.trim();
    let scheme = |name: &str| text.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
    if text.is_empty() {
        Err(BadRow::NoImage("an empty text"))
    } else if embedded::is_data_uri(encoded) {
        Ok(ImageSource::Bytes(embedded::decode_data_uri(encoded)?))
    } else if scheme("http://") || scheme("https://") {
        Ok(ImageSource::Url(text.to_owned()))
    } else if embedded::looks_like_base64(encoded) {
        Ok(ImageSource::Bytes(embedded::decode_base64(encoded)?))
    } else if text.len() > LONGEST_PATH {
        Err(BadRow::NoImage("a text too long for a path, and not base64 of a JPEG, PNG, GIF, WebP or TIFF"))
    } else if scheme("file://") {
        Ok(ImageSource::Path(text[7..].into()))
    } else {
        Ok(ImageSource::Path(text.into()))
    }
}
