//! The bodies of questions, which may be large: how many bytes of them the server holds at once.
//!
//! Takes a request and gives its JSON object with a place, which is held until the question is with its model. What
//! does not fit beside the others is told to come again before a byte of it is read, and the number of values in a
//! body is bounded before they are made: each takes many times its text.

use crate::api::{
    error::ApiError,
    extract::{body, check_json, check_values},
};
use axum::{
    body::{Bytes, HttpBody},
    extract::{FromRequest, Request},
    http::header,
};
use garden_chat::LARGEST_QUESTION;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of all bodies at once.
const AT_ONCE: usize = 4 * LARGEST_QUESTION;
/// Places are counted in this many bytes.
const UNIT: usize = 1 << 10;
/// Values of a body: objects, lists, and what is in them.
const VALUES: usize = 50_000;
/// Seconds after which a question that found no place may be asked again.
const SOON: u64 = 5;

/// The places for bodies of questions.
#[derive(Debug, Clone)]
pub(crate) struct Bodies {
    places: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE / UNIT)) }
    }
}

impl Bodies {
    /// A body as it came, and its place.
    pub(super) async fn take(&self, request: Request) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
        check_json(request.headers())?;
        // A body of unknown length may be as long as is taken at all.
        let most = LARGEST_QUESTION as u64;
        let told =
            request.headers().get(header::CONTENT_LENGTH).and_then(|told| told.to_str().ok()?.parse().ok());
        let told = told.or_else(|| request.body().size_hint().upper()).unwrap_or(most);
        if told > most {
            let message =
                format!("the body is larger than {} MiB, the most that a question may have", most >> 20);
            return Err(ApiError::too_large(message));
        }
        let mut place = self.place(told as usize)?;
        let bytes = Bytes::from_request(request, &()).await.map_err(|error| body(&error))?;
        drop(place.split(place.num_permits().saturating_sub(units(bytes.len()))));
        Ok((bytes, place))
    }

    fn place(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = units(bytes) as u32;
        let full = |_| ApiError::busy("too many large questions are on their way; ask again later", SOON);
        self.places.clone().try_acquire_many_owned(units).map_err(full)
    }
}

/// The places that so many bytes take.
fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).max(1)
}

/// The object in a body.
pub(super) fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    check_values(bytes, VALUES)?;
    serde_json::from_slice(bytes).map_err(ApiError::bad_request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, extract::DefaultBodyLimit};
    use tower::{Layer, ServiceExt, service_fn};

    fn request(bytes: usize) -> Request {
        let body = Body::from(vec![b' '; bytes]);
        Request::builder().header("content-type", "application/json; charset=utf-8").body(body).unwrap()
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_keeps_the_place_of_its_bytes_only() {
        let bodies = Bodies::default();
        let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>("{}")]);
        let request = Request::builder().header("content-type", "application/json");
        let (_, place) = bodies.take(request.body(Body::from_stream(pieces)).unwrap()).await.unwrap();
        assert_eq!(place.num_permits(), 1);
        assert_eq!(bodies.places.available_permits(), AT_ONCE / UNIT - 1);
    }

    #[tokio::test]
    async fn no_more_bytes_are_held_than_there_are_places_for() {
        let bodies = Bodies::default();
        let take = |bytes| {
            let bodies = bodies.clone();
            let taken = service_fn(move |request| {
                let bodies = bodies.clone();
                async move {
                    Ok::<_, std::convert::Infallible>(bodies.take(request).await.map(|(_, place)| place))
                }
            });
            let service = DefaultBodyLimit::max(LARGEST_QUESTION).layer(taken);
            async move { service.oneshot(request(bytes)).await.unwrap() }
        };
        let mut held = Vec::new();
        for _ in 0..AT_ONCE / LARGEST_QUESTION {
            held.push(take(LARGEST_QUESTION).await.unwrap());
        }
        let error = take(1).await.unwrap_err();
        assert_eq!((error.status.as_u16(), error.retry_after), (429, Some(SOON)));
        held.pop();
        drop(take(1).await.unwrap());
        assert_eq!(take(LARGEST_QUESTION + 1).await.unwrap_err().status.as_u16(), 413);
    }

    #[test]
    fn a_body_of_countless_values_is_refused_before_it_is_read() {
        let many = format!("{{\"messages\": [{}0]}}", "0,".repeat(VALUES));
        assert_eq!(object(many.as_bytes()).unwrap_err().status.as_u16(), 400);
        let text = format!("{{\"messages\": \"{}\"}}", "[,\\\"{".repeat(VALUES));
        assert_eq!(object(text.as_bytes()).unwrap().len(), 1);
        assert_eq!(object(b"[]").unwrap_err().status.as_u16(), 400);
    }
}
