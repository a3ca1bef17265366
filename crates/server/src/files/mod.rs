//! Files: contents by their hash, each once, and a record for every file that was uploaded.
//!
//! Takes contents that were received and gives records; the records in the data folder are the truth, and the index
//! follows them. A name that a client gave is only shown, never part of a path. Contents that no record names any more
//! are removed with the last record.

pub(crate) mod cached;
mod check;
mod incoming;
mod record;
pub(crate) mod uploads;

pub(crate) use incoming::{Content, Incoming, hex};
pub(crate) use record::{FileRecord, FileStatus, Purpose, display_name};

use crate::{
    api::error::ApiError,
    data_dir::DataDir,
    id::Kind,
    store::{FileQuery, Page, Store, StoreError, now},
};
use record::Format;
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// All files. A clone is another handle.
#[derive(Clone)]
pub(crate) struct Files(Arc<Parts>);

struct Parts {
    data: DataDir,
    store: Store,
    /// Held while contents and records change together.
    changes: Mutex<()>,
    in_use: OnceLock<InUse>,
}

/// Whether an unfinished job needs a file.
type InUse = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What a file will be, beside its content.
#[derive(Debug, Clone)]
pub(crate) struct NewFile {
    pub id: String,
    pub filename: String,
    pub purpose: Purpose,
    /// Seconds until it is deleted.
    pub expires_after: Option<u32>,
}

/// Why a file was not kept, found or deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no such file: {0}")]
    Missing(String),
    #[error("file {0} is used by a job that has not finished; cancel the job or wait for its end")]
    InUse(String),
}

impl From<serde_json::Error> for FilesError {
    fn from(error: serde_json::Error) -> Self {
        Self::Io(error.into())
    }
}

impl From<FilesError> for ApiError {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::Store(error) => error.into(),
            FilesError::Io(error) => Self::disk(&error),
            FilesError::Missing(id) => Self::not_found(Kind::File, id),
            FilesError::InUse(_) => Self::bad_request(error).code("file_in_use"),
        }
    }
}

impl Files {
    /// Opens the files of a data folder and brings the index in line with the records. Records that cannot be read
    /// are left alone and told in `notes`.
    pub(crate) fn open(data: &DataDir, store: &Store, notes: &mut Vec<String>) -> Result<Self, FilesError> {
        let files = Self(Arc::new(Parts {
            data: data.clone(),
            store: store.clone(),
            changes: Mutex::default(),
            in_use: OnceLock::new(),
        }));
        files.remove_abandoned()?;
        files.follow_records(notes)?;
        Ok(files)
    }

    /// Sets who knows whether a job needs a file. Only the first call counts.
    pub(crate) fn ask_before_deleting(&self, in_use: impl Fn(&str) -> bool + Send + Sync + 'static) {
        let _ = self.0.in_use.set(Box::new(in_use));
    }

    /// Begins to receive a content of at most `limit` bytes.
    pub(crate) async fn receive(&self, limit: u64) -> Result<Incoming, ApiError> {
        Incoming::begin(&self.0.data, limit).await
    }

    /// The record of a file.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<FileRecord>, FilesError> {
        let record = self.0.store.get_file(id).await?;
        Ok(record.map(|record| serde_json::from_str(&record)).transpose()?)
    }

    /// As [`Files::get`], from a plain thread.
    pub(crate) fn get_blocking(&self, id: &str) -> Result<Option<FileRecord>, FilesError> {
        let record = self.0.store.get_file_blocking(id)?;
        Ok(record.map(|record| serde_json::from_str(&record)).transpose()?)
    }

    /// A page of records.
    pub(crate) async fn list(&self, query: FileQuery) -> Result<Page<FileRecord>, FilesError> {
        let page = self.0.store.list_files(query).await?;
        let data = page.data.iter().map(|record| serde_json::from_str(record)).collect::<Result<_, _>>()?;
        Ok(Page { data, has_more: page.has_more })
    }

    /// Where the content of a file lies.
    pub(crate) fn content(&self, record: &FileRecord) -> Option<PathBuf> {
        Some(self.0.data.blob(&record.sha256)?.join(format!("rows.{}", record.format.extension())))
    }

    /// Keeps a content as a file. All of it is done or nothing. Blocks.
    pub(crate) fn keep(&self, content: Content, new: NewFile) -> Result<FileRecord, FilesError> {
        let mut head = Vec::new();
        content.file.reopen()?.take(64).read_to_end(&mut head)?;
        let format = Format::of(&new.filename, &head);
        let fault = match new.purpose {
            Purpose::FineTune => check::check(content.file.reopen()?, format)?,
            _ => None,
        };
        let created_at = now();
        let record = FileRecord {
            id: new.id,
            filename: new.filename,
            purpose: new.purpose,
            bytes: content.bytes,
            sha256: content.sha256(),
            format,
            created_at,
            expires_at: new.expires_after.map(|seconds| created_at.saturating_add(seconds.into())),
            status: if fault.is_some() { FileStatus::Error } else { FileStatus::Processed },
            status_details: fault,
        };
        let _changes = self.lock();
        let kept = self.put_content(content, &record).and_then(|()| self.put_record(&record));
        if kept.is_err() {
            self.forget(&record);
        }
        kept.map(|()| record)
    }

    /// Keeps a text of the server's own as a file. Blocks.
    pub(crate) fn keep_text(&self, text: &str, new: NewFile) -> Result<FileRecord, FilesError> {
        let mut content = Content::create(&self.0.data)?;
        content.append(text.as_bytes())?;
        self.keep(content, new)
    }

    /// Deletes a file, and its content if no other file has it. Blocks.
    pub(crate) fn delete(&self, id: &str) -> Result<(), FilesError> {
        let missing = || FilesError::Missing(id.to_owned());
        let _changes = self.lock();
        let record = self.get_blocking(id)?.ok_or_else(missing)?;
        if self.0.in_use.get().is_some_and(|in_use| in_use(id)) {
            return Err(FilesError::InUse(id.to_owned()));
        }
        let path = self.0.data.file(id).ok_or_else(missing)?;
        // The record goes first: without it the file is gone, whatever is interrupted.
        remove_if_there(&path)?;
        garden_files::sync_folder(&self.0.data.files())?;
        self.0.store.delete_files_blocking(vec![id.to_owned()])?;
        self.release_content(&record)
    }

    /// Deletes files whose time has come, except those that a job needs. Blocks.
    pub(crate) fn sweep(&self) -> Result<(), FilesError> {
        for id in self.0.store.expired_files(now())? {
            match self.delete(&id) {
                Ok(()) | Err(FilesError::Missing(_) | FilesError::InUse(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_content(&self, content: Content, record: &FileRecord) -> Result<(), FilesError> {
        let path = self.content(record).ok_or_else(|| FilesError::Missing(record.id.clone()))?;
        let folder = path.parent().unwrap_or(&path);
        garden_files::create_folder(folder)?;
        if fs::metadata(&path).is_ok_and(|there| there.len() == record.bytes) {
            return Ok(());
        }
        // The same bytes under another extension are the same content.
        let twin = fs::read_dir(folder)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|twin| *twin != path && fs::metadata(twin).is_ok_and(|there| there.len() == record.bytes));
        match twin {
            Some(twin) => fs::hard_link(twin, &path)?,
            None => {
                content.file.as_file().sync_all()?;
                content.file.persist(&path).map_err(|error| error.error)?;
            }
        }
        Ok(garden_files::sync_folder(folder)?)
    }

    fn put_record(&self, record: &FileRecord) -> Result<(), FilesError> {
        let path = self.0.data.file(&record.id).ok_or_else(|| FilesError::Missing(record.id.clone()))?;
        garden_files::write(&path, &serde_json::to_vec_pretty(record)?)?;
        Ok(self.0.store.put_files_blocking(vec![record.to_row()?])?)
    }

    /// Takes back what was done of a file that could not be kept.
    fn forget(&self, record: &FileRecord) {
        if let Some(path) = self.0.data.file(&record.id) {
            let _ = fs::remove_file(path);
        }
        // The row came last, so there is none.
        let _ = self.release_content(record);
    }

    /// Removes a content that no record names any more.
    fn release_content(&self, record: &FileRecord) -> Result<(), FilesError> {
        let Some(path) = self.content(record) else { return Ok(()) };
        let mut shared = false;
        for other in self.0.store.files_with_content(&record.sha256)? {
            let other: FileRecord = serde_json::from_str(&other)?;
            if other.id != record.id && other.format == record.format {
                return Ok(());
            }
            shared |= other.id != record.id;
        }
        remove_if_there(&path)?;
        cached::forget(&self.0.data, &path);
        // The folder stays while it holds the same bytes under another extension. It may hold an index beside
        // them.
        if let Some(folder) = path.parent().filter(|_| !shared) {
            let _ = fs::remove_dir_all(folder);
        }
        Ok(())
    }

    /// Removes contents that were being received when the last server ended.
    fn remove_abandoned(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.0.data.uploads())? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(incoming::PREFIX.as_bytes()) {
                remove_if_there(&entry.path())?;
            }
        }
        Ok(())
    }

    fn follow_records(&self, notes: &mut Vec<String>) -> Result<(), FilesError> {
        let known: HashSet<String> = self.0.store.all_file_ids()?.into_iter().collect();
        let mut there = HashSet::new();
        let mut new = Vec::new();
        for entry in fs::read_dir(self.0.data.files())? {
            let path = entry?.path();
            let Some(id) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else {
                continue;
            };
            if !Kind::File.names(id) {
                continue;
            }
            there.insert(id.to_owned());
            if known.contains(id) {
                continue;
            }
            let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<FileRecord>(&bytes)?));
            match read {
                Ok(record) if record.id == id => new.push(record),
                Ok(_) => notes.push(format!("{}: the record is of another file", path.display())),
                Err(error) => notes.push(format!("{}: {error}", path.display())),
            }
        }
        new.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        let rows = new.iter().map(FileRecord::to_row).collect::<Result<Vec<_>, _>>()?;
        self.0.store.put_files_blocking(rows)?;
        let gone: Vec<String> = known.into_iter().filter(|id| !there.contains(id)).collect();
        let records = gone.iter().map(|id| self.get_blocking(id)).collect::<Result<Vec<_>, _>>()?;
        self.0.store.delete_files_blocking(gone)?;
        // Their deletion was interrupted.
        records.iter().flatten().try_for_each(|record| self.release_content(record))
    }
}

/// Adds the bytes of a file; `also` sees them too.
fn append_file(content: &mut Content, path: &Path, mut also: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                also(&buffer[..count]);
                content.append(&buffer[..count])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
