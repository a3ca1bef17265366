//! Lists as OpenAI's SDK pages through them.

use super::error::ApiError;
use crate::store::Page;
use axum::{
    extract::{FromRequestParts, Query, rejection::QueryRejection},
    http::request::Parts,
};
use serde::{Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

/// What a list is narrowed to, from the query of the address. A refusal names the field.
#[derive(Debug, Clone)]
pub(crate) struct Narrowed<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Narrowed<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let refused = |error: QueryRejection| {
            let words = error.body_text();
            ApiError::of_field(words.strip_prefix("Failed to deserialize query string: ").unwrap_or(&words))
        };
        let Query(query) = Query::from_request_parts(parts, state).await.map_err(refused)?;
        Ok(Self(query))
    }
}

/// A part of a list; the next one begins `after` the last id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct List<T> {
    object: ListName,
    data: Vec<T>,
    has_more: bool,
    /// The id of the first object here.
    first_id: Option<String>,
    /// The id of the last object here.
    last_id: Option<String>,
}

impl<T> List<T> {
    /// A page whose objects become `T` by `show`; `id` names one.
    pub(crate) fn of<R>(page: Page<R>, show: impl FnMut(R) -> T, id: impl Fn(&T) -> &str) -> Self {
        let data: Vec<T> = page.data.into_iter().map(show).collect();
        let first_id = data.first().map(|first| id(first).to_owned());
        let last_id = data.last().map(|last| id(last).to_owned());
        Self { object: ListName::List, data, has_more: page.has_more, first_id, last_id }
    }
}

/// Checks a page's size.
pub(crate) fn limit(asked: Option<i64>, default: usize, most: usize) -> Result<usize, ApiError> {
    let Some(asked) = asked else { return Ok(default) };
    match usize::try_from(asked) {
        Ok(limit) if (1..=most).contains(&limit) => Ok(limit),
        _ => {
            Err(ApiError::bad_request(format!("limit must be from 1 to {most}, not {asked}")).param("limit"))
        }
    }
}

/// `list`.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ListName {
    List,
}
