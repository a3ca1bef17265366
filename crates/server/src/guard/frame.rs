//! What every answer has: an id, its time, security headers.

use super::counters::Route;
use crate::{api::error::ApiError, app::App, id::Kind};
use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{any::Any, time::Instant};

/// Pages take everything from this server and nothing from elsewhere.
const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
     font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// What is no page is never run as one.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

pub(super) async fn frame(State(app): State<App>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let under_way = app.counters.begin();
    let id = Kind::Request.fresh();
    let method = known(request.method());
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let mut response = next.run(request).await;
    drop(under_way);
    let time = start.elapsed();
    app.counters.count(Route { method, path, status: response.status().as_u16() }, time);
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    headers.insert("openai-processing-ms", HeaderValue::from(time.as_millis() as u64));
    secure(headers);
    response
}

fn secure(headers: &mut HeaderMap) {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let policy = if kind.is_some_and(|kind| kind.starts_with("text/html")) { PAGE } else { NO_PAGE };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        // A handler that says something else knows better.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// The methods that are counted by name: a client may make up any other.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// The answer where a handler panicked. The panic itself is on standard error.
pub(super) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::internal("the server made a mistake with this request; its log says more").into_response()
}
