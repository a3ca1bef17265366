//! Who may ask, and how much: what stands between the network and the handlers.
//!
//! Takes every request before its handler and every answer after it. A request passes if its Host and Origin are the
//! server's own, its client has not asked too often, and it brings a key where keys are needed. Every answer gets an
//! id, security headers and a place in the counters; a handler that panics becomes an error like any other.

mod counters;
mod frame;
mod hosts;
pub(crate) mod keys;
mod login;
mod pace;
mod rate;
mod sessions;
mod shares;
mod streams;
mod welcome;

pub(crate) use counters::Counters;
pub(crate) use login::routes;
pub(crate) use pace::TooSlow;
pub(crate) use rate::network;
pub(crate) use shares::{Share, Shares};
pub(crate) use streams::{StreamPermit, Streams};

use crate::{api::error::ApiError, app::App, config::ServeConfig, data_dir::DataDir};
use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Request, State},
    http::{HeaderMap, Method, header, request::Parts},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Redirect, Response},
};
use hosts::Hosts;
use keys::{Key, Keys, KeysError};
use pace::Paced;
use rate::Rate;
use sessions::Sessions;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tower_http::{catch_panic::CatchPanicLayer, timeout::RequestBodyTimeoutLayer};
use welcome::Welcome;

/// Bytes of a body, where a route does not say otherwise. Files are counted as they are received.
const BODY: usize = 2 << 20;
/// How long a client may send nothing in the middle of a body.
const SILENCE: Duration = Duration::from_secs(60);

/// What requests are checked against.
pub(crate) struct Guard {
    hosts: Hosts,
    pub(crate) keys: Arc<Keys>,
    sessions: Sessions,
    rate: Rate,
}

/// Who sent a request: whoever has a key, or else an address. Handlers may take it as an extractor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The name of a key, where keys are needed.
    Key(String),
    Address(IpAddr),
}

impl Client {
    fn new(key: Option<String>, address: IpAddr) -> Self {
        key.map_or_else(|| Self::Address(network(address)), Self::Key)
    }

    /// Whether it may be a proxy of this machine, behind which everybody is.
    fn may_be_a_proxy(&self) -> bool {
        matches!(self, Self::Address(address) if address.is_loopback())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let client = parts.extensions.get().cloned();
        client.ok_or_else(|| ApiError::unauthorized("this server needs a key"))
    }
}

impl Guard {
    pub(crate) fn open(
        config: &ServeConfig,
        data: &DataDir,
        address: SocketAddr,
        notes: &mut Vec<String>,
    ) -> Result<Self, KeysError> {
        let keys = Keys::open(data, config.token_file.as_deref(), address.ip().is_loopback())?;
        if !address.ip().is_loopback() && keys.is_empty() {
            return Err(KeysError::Needed(address.ip()));
        }
        if keys.are_needed() && keys.is_empty() {
            notes.push("no request will be let in: every key was revoked; add a key".to_owned());
        }
        Ok(Self {
            hosts: Hosts::new(address, &config.allowed_hosts),
            keys: Arc::new(keys),
            sessions: Sessions::default(),
            rate: Rate::new(config.rate_limit),
        })
    }

    /// The key that this comes with, if it may be let in; none where none is needed.
    fn key(&self, headers: &HeaderMap) -> Result<Option<Key>, ApiError> {
        if !self.keys.are_needed() {
            return Ok(None);
        }
        let bearer = headers.get(header::AUTHORIZATION).map(|value| {
            let token = value.to_str().ok().and_then(|value| value.split_once(' '));
            token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim())
        });
        match bearer {
            Some(token) => {
                let key = token.and_then(|token| self.keys.find(token));
                let wrong = "the key is wrong or was revoked; send 'Authorization: Bearer TOKEN'";
                key.map(Some).ok_or_else(|| ApiError::unauthorized(wrong))
            }
            None => {
                let key = login::cookie(headers).and_then(|cookie| self.sessions.find(cookie));
                let key = key.filter(|key| self.keys.has(key));
                let none = "this server needs a key; send 'Authorization: Bearer TOKEN'";
                key.map(Some).ok_or_else(|| ApiError::unauthorized(none))
            }
        }
    }
}

/// Puts the guard around routes. Layers that are added later see a request earlier.
pub(crate) fn around(routes: Router<App>, app: &App) -> Router<App> {
    routes
        .layer(RequestBodyTimeoutLayer::new(SILENCE))
        .layer(DefaultBodyLimit::max(BODY))
        .layer(from_fn_with_state(app.clone(), admit))
        .layer(CatchPanicLayer::custom(frame::panicked))
        .layer(from_fn_with_state(app.clone(), frame::frame))
}

async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let guard = &app.guard;
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(peer)| peer.ip());
    let passed = guard.hosts.check(&request).and_then(|()| guard.rate.check(peer));
    if let Err(refusal) = passed {
        return refusal.into_response();
    }
    let welcome = match guard.key(request.headers()) {
        Ok(key) => {
            let name = key.as_ref().map(|key| key.name.clone());
            request.extensions_mut().insert(Client::new(name, peer));
            Some(Welcome { keys: guard.keys.clone(), key })
        }
        Err(_) if is_open(request.uri().path()) => None,
        Err(_) if wants_page(&request) => return to_login(&request),
        Err(refusal) => return refusal.into_response(),
    };
    let answer = next.run(request.map(|body| Body::new(Paced::new(body)))).await;
    match welcome {
        Some(welcome) => answer.map(|body| welcome.guard(body)),
        None => answer,
    }
}

/// What needs no key: it tells nothing about anybody's work.
fn is_open(path: &str) -> bool {
    matches!(path, "/health" | "/login" | "/logout" | "/openapi.json" | "/docs" | "/favicon.ico")
        || path.starts_with("/assets/")
        || path.starts_with("/docs/")
}

/// Whether somebody looks at a page, rather than a program asking the API.
fn wants_page(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    request.method() == Method::GET
        && !request.uri().path().starts_with("/v1/")
        && accept.is_some_and(|accept| accept.contains("text/html"))
}

fn to_login(request: &Request) -> Response {
    let next = request.uri().path_and_query().map_or("/", |path| path.as_str());
    Redirect::to(&format!("/login?next={}", login::encode(next))).into_response()
}
