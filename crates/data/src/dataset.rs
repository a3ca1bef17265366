//! A dataset: files of rows behind one numbering.
//!
//! Takes a file, a folder or a hub id and gives any row by its number, as a [`Conversation`] with its shape.
//! Memory holds a few words for each file: offsets stay in their index, and a [`RowReader`] reads a row when
//! its thread asks for it.

use crate::{
    card::Card,
    columns::Columns,
    error::{BadRow, DataError},
    hub,
    index::{self, Index},
    missing,
    progress::Progress,
    remote::RemoteImages,
    row::{Conversation, ImageSource, RowId},
    scan,
    shape::{self, Reading, Shape},
    source::{self, ImageRoot},
    split::{self, Chosen, LeftSplit, NotRead, SplitChoice},
    staging,
    table::Table,
    value::Value,
};
use std::{
    borrow::Cow,
    collections::VecDeque,
    env, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The longest row that is read: several photos in base64.
pub(crate) const MAX_ROW_BYTES: u64 = 256 << 20;
/// Files that a reader keeps open at once.
const OPEN_FILES: usize = 16;
/// Folders inside folders that are looked through.
const MAX_DEPTH: usize = 8;
/// JSON files that the `datasets` library leaves beside the data, and that hold no rows.
const NOT_DATA: [&str; 3] = ["dataset_info.json", "dataset_infos.json", "state.json"];

/// Set in the environment of a process, it does what [`DatasetOptions::images_inside`] does, for every
/// dataset that the process and its children open: whoever starts them for strangers can forget no command.
pub const IMAGES_INSIDE: &str = "MODEL_GARDEN_IMAGES_INSIDE";

/// How a dataset is read.
#[derive(Debug, Clone, Default)]
pub struct DatasetOptions {
    /// Folders that rows read their images from, besides the folder of their file. Relative paths are looked
    /// for here first.
    pub image_roots: Vec<PathBuf>,
    /// Whether rows may name images on other machines.
    pub allow_remote_images: bool,
    /// Whether the rows are a stranger's, who should not find out which files there are: images lie inside
    /// the rows, or inside a dataset of the hub, and every other path gets the same answer.
    pub images_inside: bool,
    /// Which columns mean what, where their names do not say it.
    pub columns: Columns,
    /// Which split is read, where the names of files tell splits apart.
    pub split: SplitChoice,
}

/// Files of rows behind one numbering.
#[derive(Debug)]
pub struct Dataset {
    files: Vec<DataFile>,
    /// The number of the first row of each file, and the number of all rows.
    starts: Vec<u64>,
    remote: Option<RemoteImages>,
    columns: Columns,
    fingerprint: u64,
    split: Option<String>,
    left: Vec<LeftSplit>,
    links: Vec<PathBuf>,
}

#[derive(Debug, Clone)]
struct DataFile {
    /// What the user named, and messages name.
    path: Arc<Path>,
    /// Where the rows are read: the same, or a copy of it that was written out.
    rows: PathBuf,
    kind: Kind,
    root: ImageRoot,
    index_folder: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Parquet,
}

/// A row as it was read.
#[derive(Debug)]
pub struct Row {
    /// Where it is.
    pub id: RowId,
    /// How it is written.
    pub shape: Shape,
    /// What it says.
    pub conversation: Conversation,
    /// Fields that no shape reads, by name.
    pub ignored: Vec<String>,
}

/// The data files behind a name, and what their images may reach.
pub(crate) struct Found {
    pub chosen: Chosen,
    /// Where links may lead, where that is not the file's own folder.
    pub bounds: Option<PathBuf>,
    /// Where indexes are kept, where that is not beside the data.
    pub index_folder: Option<PathBuf>,
}

impl Dataset {
    /// Opens a file, a folder of files, or a dataset of the hub (`owner/name`, `owner/name@revision`). One
    /// without rows is refused: nothing can be learned from it, and it is seldom meant.
    pub fn open(name: &str, options: &DatasetOptions, progress: &dyn Progress) -> Result<Self, DataError> {
        let path = Path::new(name);
        let local = |chosen| Found { chosen, bounds: None, index_folder: None };
        let found = if path.is_dir() {
            local(choose_in(path, &options.split)?)
        } else if path.exists() {
            local(one_file(path, &options.split)?)
        } else if hub::is_id(name) {
            hub::find(name, &options.split, progress)?
        } else {
            let reason = missing::reason(path, "file or folder");
            return Err(DataError::NoData { path: path.to_owned(), reason });
        };
        let dataset = Self::from_files(found, options, progress)?;
        match dataset.rows() {
            0 => Err(DataError::NoData { path: path.to_owned(), reason: "there are no rows in it".into() }),
            _ => Ok(dataset),
        }
    }

    pub(crate) fn from_files(
        found: Found,
        options: &DatasetOptions,
        progress: &dyn Progress,
    ) -> Result<Self, DataError> {
        if let Some(root) = options.image_roots.iter().find(|root| !root.is_dir()) {
            return Err(DataError::ImageRoot(root.clone()));
        }
        let mut dataset = Self {
            files: Vec::with_capacity(found.chosen.files.len()),
            starts: vec![0],
            remote: options.allow_remote_images.then(RemoteImages::default),
            columns: options.columns.clone(),
            fingerprint: 0,
            split: found.chosen.split.clone(),
            left: found.chosen.left.clone(),
            links: found.chosen.links.clone(),
        };
        let (mut rows, mut prints) = (0u64, Vec::new());
        for path in &found.chosen.files {
            let file = DataFile::new(path, &found, options, progress)?;
            let (more, print) = match file.open(&dataset.columns, progress)? {
                OpenFile::Text(index) => (index.rows(), index.fingerprint()),
                OpenFile::Parquet(table) => (table.rows(), table.fingerprint()),
            };
            rows = rows.checked_add(more).ok_or_else(|| too_many(path))?;
            prints.extend(print.to_le_bytes());
            dataset.starts.push(rows);
            dataset.files.push(file);
        }
        prints.extend(dataset.columns.to_string().bytes());
        dataset.fingerprint = index::fnv1a(&prints);
        Ok(dataset)
    }

    /// Joins datasets into one, in which each row appears as often as the weight of its dataset says. A
    /// single dataset of weight 1 stays as it is, so that its runs can be resumed.
    pub fn join(mut parts: Vec<(Self, u64)>) -> Result<Self, DataError> {
        if let [(_, 1)] = parts[..] {
            return Ok(parts.remove(0).0);
        }
        let prints = parts.iter().flat_map(|(part, weight)| [part.fingerprint, *weight]);
        let prints: Vec<u8> = prints.flat_map(u64::to_le_bytes).collect();
        let (first, _) = parts.first().ok_or(DataError::NoRows)?;
        let mut joined = Self {
            files: Vec::new(),
            starts: vec![0],
            remote: first.remote.clone(),
            columns: first.columns.clone(),
            split: first.split.clone(),
            left: parts.iter().flat_map(|(part, _)| part.left.iter().cloned()).collect(),
            links: parts.iter().flat_map(|(part, _)| part.links.iter().cloned()).collect(),
            fingerprint: index::fnv1a(&prints),
        };
        parts.iter().try_for_each(|(part, weight)| joined.append(part, *weight))?;
        Ok(joined)
    }

    fn append(&mut self, part: &Self, weight: u64) -> Result<(), DataError> {
        let lengths: Vec<u64> = part.starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for _ in 0..weight {
            for (file, length) in part.files.iter().zip(&lengths) {
                let rows = self.rows().checked_add(*length).ok_or_else(|| too_many(&file.path))?;
                self.starts.push(rows);
                self.files.push(file.clone());
            }
        }
        Ok(())
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// A number that changes when the rows do: a position saved for one dataset is worth nothing in another.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// What lies beside the rows and is not read: other splits, and links to folders of rows.
    pub fn not_read(&self) -> Vec<NotRead> {
        let splits = || NotRead::Splits { read: self.split.clone(), left: self.left.clone() };
        let splits = (!self.left.is_empty()).then(splits);
        splits.into_iter().chain(self.links.iter().cloned().map(NotRead::Link)).collect()
    }

    /// The number of a row's file, the file, and the row's number in it from 0.
    fn locate(&self, row: u64) -> Result<(usize, &DataFile, u64), DataError> {
        let number = self.starts.partition_point(|start| *start <= row).saturating_sub(1);
        match (self.files.get(number), self.starts.get(number)) {
            (Some(file), Some(start)) => Ok((number, file, row - start)),
            _ => Err(DataError::NoSuchRow { row, rows: self.rows() }),
        }
    }

    /// Where a row is.
    pub(crate) fn row_id(&self, row: u64) -> Result<RowId, DataError> {
        let (_, file, within) = self.locate(row)?;
        Ok(RowId { file: file.path.clone(), number: within + 1 })
    }
}

/// A single file. It is its own split, and naming another split is refused.
fn one_file(path: &Path, wanted: &SplitChoice) -> Result<Chosen, DataError> {
    let name = path.file_name().map_or(path, Path::new);
    match wanted {
        SplitChoice::Named(_) => split::choose(parent(path), vec![path.to_owned()], None, wanted),
        _ => Ok(Chosen {
            files: vec![path.to_owned()],
            split: split::split_of(name),
            left: Vec::new(),
            links: Vec::new(),
        }),
    }
}

/// The folder of a file: `.` for a name alone.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn too_many(path: &Path) -> DataError {
    DataError::File { path: path.to_owned(), reason: "more rows than can be counted".into() }
}

impl DataFile {
    fn new(
        path: &Path,
        found: &Found,
        options: &DatasetOptions,
        progress: &dyn Progress,
    ) -> Result<Self, DataError> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        let kind = if extension == "parquet" { Kind::Parquet } else { Kind::Text };
        if path.exists() && extension != "parquet" && !staging::is_text(path) {
            let reason =
                "not a data file: expected .jsonl, .json (also .gz or .zst), .csv or .parquet".into();
            return Err(DataError::NoData { path: path.to_owned(), reason });
        }
        let folder = parent(path);
        let inside = options.images_inside || env::var_os(IMAGES_INSIDE).is_some();
        let root = match &found.bounds {
            Some(bounds) if inside => {
                ImageRoot::within(folder, bounds).map_err(DataError::io(bounds))?.silently()
            }
            None if inside => ImageRoot::none(),
            Some(bounds) => ImageRoot::within(folder, bounds).map_err(DataError::io(bounds))?,
            None => ImageRoot::new(folder).map_err(DataError::io(path))?,
        };
        let root = root.with_roots(&options.image_roots).map_err(DataError::io(folder))?;
        let index_folder = found.index_folder.clone();
        let rows = staging::staged(path, index_folder.as_deref(), progress)?;
        Ok(Self { path: path.into(), rows, kind, root, index_folder })
    }

    fn open(&self, columns: &Columns, progress: &dyn Progress) -> Result<OpenFile, DataError> {
        Ok(match self.kind {
            Kind::Text => {
                let index = Index::open(&self.rows, self.index_folder.as_deref(), progress);
                OpenFile::Text(index.map_err(|error| self.named(error))?)
            }
            Kind::Parquet => OpenFile::Parquet(Box::new(Table::open(&self.path, columns)?)),
        })
    }

    /// An error about a copy that was written out, under the name that the user knows.
    fn named(&self, error: DataError) -> DataError {
        match error {
            DataError::File { path, reason } if path == self.rows => {
                DataError::File { path: self.path.to_path_buf(), reason }
            }
            error => error,
        }
    }
}

/// Whether a file holds rows, by its name. A card that names files may name any that can be read.
pub(crate) fn is_data(path: &Path, card: Option<&Card>) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parquet = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
    let is_text = if card.is_some() { staging::is_text } else { staging::is_text_of_folder };
    !name.starts_with('.') && !NOT_DATA.contains(&&*name) && (parquet || is_text(path))
}

/// The data files of a split, of those below a folder.
pub(crate) fn choose_in(folder: &Path, split: &SplitChoice) -> Result<Chosen, DataError> {
    let card = Card::of_folder(folder)?;
    let Listing { files, links } = files_in(folder, card.as_ref())?;
    Ok(Chosen { links, ..split::choose(folder, files, card.as_ref(), split)? })
}

/// What is below a folder.
#[derive(Default)]
struct Listing {
    /// Data files, in the order of their names.
    files: Vec<PathBuf>,
    /// Links to folders that hold data files. They are not followed: one to a folder above would never end.
    links: Vec<PathBuf>,
}

/// The data files of a folder and the folders below it.
fn files_in(folder: &Path, card: Option<&Card>) -> Result<Listing, DataError> {
    let mut found = Listing::default();
    walk(folder, card, 0, &mut found)?;
    found.files.sort_unstable();
    found.links.sort_unstable();
    if found.files.is_empty() {
        let reason = match found.links.first() {
            Some(link) => {
                format!("rows only behind links, which are not followed: name {} itself", link.display())
            }
            None => "no .jsonl, .json or .parquet file in this folder, nor a CSV file of a split".into(),
        };
        return Err(DataError::NoData { path: folder.to_owned(), reason });
    }
    Ok(found)
}

fn walk(folder: &Path, card: Option<&Card>, depth: usize, found: &mut Listing) -> Result<(), DataError> {
    for entry in fs::read_dir(folder).map_err(DataError::io(folder))? {
        let entry = entry.map_err(DataError::io(folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(DataError::io(&path))?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if kind.is_dir() && !hidden && depth < MAX_DEPTH {
            walk(&path, card, depth + 1, found)?;
        } else if kind.is_symlink() && !hidden && path.is_dir() {
            let is_rows = |entry: fs::DirEntry| is_data(&entry.path(), None) && entry.path().is_file();
            if fs::read_dir(&path).is_ok_and(|entries| entries.flatten().any(is_rows)) {
                found.links.push(path);
            }
        } else if !kind.is_dir() && is_data(&path, card) {
            found.files.push(path);
        }
    }
    Ok(())
}

enum OpenFile {
    Text(Index),
    Parquet(Box<Table>),
}

/// Reads rows for one thread: keeps the last files open and a buffer for the text of a row.
pub struct RowReader {
    dataset: Arc<Dataset>,
    /// Last used at the back.
    open: VecDeque<(usize, OpenFile)>,
    buffer: Vec<u8>,
}

impl RowReader {
    /// A reader of a dataset.
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset, open: VecDeque::new(), buffer: Vec::new() }
    }

    /// Reads a row: a row that is bad is [`DataError::Row`], and the next one can still be read.
    pub fn read(&mut self, row: u64) -> Result<Row, DataError> {
        let dataset = self.dataset.clone();
        let (number, file, within) = dataset.locate(row)?;
        let id = RowId { file: file.path.clone(), number: within + 1 };
        let bad = |reason| DataError::Row { row: id.clone(), reason };
        let mut value = match ready(&mut self.open, number, file, &dataset.columns)? {
            OpenFile::Text(index) => {
                let span = index.span(within)?.ok_or_else(|| changed(file))?;
                let bytes = span.end - span.start;
                if bytes > MAX_ROW_BYTES {
                    return Err(bad(BadRow::TooLarge { bytes, limit: MAX_ROW_BYTES }));
                }
                index.read(span, &mut self.buffer).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => changed(file),
                    _ => DataError::io(&*file.path)(error),
                })?;
                let text = scan::trim(&self.buffer, index.layout());
                Value::from_json(text)
                    .map_err(|error| bad(BadRow::Json(Value::why_not_json(text, &error))))?
            }
            OpenFile::Parquet(table) if within < table.rows() => table.row(within)?,
            OpenFile::Parquet(_) => return Err(changed(file)),
        };
        let left_out = dataset.columns.rename(&mut value).map_err(bad)?;
        let Reading { shape, conversation, mut ignored } = shape::read(&value).map_err(bad)?;
        ignored.extend(left_out);
        Ok(Row { id, shape, conversation, ignored })
    }

    /// A number that is equal for equal images and differs for most others, found without reading a file.
    pub(crate) fn image_size(&self, row: u64, image: &ImageSource) -> Option<u64> {
        match image {
            ImageSource::Bytes(bytes) => Some(bytes.len() as u64),
            ImageSource::Path(path) => self.dataset.locate(row).ok()?.1.root.size(path),
            ImageSource::Url(url) => Some(url.len() as u64),
            ImageSource::Held(_) => None,
        }
    }

    /// Reads the encoded images of a row one after another and shows each to `visit`, with its place in the row. The
    /// first that is missing or that `visit` refuses ends it: what comes after is not read.
    pub(crate) fn for_each_image<'a>(
        &self,
        number: u64,
        row: &'a Row,
        mut visit: impl FnMut(usize, Cow<'a, [u8]>) -> Result<(), BadRow>,
    ) -> Result<(), DataError> {
        for (index, image) in row.conversation.images().enumerate() {
            let bytes = self.image_bytes(number, image)?;
            visit(index, bytes).map_err(|reason| DataError::Row { row: row.id.clone(), reason })?;
        }
        Ok(())
    }

    /// The encoded bytes of an image of a row.
    pub fn image_bytes<'a>(&self, row: u64, image: &'a ImageSource) -> Result<Cow<'a, [u8]>, DataError> {
        let (_, file, within) = self.dataset.locate(row)?;
        source::bytes(image, &file.root, self.dataset.remote.as_ref()).map_err(|reason| DataError::Row {
            row: RowId { file: file.path.clone(), number: within + 1 },
            reason,
        })
    }
}

fn changed(file: &DataFile) -> DataError {
    DataError::File {
        path: file.path.to_path_buf(),
        reason: "it has fewer rows than when it was opened".into(),
    }
}

/// Moves a file to the back of the open ones, opening it where needed.
fn ready<'a>(
    open: &'a mut VecDeque<(usize, OpenFile)>,
    number: usize,
    file: &DataFile,
    columns: &Columns,
) -> Result<&'a mut OpenFile, DataError> {
    let opened = match open.iter().position(|(open, _)| *open == number).and_then(|place| open.remove(place))
    {
        Some((_, opened)) => opened,
        None => file.open(columns, &())?,
    };
    if open.len() == OPEN_FILES {
        open.pop_front();
    }
    open.push_back((number, opened));
    // The file was pushed a line above.
    open.back_mut().map(|(_, opened)| opened).ok_or_else(|| changed(file))
}
