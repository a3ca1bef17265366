//! Images written inside a row: data URIs and base64.
//!
//! Takes text and gives the encoded bytes of an image. Nothing is guessed: text that does not decode to its
//! last character is an error. The media type is not believed; the image decoder alone judges the bytes.

use crate::error::BadRow;
use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use std::borrow::Cow;

/// Some writers omit the padding; nothing is lost without it.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD_BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const URL_SAFE_BASE64: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// How base64 of a JPEG (by either alphabet), PNG, GIF, WebP or TIFF begins.
const IMAGE_BEGINNINGS: [&str; 7] = ["/9j/", "_9j_", "iVBORw0KGgo", "R0lGOD", "UklGR", "SUkqA", "TU0AK"];

/// No file name in a dataset is this long, and no image in base64 is shorter.
const SHORTEST_IMAGE: usize = 64;

/// Whether text is a data URI.
pub(crate) fn is_data_uri(text: &str) -> bool {
    text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

/// Whether text in the place of a path is an image in bare base64.
pub(crate) fn looks_like_base64(text: &str) -> bool {
    text.len() >= SHORTEST_IMAGE
        && IMAGE_BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/-_=\r\n".contains(&byte))
}

/// The bytes of a `data:...;base64,...` URI.
pub fn decode_data_uri(uri: &str) -> Result<Vec<u8>, BadRow> {
    let body =
        uri.get(5..).filter(|_| is_data_uri(uri)).ok_or(BadRow::DataUri("it does not begin with data:"))?;
    let (head, data) = body.split_once(',').ok_or(BadRow::DataUri("it has no comma before its data"))?;
    let encoded = head.rsplit(';').next().is_some_and(|word| word.eq_ignore_ascii_case("base64"));
    if !encoded {
        return Err(BadRow::DataUri("its data is not marked as base64"));
    }
    decode_base64(data)
}

/// The bytes of base64 text: standard or URL-safe, padded or not, in one line or many.
pub(crate) fn decode_base64(text: &str) -> Result<Vec<u8>, BadRow> {
    let text = text.trim();
    let text = if memchr::memchr2(b'\n', b'\r', text.as_bytes()).is_some() {
        Cow::Owned(text.replace(['\n', '\r'], ""))
    } else {
        Cow::Borrowed(text)
    };
    let engine = if memchr::memchr2(b'-', b'_', text.as_bytes()).is_some() {
        URL_SAFE_BASE64
    } else {
        STANDARD_BASE64
    };
    let bytes = engine.decode(text.as_bytes()).map_err(|error| BadRow::Base64(error.to_string()))?;
    if bytes.is_empty() { Err(BadRow::Base64("it is empty".into())) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_spelling_of_base64() {
        for text in ["aGk/Pz4+", "aGk_Pz4-", " aGk/\nPz4+\r\n"] {
            assert_eq!(decode_base64(text).unwrap(), b"hi??>>", "{text}");
        }
        assert_eq!(decode_base64("aGk=").unwrap(), b"hi");
        assert_eq!(decode_base64("aGk").unwrap(), b"hi");
    }

    #[test]
    fn refuses_broken_base64() {
        for text in ["", "a", "aGk*", "aG=k", "aGk/Pz4-", "aGk=x"] {
            assert!(matches!(decode_base64(text), Err(BadRow::Base64(_))), "{text}");
        }
    }

    #[test]
    fn reads_data_uris_and_says_what_is_wrong_with_others() {
        assert_eq!(decode_data_uri("data:image/png;base64,aGk=").unwrap(), b"hi");
        assert_eq!(decode_data_uri("DATA:;charset=x;BASE64,aGk=").unwrap(), b"hi");
        for uri in ["image/png;base64,aGk=", "data:image/png;base64", "data:text/plain,hi", "data"] {
            assert!(matches!(decode_data_uri(uri), Err(BadRow::DataUri(_))), "{uri}");
        }
    }

    #[test]
    fn a_path_is_not_taken_for_base64() {
        assert!(!looks_like_base64("/9j/photos/one.jpg"));
        assert!(!looks_like_base64(&format!("/9j/{}/one.jpg", "folder".repeat(20))));
        for jpeg in ["/9j/", "_9j_", "/9j/+/", "_9j_-_"] {
            assert!(looks_like_base64(&format!("{jpeg}{}", "4AAQSkZJRg".repeat(10))), "{jpeg}");
        }
    }
}
