//! axum's extractors, with refusals in OpenAI's form.
//!
//! Handlers take [`Json`], [`Query`], [`Path`] and [`Multipart`] from here, never axum's own.

use super::error::ApiError;
use axum::{
    extract::{
        self, FromRequest, FromRequestParts, Request,
        rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection},
    },
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use std::error::Error;

/// A JSON body, of a request or a response.
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
        match extract::Json::from_request(request, state).await {
            Ok(extract::Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(match rejection {
                // What is not as it should be is the client's to mend, whichever way it is wrong.
                JsonRejection::JsonDataError(error) => ApiError::bad_request(words(&error.body_text())),
                JsonRejection::JsonSyntaxError(error) => ApiError::bad_request(words(&error.body_text())),
                JsonRejection::MissingJsonContentType(_) => unsupported("the body must be application/json"),
                JsonRejection::BytesRejection(error) => body(&error),
                other => ApiError::with_status(other.status(), other.body_text()),
            }),
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
    if causes.any(|cause| cause.is::<tower_http::timeout::TimeoutError>()) {
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
