//! From where an image is to its encoded bytes.
//!
//! In comes the [`ImageSource`] of a row; out go bytes, at most [`MAX_IMAGE_BYTES`]. A row reads only files below its
//! root, whatever its paths and links say, and reaches other machines only where the user allowed it.

use crate::{error::BadRow, remote::RemoteImages, row::ImageSource};
use std::{
    borrow::Cow,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// The largest encoded image that is read. Camera JPEGs have 10 MB, scanned TIFFs up to 100.
pub const MAX_IMAGE_BYTES: u64 = 128 << 20;

/// The folder that the images of a data file are in.
#[derive(Debug, Clone)]
pub struct ImageRoot {
    /// What relative paths are relative to.
    base: PathBuf,
    /// What no path may leave, with all links resolved.
    bounds: PathBuf,
}

impl ImageRoot {
    /// A folder that is both.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self { base: folder.to_owned(), bounds: folder.canonicalize()? })
    }

    /// A folder whose links may lead elsewhere below `bounds`: the hub's cache is made of such links.
    pub fn within(base: &Path, bounds: &Path) -> io::Result<Self> {
        Ok(Self { base: base.to_owned(), bounds: bounds.canonicalize()? })
    }

    /// Reads an image file below the root.
    fn read(&self, path: &Path) -> Result<Vec<u8>, BadRow> {
        let failed = |reason: String| BadRow::ImageFile { path: path.to_owned(), reason };
        let whole = self.base.join(path).canonicalize().map_err(|error| failed(error.to_string()))?;
        if !whole.starts_with(&self.bounds) {
            return Err(BadRow::OutsideRoot { path: path.to_owned(), root: self.bounds.clone() });
        }
        // Asked before opening: opening a pipe would wait for its writer for ever.
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
pub fn bytes<'a>(
    source: &'a ImageSource,
    root: &ImageRoot,
    remote: Option<&RemoteImages>,
) -> Result<Cow<'a, [u8]>, BadRow> {
    match source {
        ImageSource::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
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

    /// `inside/` with a picture, links and a pipe; `secret` beside it.
    fn folders() -> (tempfile::TempDir, ImageRoot) {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("inside");
        fs::create_dir_all(inside.join("deep")).unwrap();
        fs::write(inside.join("a.png"), "picture").unwrap();
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
            assert_eq!(&*bytes(&source, &root, None).unwrap(), b"picture", "{path}");
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

    #[test]
    fn says_which_file_is_missing_or_none() {
        let (_top, root) = folders();
        for path in ["gone.png", "deep"] {
            let error = bytes(&ImageSource::Path(path.into()), &root, None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("image {path}: ")), "{error}");
        }
    }

    #[test]
    fn remote_images_need_permission() {
        let (_top, root) = folders();
        let source = ImageSource::Url("https://example.org/a.png".into());
        let error = bytes(&source, &root, None).unwrap_err().to_string();
        assert!(error.contains("--allow-remote-images"), "{error}");
    }
}
