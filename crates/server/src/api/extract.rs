//! axum's extractors, with refusals in OpenAI's form.
//!
//! Handlers take [`Json`], [`Query`], [`Path`] and [`Multipart`] from here, never axum's own.

use super::error::ApiError;
use crate::guard::TooSlow;
use axum::{
    body::Bytes,
    extract::{
        self, FromRequest, FromRequestParts, Request,
        rejection::{BytesRejection, PathRejection, QueryRejection},
    },
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use std::error::Error;

/// Values of a request's body: objects, lists, and what is in them. The largest bodies name thousands of
/// checkpoints.
const VALUES: usize = 10_000;

/// A JSON body, of a request or a response. A request's has at most [`VALUES`] values.
#[derive(Debug, Clone)]
pub(crate) struct Json<T>(pub T);

/// The query of a request's address.
#[derive(Debug, Clone)]
pub(crate) struct Query<T>(pub T);

/// The variable segments of a request's path.
#[derive(Debug, Clone)]
pub(crate) struct Path<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        check_json(request.headers())?;
        let bytes = Bytes::from_request(request, state).await.map_err(|error| body(&error))?;
        check_values(&bytes, VALUES)?;
        match extract::Json::from_bytes(&bytes) {
            Ok(extract::Json(body)) => Ok(Self(body)),
            // What is not as it should be is the client's to mend, whichever way it is wrong.
            Err(rejection) => Err(ApiError::bad_request(words(&rejection.body_text()))),
        }
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        extract::Json(self.0).into_response()
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let refused = |error: QueryRejection| ApiError::bad_request(words(&error.body_text()));
        let extract::Query(query) =
            extract::Query::from_request_parts(parts, state).await.map_err(refused)?;
        Ok(Self(query))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let refused = |error: PathRejection| ApiError::bad_request(words(&error.body_text()));
        let extract::Path(path) = extract::Path::from_request_parts(parts, state).await.map_err(refused)?;
        Ok(Self(path))
    }
}

/// Refuses a body that is not said to be JSON.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase();
    match kind.strip_prefix("application/") {
        Some(kind) if kind == "json" || kind.ends_with("+json") => Ok(()),
        _ => Err(unsupported("the body must be application/json")),
    }
}

/// Refuses a body of too many values before they are made: each takes many times its text, and an allocator
/// that had to give so much keeps it.
pub(crate) fn check_values(text: &[u8], most: usize) -> Result<(), ApiError> {
    match values(text) <= most {
        true => Ok(()),
        false => Err(ApiError::bad_request(format!("the body has more than {most} values"))),
    }
}

/// How many values a JSON text has, about, and never fewer than half of them.
fn values(text: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// A body that could not be read.
pub(crate) fn body(error: &BytesRejection) -> ApiError {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large("the body is larger than this route takes"),
        _ => unreadable(error),
    }
}

/// A body that broke off or came too slowly.
pub(crate) fn unreadable(error: &(dyn Error + 'static)) -> ApiError {
    let mut causes = std::iter::successors(Some(error), |error| {
        let error: &(dyn Error + 'static) = *error;
        error.source()
    });
    if causes.any(|cause| cause.is::<tower_http::timeout::TimeoutError>() || cause.is::<TooSlow>()) {
        return ApiError::with_status(StatusCode::REQUEST_TIMEOUT, "the body came too slowly");
    }
    ApiError::bad_request(format!("the body could not be read: {error}"))
}

/// A body of the wrong kind.
pub(crate) fn unsupported(words: &str) -> ApiError {
    ApiError::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, words)
}

/// serde's words without axum's preface.
fn words(text: &str) -> String {
    let prefaces = [
        "Failed to deserialize the JSON body into the target type: ",
        "Failed to parse the request body as JSON: ",
        "Failed to deserialize query string: ",
    ];
    prefaces.iter().find_map(|preface| text.strip_prefix(preface)).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        let many = format!("{{\"a\": [{}0]}}", "0,".repeat(100));
        assert!(check_values(many.as_bytes(), 100).is_err() && check_values(many.as_bytes(), 102).is_ok());
        let text = format!("{{\"a\": \"{}\"}}", "[,\\\"{".repeat(100));
        assert!(check_values(text.as_bytes(), 1).is_ok());
    }
}
