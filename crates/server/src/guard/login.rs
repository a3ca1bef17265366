//! `POST /login` and `POST /logout`: a cookie for the pages, from a key.
//!
//! The cookie is HttpOnly and SameSite=Strict. It is not Secure, because a server on plain HTTP cannot know whether a
//! proxy before it speaks HTTPS, and over plain HTTP a Secure cookie would never come back.

use crate::{api::error::ApiError, app::App};
use axum::{
    Form, Router,
    extract::{State, rejection::FormRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;

const COOKIE: &str = "model_garden_session";
const SECONDS: u32 = 7 * 24 * 60 * 60;

/// The routes of people, beside the API's.
pub(crate) fn routes() -> Router<App> {
    Router::new().route("/login", post(login)).route("/logout", post(logout))
}

#[derive(Deserialize)]
struct Login {
    /// The key, as it was shown when it was added.
    key: String,
    /// Where to go then.
    #[serde(default)]
    next: String,
}

async fn login(
    State(app): State<App>,
    form: Result<Form<Login>, FormRejection>,
) -> Result<Response, ApiError> {
    let Form(login) = form
        .map_err(|error| ApiError::with_status(error.status(), format!("send a form with 'key': {error}")))?;
    let next = if is_own_path(&login.next) { &login.next } else { "/" };
    if !app.guard.keys.are_needed() {
        return Ok(see_other(next, None));
    }
    Ok(match app.guard.keys.find(login.key.trim()) {
        Some(key) => see_other(next, Some(set(&app.guard.sessions.begin(key), SECONDS))),
        None => see_other(&format!("/login?wrong=1&next={}", encode(next)), None),
    })
}

async fn logout(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Some(secret) = cookie(&headers) {
        app.guard.sessions.end(secret);
    }
    see_other("/login", Some(set("", 0)))
}

/// The session that a request names.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(name, _)| *name == COOKIE).map(|(_, secret)| secret)
}

fn set(secret: &str, seconds: u32) -> String {
    format!("{COOKIE}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict")
}

fn see_other(path: &str, cookie: Option<String>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let location = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(header::LOCATION, location);
    let cookie = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok());
    response.headers_mut().extend(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    response
}

/// Whether a path stays on this server: `//evil.example` and `/\evil.example` do not.
fn is_own_path(path: &str) -> bool {
    let mut bytes = path.bytes();
    bytes.next() == Some(b'/')
        && !matches!(bytes.next(), Some(b'/' | b'\\'))
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

/// A value of a query.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(byte.into());
            }
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_sent_on_only_within_the_server() {
        assert!(is_own_path("/") && is_own_path("/jobs/ftjob-a?x=%2F"));
        for path in
            ["", "//evil.example", "/\\evil.example", "https://evil.example", "/a\\b", "/a\r\nx", "jobs"]
        {
            assert!(!is_own_path(path), "{path:?}");
        }
        assert_eq!(encode("/a?b=ä&c"), "/a%3Fb%3D%C3%A4%26c");
    }
}
