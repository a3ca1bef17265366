//! Finds the encoded bytes of an image.
//!
//! Takes the [`ImageSource`] of a row and gives at most [`MAX_IMAGE_BYTES`] bytes. A row reads only files
//! below the folder of its data file and below those that the user named, whatever its paths and links say,
//! and reaches other machines only where the user allowed it.

use crate::{error::BadRow, remote::RemoteImages, row::ImageSource};
use std::{
    borrow::Cow,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// The largest encoded image that is read. Camera JPEGs have 10 MB, scanned TIFFs up to 100.
pub const MAX_IMAGE_BYTES: u64 = 128 << 20;

/// The folders that the images of a data file are in.
#[derive(Debug, Clone)]
pub(crate) struct ImageRoot {
    /// What relative paths start from: the first folder that has the file counts.
    starts: Vec<PathBuf>,
    /// What no path may leave, with all links resolved.
    bounds: Vec<PathBuf>,
    /// Whether every path that cannot be read gets the same answer, so that rows cannot find out which files
    /// there are.
    silent: bool,
}

impl ImageRoot {
    /// No folder: rows have their images inside them.
    pub fn none() -> Self {
        Self { starts: Vec::new(), bounds: Vec::new(), silent: true }
    }

    /// These folders, one after the other, and no other.
    pub fn only(folders: &[PathBuf]) -> io::Result<Self> {
        Self { starts: Vec::new(), bounds: Vec::new(), silent: false }.with_roots(folders)
    }

    /// The same folders; what is not found there is not described.
    pub fn silently(mut self) -> Self {
        self.silent = true;
        self
    }

    /// A folder that paths start from and that none may leave.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Self::within(folder, folder)
    }

    /// A folder whose links may lead elsewhere below `bounds`: the hub's cache is made of such links.
    pub fn within(start: &Path, bounds: &Path) -> io::Result<Self> {
        Ok(Self { starts: vec![start.to_owned()], bounds: vec![bounds.canonicalize()?], silent: false })
    }

    /// The same, with folders that the user named: paths may start from there, before all others, and end
    /// there.
    pub fn with_roots(mut self, roots: &[PathBuf]) -> io::Result<Self> {
        for root in roots {
            self.bounds.push(root.canonicalize()?);
        }
        self.starts.splice(0..0, roots.iter().cloned());
        Ok(self)
    }

    /// The file that a path means, with all links resolved. The error about a path that leads outside the
    /// folders says where it leads.
    fn find(&self, path: &Path) -> Result<PathBuf, BadRow> {
        self.search(path).map_err(|error| if self.silent { BadRow::ImageNotInside } else { error })
    }

    fn search(&self, path: &Path) -> Result<PathBuf, BadRow> {
        let mut failed = BadRow::NoSuchImage { path: path.to_owned(), folders: self.starts.clone() };
        for start in &self.starts {
            match start.join(path).canonicalize() {
                Ok(whole) if self.bounds.iter().any(|bounds| whole.starts_with(bounds)) => return Ok(whole),
                Ok(leads_to) => {
                    let bounds = self.bounds.clone();
                    failed = BadRow::OutsideRoot { path: path.to_owned(), leads_to, bounds };
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if !matches!(failed, BadRow::OutsideRoot { .. }) => {
                    failed = BadRow::ImageFile { path: path.to_owned(), reason: error.to_string() };
                }
                Err(_) => {}
            }
        }
        Err(failed)
    }

    /// The size of an image file below the roots; none if it cannot be read.
    pub(crate) fn size(&self, path: &Path) -> Option<u64> {
        Some(self.find(path).ok()?.metadata().ok()?.len())
    }

    /// Reads an image file below the roots.
    fn read(&self, path: &Path) -> Result<Vec<u8>, BadRow> {
        let whole = self.find(path)?;
        let failed = |reason: String| BadRow::ImageFile { path: path.to_owned(), reason };
        // Checked before opening: opening a pipe would wait for its writer for ever.
        if !whole.metadata().is_ok_and(|about| about.is_file()) {
            return Err(failed("not a file".into()));
        }
        let mut bytes = Vec::new();
        let file = File::open(&whole).map_err(|error| failed(error.to_string()))?;
        file.take(MAX_IMAGE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
        if bytes.len() as u64 > MAX_IMAGE_BYTES {
            return Err(failed(format!("larger than {MAX_IMAGE_BYTES} bytes")));
        }
        Ok(bytes)
    }
}

/// The encoded bytes of an image.
pub(crate) fn bytes<'a>(
    source: &'a ImageSource,
    root: &ImageRoot,
    remote: Option<&RemoteImages>,
) -> Result<Cow<'a, [u8]>, BadRow> {
    match source {
        ImageSource::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
        // A row that was read from a file holds no objects.
        ImageSource::Held(_) => Err(BadRow::NoImage("an object of another program")),
        ImageSource::Path(path) => root.read(path).map(Cow::Owned),
        ImageSource::Url(url) => match remote {
            Some(remote) => remote.fetch(url).map(Cow::Owned),
            None => Err(BadRow::RemoteNotAllowed(url.clone())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// `inside/` with an image, links and a pipe; `secret` beside it.
    fn folders() -> (tempfile::TempDir, ImageRoot) {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("inside");
        fs::create_dir_all(inside.join("deep")).unwrap();
        fs::write(inside.join("a.png"), "image").unwrap();
        fs::write(top.path().join("secret"), "secret").unwrap();
        symlink(top.path().join("secret"), inside.join("link.png")).unwrap();
        symlink(inside.join("a.png"), inside.join("deep/fine.png")).unwrap();
        let root = ImageRoot::new(&inside).unwrap();
        (top, root)
    }

    #[test]
    fn reads_files_below_the_root() {
        let (top, root) = folders();
        let absolute = top.path().join("inside/a.png");
        for path in ["a.png", "deep/../a.png", "deep/fine.png", absolute.to_str().unwrap()] {
            let source = ImageSource::Path(path.into());
            assert_eq!(&*bytes(&source, &root, None).unwrap(), b"image", "{path}");
        }
    }

    #[test]
    fn no_path_and_no_link_leaves_the_root() {
        let (top, root) = folders();
        let absolute = top.path().join("secret");
        for path in ["../secret", "link.png", "deep/../../secret", absolute.to_str().unwrap()] {
            let error = bytes(&ImageSource::Path(path.into()), &root, None).unwrap_err();
            assert!(matches!(error, BadRow::OutsideRoot { .. }), "{path}: {error}");
        }
        let wider = ImageRoot::within(&top.path().join("inside"), top.path()).unwrap();
        assert_eq!(&*bytes(&ImageSource::Path("link.png".into()), &wider, None).unwrap(), b"secret");
    }

    /// `data/` with rows, links and images; `images/` beside it; `secret` above a folder that nobody named.
    fn apart() -> (tempfile::TempDir, ImageRoot) {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        for file in ["data/own.png", "images/a.png", "images/deep/b.png", "photos/c.png", "secret"] {
            fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs::write(path(file), file).unwrap();
        }
        symlink(path("photos"), path("data/linked")).unwrap();
        let root = ImageRoot::new(&path("data")).unwrap();
        (top, root)
    }

    #[test]
    fn every_way_to_write_a_path_works_once_its_folder_is_named() {
        let (top, root) = apart();
        let absolute = top.path().join("images/a.png");
        let cases = [
            (absolute.to_str().unwrap(), "images", "images/a.png"),
            ("../images/a.png", "images", "images/a.png"),
            ("a.png", "images", "images/a.png"),
            ("deep/../a.png", "images", "images/a.png"),
            // As one writes paths in the folder that everything is in.
            ("images/deep/b.png", ".", "images/deep/b.png"),
            ("linked/c.png", "photos", "photos/c.png"),
            // What lies beside the rows can be read as before.
            ("own.png", "images", "data/own.png"),
        ];
        for (path, folder, content) in cases {
            let source = ImageSource::Path(path.into());
            if content != "data/own.png" {
                assert!(bytes(&source, &root, None).is_err(), "{path} without a word");
            }
            let named = root.clone().with_roots(&[top.path().join(folder)]).unwrap();
            let read = bytes(&source, &named, None).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(&*read, content.as_bytes(), "{path} below {folder}");
        }
        let both = root.with_roots(&[top.path().join("photos"), top.path().join("images")]).unwrap();
        for (path, content) in [("c.png", "photos/c.png"), ("a.png", "images/a.png")] {
            assert_eq!(&*bytes(&ImageSource::Path(path.into()), &both, None).unwrap(), content.as_bytes());
        }
    }

    #[test]
    fn a_file_outside_every_folder_is_refused_with_where_it_is() {
        let (top, root) = apart();
        let named = root.with_roots(&[top.path().join("images")]).unwrap();
        let secret = top.path().join("secret");
        for path in ["../secret", "deep/../../secret", "linked/c.png", secret.to_str().unwrap()] {
            let error = bytes(&ImageSource::Path(path.into()), &named, None).unwrap_err().to_string();
            let leads_to = if path.starts_with("linked") { "photos/c.png" } else { "secret" };
            for said in [path, leads_to, "outside", "images"] {
                assert!(error.contains(said), "{path}: no {said:?} in {error}");
            }
        }
    }

    #[test]
    fn says_which_file_is_missing_or_none() {
        let (_top, root) = folders();
        for path in ["gone.png", "deep"] {
            let error = bytes(&ImageSource::Path(path.into()), &root, None).unwrap_err();
            assert!(error.to_string().starts_with(&format!("image {path}: ")), "{error}");
            assert_eq!(matches!(error, BadRow::NoSuchImage { .. }), path == "gone.png", "{error}");
        }
        let whole = bytes(&ImageSource::Path("/gone/a.png".into()), &root, None).unwrap_err();
        assert_eq!(whole.to_string(), "image /gone/a.png: no such file");
    }

    #[test]
    fn rows_of_strangers_learn_nothing_about_files() {
        let (top, root) = folders();
        let secret = top.path().join("secret");
        let gone = top.path().join("gone");
        for root in [ImageRoot::none(), root.silently()] {
            for path in [&*secret, &*gone, Path::new("../secret"), Path::new("/etc/shadow")] {
                let error = bytes(&ImageSource::Path(path.to_owned()), &root, None).unwrap_err();
                assert!(matches!(error, BadRow::ImageNotInside), "{error}");
            }
        }
    }

    #[test]
    fn remote_images_need_permission() {
        let (_top, root) = folders();
        let source = ImageSource::Url("https://example.org/a.png".into());
        let error = bytes(&source, &root, None).unwrap_err();
        assert!(matches!(error, BadRow::RemoteNotAllowed(_)), "{error}");
    }
}
