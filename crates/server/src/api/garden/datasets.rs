//! What a dataset holds: its survey, and single rows with their images and what is learned of them.
//!
//! Rows and images come from clients, so a child of the server reads them.

use crate::{
    api::{
        error::ApiError,
        extract::{Json, Path, Query},
        list::limit,
    },
    app::App,
    helper::{self, Bounds},
};
use axum::{extract::State, http::header, response::IntoResponse};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Sides of images in a list, in a row and by themselves, in pixels.
const SMALL: u32 = 160;
const MIDDLE: u32 = 448;
const LARGE: u32 = 2048;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(check))
        .routes(routes!(rows))
        .routes(routes!(row))
        .routes(routes!(image))
}

/// How rows are looked at.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Check {
    /// The model whose tokenizer and template are used; without it only images are measured.
    model: Option<String>,
    /// Rows with more tokens are left out.
    #[schema(minimum = 1)]
    max_seq_length: Option<u64>,
}

/// Looks at every row: how many, how long, which are bad and why.
#[utoipa::path(post, path = "/v1/garden/datasets/{file_id}/check", tag = "Garden", params(("file_id" = String, Path)),
    request_body = Check, responses((status = 200, body = Object)))]
async fn check(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<Check>,
) -> Result<Json<Value>, ApiError> {
    let file = Rows::find(&app, &id).await?;
    let mut words = file.words("check", model_words(&app, asked.model.as_deref())?);
    if let (Some(most), Some(_)) = (asked.max_seq_length, &asked.model) {
        words.push(format!("--max-seq-length={most}").into());
    }
    // Exit code 1: there are bad rows.
    let answer =
        helper::ask(&app, &words, Bounds::ROWS, &[0, 1]).await.map_err(|error| file.named(&app, error))?;
    let mut survey = parsed(&answer)?;
    if let Some(rows) = survey["bad"]["rows"].as_array_mut() {
        for row in rows {
            *row = row.as_str().map_or(Value::Null, |text| file.clean(&app, text).into());
        }
    }
    Ok(Json(survey))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RowsQuery {
    /// From 1 to 50; 12 without it.
    #[param(minimum = 1, maximum = 50)]
    limit: Option<i64>,
}

/// Rows of a dataset.
#[derive(Serialize, ToSchema)]
struct RowList {
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
}

/// The first rows, with small images. A row that is bad tells why in `error`.
#[utoipa::path(get, path = "/v1/garden/datasets/{file_id}/rows", tag = "Garden",
    params(("file_id" = String, Path), RowsQuery), responses((status = 200, body = RowList)))]
async fn rows(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<RowsQuery>,
) -> Result<Json<RowList>, ApiError> {
    let count = limit(query.limit, 12, 50)?;
    let file = Rows::find(&app, &id).await?;
    let look = Look { row: 1, count, side: SMALL, ..Look::default() };
    file.show(&app, &look).await.map(|data| Json(RowList { data }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RowQuery {
    /// The model whose tokenizer and template are used.
    model: Option<String>,
}

/// One row, counted from 1: its turns, its images, and with a model the text that it reads and learns.
#[utoipa::path(get, path = "/v1/garden/datasets/{file_id}/rows/{row}", tag = "Garden",
    params(("file_id" = String, Path), ("row" = u64, Path, minimum = 1), RowQuery),
    responses((status = 200, body = Object)))]
async fn row(
    State(app): State<App>,
    Path((id, row)): Path<(String, u64)>,
    Query(query): Query<RowQuery>,
) -> Result<Json<Value>, ApiError> {
    let file = Rows::find(&app, &id).await?;
    file.one(&app, &Look { row, count: 1, side: MIDDLE, model: query.model.as_deref(), held_out: None })
        .await
        .map(Json)
}

/// An image of a row, counted from 0, as JPEG.
#[utoipa::path(get, path = "/v1/garden/datasets/{file_id}/rows/{row}/images/{image}", tag = "Garden",
    params(("file_id" = String, Path), ("row" = u64, Path, minimum = 1), ("image" = usize, Path)),
    responses((status = 200, content_type = "image/jpeg", body = Vec<u8>)))]
async fn image(
    State(app): State<App>,
    Path((id, row, image)): Path<(String, u64, usize)>,
) -> Result<impl IntoResponse, ApiError> {
    let file = Rows::find(&app, &id).await?;
    let row = file.one(&app, &Look { row, count: 1, side: LARGE, ..Look::default() }).await?;
    let uri = row["images"][image]["uri"].as_str();
    let text = uri.and_then(|uri| uri.strip_prefix("data:image/jpeg;base64,"));
    let bytes = text.and_then(|text| STANDARD.decode(text).ok());
    let bytes = bytes.ok_or_else(|| ApiError::not_found("image", image))?;
    Ok(([(header::CONTENT_TYPE, "image/jpeg")], bytes))
}

/// A file of rows: where it lies, and what it is called.
pub(super) struct Rows {
    path: String,
    name: String,
}

/// Which rows are looked at, and how.
#[derive(Debug, Clone, Default)]
pub(super) struct Look<'a> {
    pub row: u64,
    pub count: usize,
    /// The longest side of their images; as they are stored if it is 0.
    pub side: u32,
    pub model: Option<&'a str>,
    /// Only rows that a run holds out: its `eval_split` and its seed.
    pub held_out: Option<(String, u64)>,
}

impl Rows {
    /// The file of this id.
    pub(super) async fn find(app: &App, id: &str) -> Result<Self, ApiError> {
        let missing = || ApiError::not_found(crate::id::Kind::File, id);
        let record = app.files.get(id).await?.ok_or_else(missing)?;
        let path = app.files.content(&record).ok_or_else(missing)?;
        Ok(Self { path: path.to_string_lossy().into_owned(), name: record.filename })
    }

    fn words(&self, command: &str, more: Vec<OsString>) -> Vec<OsString> {
        let own = ["dataset", command, &self.path, "--format", "json"];
        own.into_iter().map(OsString::from).chain(more).collect()
    }

    /// Rows as JSON; one that is bad tells why.
    pub(super) async fn show(&self, app: &App, look: &Look<'_>) -> Result<Vec<Value>, ApiError> {
        let Look { row, count, side, model, held_out } = look;
        let mut words = self.words("show", model_words(app, *model)?);
        let mut flags = vec![format!("--row={row}"), format!("--count={count}")];
        match side {
            0 => flags.push("--images=stored".into()),
            side => flags.extend(["--images=thumbnails".into(), format!("--thumbnail-side={side}")]),
        }
        if let Some((split, seed)) = held_out {
            flags.extend([format!("--held-out={split}"), format!("--seed={seed}")]);
        }
        words.extend(flags.into_iter().map(OsString::from));
        let answer =
            helper::ask(app, &words, Bounds::LOOK, &[0, 1]).await.map_err(|error| self.named(app, error))?;
        let lines = answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut rows = lines.map(parsed).collect::<Result<Vec<_>, _>>()?;
        for row in &mut rows {
            if let Some(error) = row["error"].as_str().map(|error| self.clean(app, error)) {
                row["error"] = error.into();
            }
        }
        Ok(rows)
    }

    async fn one(&self, app: &App, look: &Look<'_>) -> Result<Value, ApiError> {
        let row = self.show(app, look).await?.pop().ok_or_else(|| ApiError::not_found("row", look.row))?;
        match row["error"].as_str() {
            Some(error) => Err(ApiError::bad_request(error)),
            None => Ok(row),
        }
    }

    /// A message about the file by the name that its owner gave it.
    fn clean(&self, app: &App, text: &str) -> String {
        helper::named(app, text, &self.path, &self.name)
    }

    fn named(&self, app: &App, mut error: ApiError) -> ApiError {
        error.message = self.clean(app, &error.message);
        error
    }
}

/// The flags that name a model's folder.
fn model_words(app: &App, model: Option<&str>) -> Result<Vec<OsString>, ApiError> {
    let Some(model) = model else { return Ok(Vec::new()) };
    Ok(vec!["--base-model".into(), app.models.find_ready(model)?.base.into()])
}

fn parsed(answer: &[u8]) -> Result<Value, ApiError> {
    let broken = |error| ApiError::internal(format!("a child's answer is broken: {error}"));
    serde_json::from_slice(answer).map_err(broken)
}
