//! Where events go: addresses, their secrets, and what each wants to hear.
//!
//! Takes what a user asks for and keeps it in one file that nobody else can read. Every endpoint here has an address
//! that may be reached and at least one kind of event. A secret leaves the server twice: when it is made and when it is rotated.

use super::{
    EventKind,
    delivery::{Reach, ReachNow},
    now,
};
use crate::id::{self, Kind};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};
use ureq::http::Uri;

/// Endpoints of one server; each end of a job is posted to all of them.
const MAX_ENDPOINTS: usize = 32;
pub(crate) const MAX_NAME: usize = 128;
pub(crate) const MAX_URL: usize = 2048;
/// How long the secret before a rotation still signs, if that is asked.
const OVERLAP_SECONDS: i64 = 24 * 60 * 60;

/// Why an endpoint cannot be had as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("there are {MAX_ENDPOINTS} webhook endpoints already; delete one first")]
    TooMany,
    #[error("no such webhook endpoint")]
    Unknown,
    #[error("name: give 1 to {MAX_NAME} characters")]
    Name,
    #[error("event_types: name at least one event type")]
    NoEvents,
    #[error("url: {0}")]
    Url(&'static str),
    #[error("the endpoint could not be reached: {0}")]
    Unreachable(&'static str),
    #[error("other endpoints are being tested; try again in a moment")]
    Busy,
    #[error("the webhook endpoints cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// An address that gets events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    pub id: String,
    pub name: String,
    pub url: String,
    pub event_types: Vec<EventKind>,
    pub created_at: i64,
    pub updated_at: i64,
    pub secret: Secret,
    /// The secret before the last rotation and the second until which it signs too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<(Secret, i64)>,
}

impl Endpoint {
    /// The keys that sign at a moment.
    pub(super) fn keys(&self, moment: i64) -> impl Iterator<Item = &[u8]> {
        let previous = self.previous.iter().filter(move |(_, until)| moment < *until);
        [&self.secret].into_iter().chain(previous.map(|(secret, _)| secret)).map(|secret| &secret.0[..])
    }
}

/// The key of an endpoint; `whsec_` and base64 in text.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    fn fresh() -> Self {
        Self(id::random::<32>().to_vec())
    }

    /// What may be shown: enough to tell two secrets apart, too little to guess one.
    pub(crate) fn hint(&self) -> String {
        let text = String::from(self.clone());
        format!("whsec_...{}", &text[text.len() - 5..])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        format!("whsec_{}", STANDARD.encode(secret.0))
    }
}

impl TryFrom<String> for Secret {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let key = text.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
        key.filter(|key| key.len() >= 16).map(Self).ok_or("a webhook secret is whsec_ and base64")
    }
}

/// What is new about an endpoint; what is absent stays.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    pub name: Option<String>,
    pub url: Option<String>,
    pub event_types: Option<Vec<EventKind>>,
}

impl Change {
    fn check(&self, reach: Reach) -> Result<(), EndpointError> {
        if self.name.as_ref().is_some_and(|name| !(1..=MAX_NAME).contains(&name.chars().count())) {
            return Err(EndpointError::Name);
        }
        if self.event_types.as_ref().is_some_and(Vec::is_empty) {
            return Err(EndpointError::NoEvents);
        }
        self.url.as_ref().map_or(Ok(()), |url| check_url(url, reach).map_err(EndpointError::Url))
    }
}

/// Refuses what is no address of a receiver. Names are checked again whenever they are resolved.
fn check_url(url: &str, reach: Reach) -> Result<(), &'static str> {
    if url.len() > MAX_URL {
        return Err("an address has at most 2048 characters");
    }
    let uri: Uri = url.parse().map_err(|_| "give an address like https://example.org/hook")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("give an address that begins with https:// or http://");
    }
    let authority = uri.authority().ok_or("the address names no host")?;
    if authority.as_str().contains('@') {
        return Err("leave names and passwords out of the address: deliveries are signed");
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    match host.parse() {
        Ok(address) if !reach.allows(address) => Err(reach.why_not()),
        _ => Ok(()),
    }
}

/// All endpoints, and their file.
#[derive(Debug)]
pub(crate) struct Endpoints {
    path: PathBuf,
    reach: ReachNow,
    list: Mutex<Vec<Endpoint>>,
}

impl Endpoints {
    pub(super) fn open(path: PathBuf, reach: ReachNow) -> io::Result<Self> {
        let broken = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let list = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let message =
                    format!("{}; mend it, or move it away to start without endpoints", broken(&error));
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io::Error::new(error.kind(), broken(&error))),
        };
        Ok(Self { path, reach, list: Mutex::new(list) })
    }

    /// All endpoints, newest first.
    pub(crate) fn list(&self) -> Vec<Endpoint> {
        self.lock().iter().rev().cloned().collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Endpoint> {
        self.lock().iter().find(|endpoint| endpoint.id == id).cloned()
    }

    pub(crate) fn create(
        &self,
        name: String,
        url: String,
        event_types: Vec<EventKind>,
    ) -> Result<Endpoint, EndpointError> {
        let asked = Change { name: Some(name), url: Some(url), event_types: Some(event_types) };
        asked.check(self.reach.get())?;
        self.edit(|list| {
            if list.len() >= MAX_ENDPOINTS {
                return Err(EndpointError::TooMany);
            }
            let now = now();
            list.push(Endpoint {
                id: Kind::WebhookEndpoint.fresh(),
                name: String::new(),
                url: String::new(),
                event_types: Vec::new(),
                created_at: now,
                updated_at: now,
                secret: Secret::fresh(),
                previous: None,
            });
            let made = list.last_mut().ok_or(EndpointError::Unknown)?;
            apply(made, asked);
            Ok(made.clone())
        })
    }

    pub(crate) fn update(&self, id: &str, change: Change) -> Result<Endpoint, EndpointError> {
        change.check(self.reach.get())?;
        self.edit(|list| {
            let endpoint = find(list, id)?;
            let before = endpoint.clone();
            apply(endpoint, change);
            if *endpoint != before {
                endpoint.updated_at = now();
            }
            Ok(endpoint.clone())
        })
    }

    /// Gives an endpoint a new secret; the old one signs for another day if `overlap`.
    pub(crate) fn rotate(&self, id: &str, overlap: bool) -> Result<Endpoint, EndpointError> {
        self.edit(|list| {
            let endpoint = find(list, id)?;
            let old = std::mem::replace(&mut endpoint.secret, Secret::fresh());
            endpoint.updated_at = now();
            endpoint.previous = overlap.then_some((old, endpoint.updated_at + OVERLAP_SECONDS));
            Ok(endpoint.clone())
        })
    }

    pub(crate) fn delete(&self, id: &str) -> Result<(), EndpointError> {
        self.edit(|list| {
            find(list, id)?;
            list.retain(|endpoint| endpoint.id != id);
            Ok(())
        })
    }

    /// Changes the list, on disk first: a change that cannot be written did not happen.
    fn edit<T>(
        &self,
        change: impl FnOnce(&mut Vec<Endpoint>) -> Result<T, EndpointError>,
    ) -> Result<T, EndpointError> {
        let mut list = self.lock();
        let mut edited = list.clone();
        let result = change(&mut edited)?;
        let mut file = garden_files::PartialFile::create(&self.path)?;
        file.file_mut().set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(&serde_json::to_vec_pretty(&edited).map_err(io::Error::from)?)?;
        file.keep()?;
        *list = edited;
        Ok(result)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Endpoint>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find<'l>(list: &'l mut [Endpoint], id: &str) -> Result<&'l mut Endpoint, EndpointError> {
    list.iter_mut().find(|endpoint| endpoint.id == id).ok_or(EndpointError::Unknown)
}

fn apply(endpoint: &mut Endpoint, change: Change) {
    let Change { name, url, event_types } = change;
    endpoint.name = name.unwrap_or_else(|| std::mem::take(&mut endpoint.name));
    endpoint.url = url.unwrap_or_else(|| std::mem::take(&mut endpoint.url));
    if let Some(kinds) = event_types {
        endpoint.event_types = EventKind::ALL.into_iter().filter(|kind| kinds.contains(kind)).collect();
    }
}
