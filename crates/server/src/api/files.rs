//! `/v1/files`: what is uploaded, listed, read and deleted.

use super::{
    error::ApiError,
    extract::{Json, Path},
    list::{List, Narrowed, limit},
    multipart::{Field, Form},
};
use crate::{
    app::App,
    files::{Content, FileRecord, FileStatus, NewFile, Purpose, display_name},
    id::Kind,
    store::{FileQuery, Order},
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;
use tower_http::services::ServeFile;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const LIST_MOST: usize = 10_000;
/// Seconds that a file may be asked to live.
const LIFE: std::ops::RangeInclusive<u32> = 3_600..=2_592_000;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(create, list))
        .routes(routes!(retrieve, delete))
        .routes(routes!(content))
}

/// A file, as OpenAI shows it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = File)]
pub(crate) struct FileObject {
    #[schema(pattern = "^file-[a-z0-9]{1,64}$")]
    id: String,
    object: FileName,
    #[schema(minimum = 0)]
    bytes: u64,
    /// Seconds since 1970.
    created_at: i64,
    /// When it is deleted, in seconds since 1970.
    expires_at: Option<i64>,
    filename: String,
    purpose: Purpose,
    status: FileStatus,
    /// What is wrong, where the status is `error`.
    status_details: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum FileName {
    File,
}

impl From<FileRecord> for FileObject {
    fn from(record: FileRecord) -> Self {
        Self {
            id: record.id,
            object: FileName::File,
            bytes: record.bytes,
            created_at: record.created_at,
            expires_at: record.expires_at,
            filename: record.filename,
            purpose: record.purpose,
            status: record.status,
            status_details: record.status_details,
        }
    }
}

/// What a file is uploaded with. The fields may come in any order.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only the document's form of it")]
struct FileForm {
    /// The content. JSON Lines, JSON, CSV, TSV, Parquet and ZIP are known by the name or by the first bytes.
    #[schema(format = Binary, value_type = String)]
    file: Vec<u8>,
    purpose: ClientPurpose,
    /// From when the file's life is counted.
    #[schema(rename = "expires_after[anchor]", nullable = false)]
    anchor: Option<Anchor>,
    /// How long the file lives.
    #[schema(rename = "expires_after[seconds]", nullable = false, minimum = 3600, maximum = 2592000)]
    seconds: Option<u32>,
}

/// What clients upload files for.
#[derive(ToSchema)]
#[schema(rename_all = "kebab-case")]
#[allow(dead_code, reason = "only the document's form of it")]
pub(crate) enum ClientPurpose {
    FineTune,
    Vision,
    #[schema(rename = "user_data")]
    UserData,
    Assistants,
    Batch,
}

/// From when a life is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anchor {
    CreatedAt,
}

/// Reads a purpose that a client gave.
pub(super) fn purpose(text: &str) -> Result<Purpose, ApiError> {
    let known = "fine-tune, vision, user_data, assistants or batch";
    let wrong = || ApiError::bad_request(format!("'{text}' is no purpose: give {known}")).param("purpose");
    Purpose::parse(text).filter(|purpose| purpose.is_for_clients()).ok_or_else(wrong)
}

/// Checks how long a file is to live.
pub(super) fn life(seconds: i64) -> Result<u32, ApiError> {
    let seconds = u32::try_from(seconds).ok().filter(|seconds| LIFE.contains(seconds));
    seconds.ok_or_else(|| {
        let (least, most) = (LIFE.start(), LIFE.end());
        ApiError::bad_request(format!("a file lives from {least} to {most} seconds"))
            .param("expires_after[seconds]")
    })
}

/// Receives the bytes of a field.
pub(super) async fn receive(app: &App, mut field: Field, limit: u64) -> Result<Content, ApiError> {
    let mut incoming = app.files.receive(limit).await?;
    while let Some(piece) = field.piece().await? {
        incoming.push(&piece).await?;
    }
    incoming.finish().await
}

/// Uploads a file.
#[utoipa::path(
    post, path = "/v1/files", tag = "Files",
    request_body(content = FileForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "The file.", body = FileObject)),
)]
async fn create(State(app): State<App>, mut form: Form) -> Result<Json<FileObject>, ApiError> {
    let (mut file, mut purpose_given, mut anchor, mut seconds) = (None, None, None, None);
    while let Some(field) = form.next().await? {
        match field.name() {
            "file" if file.is_none() => {
                let name = field
                    .file_name()
                    .map(display_name)
                    .ok_or_else(|| ApiError::bad_request("the field has no file name").param("file"))?;
                file = Some((name, receive(&app, field, app.config.max_upload).await?));
            }
            "purpose" => purpose_given = Some(purpose(&field.text().await?)?),
            "expires_after[anchor]" => anchor = Some(field.text().await?),
            "expires_after[seconds]" => {
                // What is no number is out of any range.
                seconds = Some(life(field.text().await?.trim().parse().unwrap_or(-1))?);
            }
            name => {
                return Err(ApiError::bad_request(format!("unknown or repeated field '{name}'")).param(name));
            }
        }
    }
    let missing = |name: &str| ApiError::bad_request(format!("the field '{name}' is missing")).param(name);
    let (filename, content) = file.ok_or_else(|| missing("file"))?;
    let purpose = purpose_given.ok_or_else(|| missing("purpose"))?;
    if anchor.as_deref().is_some_and(|anchor| anchor != "created_at") {
        return Err(ApiError::bad_request("the anchor must be created_at").param("expires_after[anchor]"));
    }
    if anchor.is_some() && seconds.is_none() {
        return Err(missing("expires_after[seconds]"));
    }
    let new = NewFile { id: Kind::File.fresh(), filename, purpose, expires_after: seconds };
    let files = app.files.clone();
    let record = super::blocking(move || Ok(files.keep(content, new)?)).await?;
    Ok(Json(record.into()))
}

/// Which files to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// The id that the page begins after.
    #[param(pattern = "^file-[a-z0-9]{1,64}$", nullable = false)]
    after: Option<String>,
    /// How many files, at most.
    #[param(minimum = 1, maximum = 10000, default = 10000, nullable = false)]
    limit: Option<i64>,
    /// By the time of creation.
    #[param(inline, nullable = false)]
    order: Option<ListOrder>,
    /// Only files for this.
    #[param(inline, nullable = false)]
    purpose: Option<Purpose>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ListOrder {
    Asc,
    Desc,
}

/// Lists files.
#[utoipa::path(
    get, path = "/v1/files", tag = "Files", params(ListQuery),
    responses((status = 200, description = "A page of files.", body = List<FileObject>)),
)]
async fn list(
    State(app): State<App>,
    Narrowed(query): Narrowed<ListQuery>,
) -> Result<Json<List<FileObject>>, ApiError> {
    let query = FileQuery {
        after: query.after,
        limit: limit(query.limit, LIST_MOST, LIST_MOST)?,
        order: match query.order {
            Some(ListOrder::Asc) => Order::OldestFirst,
            _ => Order::NewestFirst,
        },
        purpose: query.purpose.map(|purpose| purpose.name().to_owned()),
    };
    let page = app.files.list(query).await?;
    Ok(Json(List::of(page, FileObject::from, |file| &file.id)))
}

async fn find(app: &App, id: &str) -> Result<FileRecord, ApiError> {
    app.files.get(id).await?.ok_or_else(|| ApiError::not_found(Kind::File, id))
}

/// Tells about a file.
#[utoipa::path(
    get, path = "/v1/files/{file_id}", tag = "Files", params(("file_id" = String, Path)),
    responses((status = 200, description = "The file.", body = FileObject)),
)]
async fn retrieve(State(app): State<App>, Path(id): Path<String>) -> Result<Json<FileObject>, ApiError> {
    Ok(Json(find(&app, &id).await?.into()))
}

/// That a file was deleted.
#[derive(Serialize, ToSchema)]
struct DeletedFile {
    id: String,
    object: FileName,
    deleted: bool,
}

/// Deletes a file that no unfinished job needs.
#[utoipa::path(
    delete, path = "/v1/files/{file_id}", tag = "Files", params(("file_id" = String, Path)),
    responses((status = 200, description = "It is gone.", body = DeletedFile)),
)]
async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<Json<DeletedFile>, ApiError> {
    let (files, asked) = (app.files.clone(), id.clone());
    super::blocking(move || Ok(files.delete(&asked)?)).await?;
    Ok(Json(DeletedFile { id, object: FileName::File, deleted: true }))
}

/// Gives a file's content, whole or by ranges.
#[utoipa::path(
    get, path = "/v1/files/{file_id}/content", tag = "Files",
    params(("file_id" = String, Path)),
    responses(
        (status = 200, description = "The content.", body = [u8], content_type = "application/octet-stream"),
        (status = 206, description = "A range.", body = [u8], content_type = "application/octet-stream"),
        (status = 304, description = "It has not changed."),
        (status = 412, description = "A precondition does not hold."),
        (status = 416, description = "There is no such range."),
    ),
)]
async fn content(
    State(app): State<App>,
    method: Method,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let record = find(&app, &id).await?;
    let gone = || ApiError::internal(format!("the content of {id} is missing from the data folder"));
    let path = app.files.content(&record).filter(|path| path.exists()).ok_or_else(gone)?;
    let mut request = Request::new(axum::body::Body::empty());
    *request.method_mut() = method;
    *request.headers_mut() = headers;
    let answer = ServeFile::new(path).oneshot(request).await;
    let mut response = answer.unwrap_or_else(|never| match never {}).into_response();
    let octets = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, octets);
    response.headers_mut().insert(header::CONTENT_DISPOSITION, attachment(&record.filename));
    Ok(response)
}

/// A header that makes browsers save a file under its name.
pub(crate) fn attachment(name: &str) -> HeaderValue {
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'-' | b'_' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    let value = format!("attachment; filename*=UTF-8''{encoded}");
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static("attachment"))
}
