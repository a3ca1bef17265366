//! Uploads in parts: a folder each, with a record and the parts that came.
//!
//! Takes parts in any order and joins those that the client names, in its order, into a file. An upload that is not
//! completed within an hour expires, whatever happens to the server in between.

use super::{
    Content, FileRecord, Files, FilesError, NewFile, Purpose, append_file, hex, incoming::blocking,
    remove_if_there,
};
use crate::{api::error::ApiError, data_dir::DataDir, id::Kind, store::now};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use utoipa::ToSchema;

/// Seconds that an upload may take.
const LIFE: i64 = 60 * 60;
/// Seconds that the record of an upload stays after its end, for clients that ask again.
const MEMORY: i64 = 24 * 60 * 60;
/// Bytes of a part.
pub(crate) const PART_BYTES: u64 = 64 << 20;
const PARTS: usize = 1024;

/// All uploads. A clone is another handle.
#[derive(Clone)]
pub(crate) struct Uploads(Arc<Parts>);

struct Parts {
    data: DataDir,
    files: Files,
    /// Held while a record or the set of its parts changes.
    changes: Mutex<()>,
    /// Uploads whose parts are being joined.
    joining: Mutex<HashSet<String>>,
}

/// How an upload stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UploadStatus {
    Pending,
    Completed,
    Cancelled,
    Expired,
}

/// An upload's record, as it lies in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UploadRecord {
    pub id: String,
    pub filename: String,
    pub purpose: Purpose,
    pub bytes: u64,
    pub created_at: i64,
    pub expires_at: i64,
    pub status: UploadStatus,
    /// Seconds that the file lives.
    pub expires_after: Option<u32>,
    /// The id that the file has or will have, so that completing twice makes one file.
    pub file_id: String,
}

/// What an upload will be.
#[derive(Debug, Clone)]
pub(crate) struct NewUpload {
    pub filename: String,
    pub purpose: Purpose,
    pub bytes: u64,
    pub expires_after: Option<u32>,
}

/// A part that was kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PartRecord {
    pub id: String,
    pub created_at: i64,
    pub upload_id: String,
}

/// Why an upload did not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("no such upload: {0}")]
    Missing(String),
    #[error("upload {id} is {status}")]
    NotPending { id: String, status: &'static str },
    #[error("upload {0} is being completed by another request")]
    Joining(String),
    #[error("no such part of this upload: {0}")]
    NoPart(String),
    #[error("part {0} is named twice")]
    Twice(String),
    #[error("the parts have {got} bytes together, but the upload was announced with {announced}")]
    Bytes { got: u64, announced: u64 },
    #[error("the MD5 of the parts is {got}, not {announced}")]
    Md5 { got: String, announced: String },
    #[error("the upload has more parts, or more bytes in parts, than its announced {0} bytes need")]
    TooMuch(u64),
}

impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        Self::Files(error.into())
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let param = match &error {
            UploadError::NoPart(_) | UploadError::Twice(_) | UploadError::Bytes { .. } => "part_ids",
            UploadError::Md5 { .. } => "md5",
            _ => "",
        };
        match error {
            UploadError::Files(error) => error.into(),
            UploadError::Missing(id) => Self::not_found(Kind::Upload, id),
            UploadError::Joining(_) => Self::conflict(error),
            _ if param.is_empty() => Self::bad_request(error),
            _ => Self::bad_request(error).param(param),
        }
    }
}

impl UploadStatus {
    fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

impl Uploads {
    pub(crate) fn new(data: &DataDir, files: &Files) -> Self {
        Self(Arc::new(Parts {
            data: data.clone(),
            files: files.clone(),
            changes: Mutex::default(),
            joining: Mutex::default(),
        }))
    }

    /// Begins an upload. Blocks.
    pub(crate) fn create(&self, new: NewUpload) -> Result<UploadRecord, UploadError> {
        let created_at = now();
        let record = UploadRecord {
            id: Kind::Upload.fresh(),
            filename: new.filename,
            purpose: new.purpose,
            bytes: new.bytes,
            created_at,
            expires_at: created_at + LIFE,
            status: UploadStatus::Pending,
            expires_after: new.expires_after,
            file_id: Kind::File.fresh(),
        };
        let folder = self.folder(&record.id)?;
        let made = garden_files::create_folder(&folder)
            .map_err(UploadError::from)
            .and_then(|()| self.write(&record));
        if made.is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        made.map(|()| record)
    }

    /// Whether parts may be sent, before one is received. Blocks.
    pub(crate) fn check_pending(&self, id: &str) -> Result<(), UploadError> {
        self.pending(id).map(drop)
    }

    /// Keeps a part that was received. Blocks.
    pub(crate) fn add_part(&self, id: &str, content: Content) -> Result<PartRecord, UploadError> {
        content.file.as_file().sync_all()?;
        let _changes = self.lock();
        let record = self.pending(id)?;
        let parts = self.parts(id)?;
        let bytes: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        // A part whose answer was lost is sent again under another id.
        if parts.len() >= PARTS || bytes + content.bytes > 2 * record.bytes + PART_BYTES {
            return Err(UploadError::TooMuch(record.bytes));
        }
        let part = Kind::Part.fresh();
        let folder = self.folder(id)?;
        content.file.persist(folder.join(&part)).map_err(|error| error.error)?;
        garden_files::sync_folder(&folder)?;
        Ok(PartRecord { id: part, created_at: now(), upload_id: id.to_owned() })
    }

    /// Joins the parts, in this order, into a file. Completing again gives the same file. Blocks.
    pub(crate) fn complete(
        &self,
        id: &str,
        part_ids: &[String],
        md5: Option<&str>,
    ) -> Result<(UploadRecord, FileRecord), UploadError> {
        let _joining = Joining::begin(self, id)?;
        let record = self.get(id)?;
        let made = self.0.files.get_blocking(&record.file_id)?;
        let file = match (record.status, made) {
            (UploadStatus::Completed | UploadStatus::Pending, Some(file)) => file,
            (UploadStatus::Pending, None) => self.join(&record, part_ids, md5)?,
            (status, _) => return Err(UploadError::NotPending { id: id.to_owned(), status: status.name() }),
        };
        let record = UploadRecord { status: UploadStatus::Completed, ..record };
        let _changes = self.lock();
        self.write(&record)?;
        self.remove_parts(id)?;
        Ok((record, file))
    }

    /// Ends an upload without a file. Blocks.
    pub(crate) fn cancel(&self, id: &str) -> Result<UploadRecord, UploadError> {
        let _joining = Joining::begin(self, id)?;
        let _changes = self.lock();
        let record = self.get(id)?;
        if record.status == UploadStatus::Cancelled {
            return Ok(record);
        }
        let record = UploadRecord { status: UploadStatus::Cancelled, ..self.pending(id)? };
        self.write(&record)?;
        self.remove_parts(id)?;
        Ok(record)
    }

    /// Ends uploads whose hour is over, and forgets those that ended a day ago. Blocks.
    pub(crate) fn sweep(&self, now: i64) -> io::Result<()> {
        for entry in fs::read_dir(self.0.data.uploads())? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(id) = name.to_str().filter(|name| Kind::Upload.names(name)) else { continue };
            // A request that comes meanwhile waits: told that another request completes the upload, it would be misled.
            let joining = self.joining();
            if joining.contains(id) {
                continue;
            }
            let _changes = self.lock();
            let end = match self.read(id) {
                Ok(record) => record,
                // A crash came between the folder and its record, or the disk is failing: a later sweep sees.
                Err(_) => {
                    remove_old_folder(&entry.path(), now)?;
                    continue;
                }
            };
            if end.status != UploadStatus::Pending && now.saturating_sub(end.expires_at) > MEMORY {
                fs::remove_dir_all(entry.path())?;
            } else if end.status == UploadStatus::Pending && end.expires_at <= now {
                let told = self.write(&UploadRecord { status: UploadStatus::Expired, ..end });
                told.map_err(io::Error::other)?;
                self.remove_parts(id).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Runs what blocks.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, UploadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let uploads = self.clone();
        Ok(blocking(move || Ok(work(&uploads))).await??)
    }

    fn join(
        &self,
        record: &UploadRecord,
        part_ids: &[String],
        md5: Option<&str>,
    ) -> Result<FileRecord, UploadError> {
        self.pending(&record.id)?;
        let there = self.parts(&record.id)?;
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for part in part_ids {
            let (_, size) =
                there.iter().find(|(id, _)| id == part).ok_or_else(|| UploadError::NoPart(part.clone()))?;
            if !seen.insert(part) {
                return Err(UploadError::Twice(part.clone()));
            }
            bytes += size;
        }
        if bytes != record.bytes {
            return Err(UploadError::Bytes { got: bytes, announced: record.bytes });
        }
        let folder = self.folder(&record.id)?;
        let mut content = Content::create(&self.0.data)?;
        let mut hash = Md5::new();
        for part in part_ids {
            append_file(&mut content, &folder.join(part), |bytes| hash.update(bytes))?;
        }
        let got = hex(&hash.finalize());
        match md5 {
            Some(announced) if !announced.eq_ignore_ascii_case(&got) => {
                Err(UploadError::Md5 { got, announced: announced.to_owned() })
            }
            _ => Ok(self.0.files.keep(content, record.new_file())?),
        }
    }

    fn get(&self, id: &str) -> Result<UploadRecord, UploadError> {
        let record = self.read(id).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => UploadError::Missing(id.to_owned()),
            _ => error.into(),
        })?;
        // The sweeper may not have come yet.
        let late = record.status == UploadStatus::Pending && record.expires_at <= now();
        Ok(if late { UploadRecord { status: UploadStatus::Expired, ..record } } else { record })
    }

    fn pending(&self, id: &str) -> Result<UploadRecord, UploadError> {
        let record = self.get(id)?;
        match record.status {
            UploadStatus::Pending => Ok(record),
            status => Err(UploadError::NotPending { id: id.to_owned(), status: status.name() }),
        }
    }

    fn read(&self, id: &str) -> io::Result<UploadRecord> {
        let folder = self.0.data.upload(id).ok_or(io::ErrorKind::NotFound)?;
        Ok(serde_json::from_slice(&fs::read(folder.join("upload.json"))?)?)
    }

    fn write(&self, record: &UploadRecord) -> Result<(), UploadError> {
        let json = serde_json::to_vec_pretty(record).map_err(io::Error::from)?;
        Ok(garden_files::write(&self.folder(&record.id)?.join("upload.json"), &json)?)
    }

    fn folder(&self, id: &str) -> Result<PathBuf, UploadError> {
        self.0.data.upload(id).ok_or_else(|| UploadError::Missing(id.to_owned()))
    }

    /// The parts that are there, and their bytes.
    fn parts(&self, id: &str) -> Result<Vec<(String, u64)>, UploadError> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(self.folder(id)?)? {
            let entry = entry?;
            if let Some(name) = entry.file_name().to_str().filter(|name| Kind::Part.names(name)) {
                parts.push((name.to_owned(), entry.metadata()?.len()));
            }
        }
        Ok(parts)
    }

    fn remove_parts(&self, id: &str) -> Result<(), UploadError> {
        let folder = self.folder(id)?;
        for (part, _) in self.parts(id)? {
            remove_if_there(&folder.join(part))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn joining(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UploadRecord {
    fn new_file(&self) -> NewFile {
        NewFile {
            id: self.file_id.clone(),
            filename: self.filename.clone(),
            purpose: self.purpose,
            expires_after: self.expires_after,
        }
    }
}

/// The right to end an upload, one way or another.
struct Joining<'a> {
    uploads: &'a Uploads,
    id: &'a str,
}

impl<'a> Joining<'a> {
    fn begin(uploads: &'a Uploads, id: &'a str) -> Result<Self, UploadError> {
        match uploads.joining().insert(id.to_owned()) {
            true => Ok(Self { uploads, id }),
            false => Err(UploadError::Joining(id.to_owned())),
        }
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        self.uploads.joining().remove(self.id);
    }
}

/// Removes the folder of an upload whose record cannot be read, once it is old.
fn remove_old_folder(folder: &std::path::Path, now: i64) -> io::Result<()> {
    let changed = fs::metadata(folder)?.modified()?;
    let changed = changed.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now.saturating_sub(i64::try_from(changed).unwrap_or(i64::MAX)) > MEMORY {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}
