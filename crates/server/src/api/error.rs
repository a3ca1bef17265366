//! Errors as OpenAI's SDK reads them: `{"error": {message, type, param, code}}`.
//!
//! The SDK retries 408, 409, 429 and 5xx, POSTs too, so a request that cannot succeed is a 400 whatever state
//! makes it so.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use std::fmt;

/// The statuses of errors that any route may answer with.
pub(crate) const ERRORS: [u16; 13] = [400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 507];

/// Why a request got no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// Which field of the request is at fault.
    pub param: Option<String>,
    /// What kind of fault, for programs.
    pub code: Option<&'static str>,
    /// Seconds after which it may be tried again.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl fmt::Display) -> Self {
        Self { status, message: message.to_string(), param: None, code: None, retry_after: None }
    }

    /// The request is wrong, or cannot be done in the state that things are in.
    pub(crate) fn bad_request(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// No valid key came with the request.
    pub(crate) fn unauthorized(message: impl fmt::Display) -> Self {
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// The request is not allowed from where it comes.
    pub(crate) fn forbidden(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// There is no such thing.
    pub(crate) fn not_found(what: impl fmt::Display, name: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("no such {what}: {name}")).code("not_found")
    }

    /// The body is larger than is taken.
    pub(crate) fn too_large(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// Everything is busy; try again after so many seconds.
    pub(crate) fn busy(message: impl fmt::Display, seconds: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, message).code("rate_limit_exceeded");
        Self { retry_after: Some(seconds), ..error }
    }

    /// The server's own fault: its disk, its database.
    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// There is no room on the disk.
    pub(crate) fn disk_full(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, message).code("disk_full")
    }

    /// Another request is changing the same thing now; it may be tried again at once.
    pub(crate) fn conflict(message: impl fmt::Display) -> Self {
        Self { retry_after: Some(1), ..Self::new(StatusCode::CONFLICT, message) }
    }

    /// An error of this status.
    pub(crate) fn with_status(status: StatusCode, message: impl fmt::Display) -> Self {
        Self::new(status, message)
    }

    /// What the file system refused. The client is not told where: paths are the server's own affair.
    pub(crate) fn disk(error: &std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => {
                Self::disk_full("the disk is full: nothing was kept; free some space and try again")
            }
            kind => Self::internal(format!("the disk refused: {kind}")),
        }
    }

    /// A wrong value, in serde's words: `limit: invalid digit`, ``missing field `name` ``. The field in them
    /// is named.
    pub(crate) fn of_field(words: &str) -> Self {
        let is_field = |text: &&str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.[]".contains(c))
        };
        let quoted = ["missing field `", "unknown field `", "duplicate field `"];
        let quoted = quoted.iter().find_map(|start| words.split_once(start)?.1.split_once('`'));
        let before = words.split_once(": ").map(|(field, _)| field);
        let field = quoted.map(|(field, _)| field).or(before).filter(is_field);
        Self { param: field.map(str::to_owned), ..Self::bad_request(words) }
    }

    /// Names the field of the request that is at fault.
    pub(crate) fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Names the kind of fault.
    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({
            "error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}
        });
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::INSUFFICIENT_STORAGE {
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The body of every answer that is an error, for the OpenAPI document.
#[derive(Debug, utoipa::ToSchema)]
#[allow(dead_code, reason = "it only describes what `ApiError` writes")]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

/// What is wrong.
#[derive(Debug, utoipa::ToSchema)]
#[allow(dead_code, reason = "it only describes what `ApiError` writes")]
pub(crate) struct ErrorObject {
    message: String,
    r#type: String,
    #[schema(required)]
    param: Option<String>,
    #[schema(required)]
    code: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_in_serdes_words_is_named() {
        for (words, param) in [
            ("limit: invalid digit found in string", Some("limit")),
            ("a[0].b: invalid type: string", Some("a[0].b")),
            ("missing field `name` at line 1 column 2", Some("name")),
            ("unknown field `x`, expected one of `y`", Some("x")),
            ("invalid type: sequence, expected a map", None),
            (".: something", None),
        ] {
            assert_eq!(ApiError::of_field(words).param.as_deref(), param, "{words}");
        }
    }
}
