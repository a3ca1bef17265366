//! `/v1/uploads`: large files in parts.

use super::{
    error::ApiError,
    extract::{Json, Path},
    files::{Anchor, ClientPurpose, FileObject, life, purpose, receive},
    multipart::Form,
};
use crate::{
    app::App,
    files::{
        FileRecord, Purpose, display_name,
        uploads::{NewUpload, PART_BYTES, PartRecord, UploadRecord, UploadStatus},
    },
};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(create))
        .routes(routes!(add_part))
        .routes(routes!(complete))
        .routes(routes!(cancel))
}

/// An upload, as OpenAI shows it.
#[derive(Serialize, ToSchema)]
#[schema(as = Upload)]
struct UploadObject {
    #[schema(pattern = "^upload_[a-z0-9]{1,64}$")]
    id: String,
    object: UploadName,
    bytes: u64,
    /// Seconds since 1970.
    created_at: i64,
    /// When it ends if it is not completed, in seconds since 1970.
    expires_at: i64,
    filename: String,
    purpose: Purpose,
    status: UploadStatus,
    /// The file, once the upload is completed.
    file: Option<FileObject>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum UploadName {
    Upload,
}

impl UploadObject {
    fn new(record: UploadRecord, file: Option<FileRecord>) -> Self {
        Self {
            id: record.id,
            object: UploadName::Upload,
            bytes: record.bytes,
            created_at: record.created_at,
            expires_at: record.expires_at,
            filename: record.filename,
            purpose: record.purpose,
            status: record.status,
            file: file.map(FileObject::from),
        }
    }
}

/// What an upload is begun with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateUpload {
    /// Bytes of the whole file.
    #[schema(minimum = 1, maximum = 8589934592_i64)]
    bytes: u64,
    filename: String,
    #[allow(dead_code, reason = "part of OpenAI's request; the name and the first bytes tell the format")]
    mime_type: String,
    #[schema(value_type = ClientPurpose)]
    purpose: String,
    expires_after: Option<ExpiresAfter>,
}

/// How long the file lives.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ExpiresAfter {
    #[allow(dead_code, reason = "there is only one")]
    anchor: Anchor,
    #[schema(minimum = 3600, maximum = 2592000)]
    seconds: i64,
}

/// Begins an upload in parts.
#[utoipa::path(
    post, path = "/v1/uploads", tag = "Uploads", request_body = CreateUpload,
    responses((status = 200, description = "The upload; send its parts within the hour.", body = UploadObject)),
)]
async fn create(
    State(app): State<App>,
    Json(body): Json<CreateUpload>,
) -> Result<Json<UploadObject>, ApiError> {
    if body.bytes == 0 || body.bytes > app.config.max_upload {
        let most = garden_memory::ByteSize(app.config.max_upload);
        return Err(ApiError::bad_request(format!("bytes must be from 1 to {most}")).param("bytes"));
    }
    let new = NewUpload {
        filename: display_name(&body.filename),
        purpose: purpose(&body.purpose)?,
        bytes: body.bytes,
        expires_after: body.expires_after.map(|expires| life(expires.seconds)).transpose()?,
    };
    let record = app.uploads.run(move |uploads| uploads.create(new)).await?;
    Ok(Json(UploadObject::new(record, None)))
}

/// A part, as OpenAI shows it.
#[derive(Serialize, ToSchema)]
#[schema(as = UploadPart)]
struct PartObject {
    #[schema(pattern = "^part_[a-z0-9]{1,64}$")]
    id: String,
    object: PartName,
    /// Seconds since 1970.
    created_at: i64,
    upload_id: String,
}

#[derive(Serialize, ToSchema)]
enum PartName {
    #[serde(rename = "upload.part")]
    UploadPart,
}

impl From<PartRecord> for PartObject {
    fn from(part: PartRecord) -> Self {
        Self {
            id: part.id,
            object: PartName::UploadPart,
            created_at: part.created_at,
            upload_id: part.upload_id,
        }
    }
}

/// What a part is sent with.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only the document's form of it")]
struct PartForm {
    /// At most 64 MiB.
    #[schema(format = Binary, value_type = String)]
    data: Vec<u8>,
}

/// Adds a part to an upload.
#[utoipa::path(
    post, path = "/v1/uploads/{upload_id}/parts", tag = "Uploads", params(("upload_id" = String, Path)),
    request_body(content = PartForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "The part.", body = PartObject)),
)]
async fn add_part(
    State(app): State<App>,
    Path(id): Path<String>,
    mut form: Form,
) -> Result<Json<PartObject>, ApiError> {
    let asked = id.clone();
    app.uploads.run(move |uploads| uploads.check_pending(&asked)).await?;
    let mut content = None;
    while let Some(field) = form.next().await? {
        match field.name() {
            "data" if content.is_none() => content = Some(receive(&app, field, PART_BYTES).await?),
            name => {
                return Err(ApiError::bad_request(format!("unknown or repeated field '{name}'")).param(name));
            }
        }
    }
    let missing = || ApiError::bad_request("the field 'data' is missing").param("data");
    let content = content.ok_or_else(missing)?;
    let part = app.uploads.run(move |uploads| uploads.add_part(&id, content)).await?;
    Ok(Json(part.into()))
}

/// Which parts make the file.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CompleteUpload {
    /// In the order of the file.
    #[schema(min_items = 1, max_items = 1024)]
    part_ids: Vec<String>,
    /// The file's MD5, in hexadecimal digits.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    md5: Option<String>,
}

/// Joins the parts into a file. Asked again, it gives the same file.
#[utoipa::path(
    post, path = "/v1/uploads/{upload_id}/complete", tag = "Uploads", params(("upload_id" = String, Path)),
    request_body = CompleteUpload,
    responses((status = 200, description = "The upload with its file.", body = UploadObject)),
)]
async fn complete(
    State(app): State<App>,
    Path(id): Path<String>,
    Json(body): Json<CompleteUpload>,
) -> Result<Json<UploadObject>, ApiError> {
    let joined =
        app.uploads.run(move |uploads| uploads.complete(&id, &body.part_ids, body.md5.as_deref())).await?;
    Ok(Json(UploadObject::new(joined.0, Some(joined.1))))
}

/// Ends an upload without a file.
#[utoipa::path(
    post, path = "/v1/uploads/{upload_id}/cancel", tag = "Uploads", params(("upload_id" = String, Path)),
    responses((status = 200, description = "The cancelled upload.", body = UploadObject)),
)]
async fn cancel(State(app): State<App>, Path(id): Path<String>) -> Result<Json<UploadObject>, ApiError> {
    let record = app.uploads.run(move |uploads| uploads.cancel(&id)).await?;
    Ok(Json(UploadObject::new(record, None)))
}
