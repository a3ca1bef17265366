//! Scripts, styles and templates, which are parts of the program.
//!
//! Takes a path below `/assets` and gives the file with a tag of its content, so that a browser asks again and is
//! told in a few bytes that nothing has changed.

use axum::{
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use rust_embed::{EmbeddedFile, RustEmbed};
use std::fmt::Write;

/// What we wrote.
#[derive(RustEmbed)]
#[folder = "assets"]
struct Own;

/// The charts' library, which the reports embed too.
#[derive(RustEmbed)]
#[folder = "../memory/assets/uplot"]
struct Uplot;

/// The text of a template.
pub(super) fn template(name: &str) -> Option<String> {
    let file = Own::get(&format!("templates/{name}"))?;
    String::from_utf8(file.data.into_owned()).ok()
}

pub(super) async fn asset(Path(path): Path<String>, asked: HeaderMap) -> Response {
    let Some((file, kind)) = find(&path) else { return StatusCode::NOT_FOUND.into_response() };
    let mut tag = String::with_capacity(34);
    for byte in &file.metadata.sha256_hash()[..16] {
        let _ = write!(tag, "{byte:02x}");
    }
    let tag = format!("\"{tag}\"");
    let mut headers = HeaderMap::new();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Ok(value) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, value);
    }
    let known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    if known {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, file.data.into_owned()).into_response()
}

/// A file that a browser may have, and its type.
fn find(path: &str) -> Option<(EmbeddedFile, &'static str)> {
    let kind = match path.rsplit_once('.')?.1 {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        // Templates are no assets.
        _ => return None,
    };
    let file = match path.strip_prefix("uplot/") {
        Some(name) => Uplot::get(name),
        None => Own::get(path),
    };
    Some((file?, kind))
}
