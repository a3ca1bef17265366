//! Images of rows that a program holds in memory, and what a processor takes of an image.
//!
//! Takes the [`ImageSource`] of a row that was built by a program and gives an [`ImageInput`]: encoded bytes, or
//! pixels that were decoded elsewhere. Files are read from anywhere, or only below the folders of an
//! [`ImageFinder`].

use crate::{
    error::{BadRow, DataError},
    image::{Facing, Pixels},
    remote::RemoteImages,
    row::ImageSource,
    source::{self, ImageRoot},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// An image that a program has as an object of its own: no text of a row spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldImage {
    /// The encoded bytes behind an object whose pixels were not decoded yet. They are taken as they are stored: a
    /// program that has opened an image sees them so, whatever its EXIF orientation says.
    Encoded {
        /// The bytes of the file.
        bytes: Vec<u8>,
        /// The width and height that the object says it has.
        size: (u32, u32),
    },
    /// Pixels that somebody else decoded.
    Pixels(Pixels),
}

/// An image on its way to a processor.
#[derive(Debug, Clone, Copy)]
pub enum ImageInput<'a> {
    /// An encoded image.
    Encoded(&'a [u8], Facing),
    /// A decoded one.
    Pixels(&'a Pixels),
}

/// What was found of an image: its bytes, or the object itself.
#[derive(Debug, Clone)]
pub enum FoundImage {
    /// The encoded bytes of an image that the row spells.
    Encoded(Vec<u8>),
    /// An image that the program holds.
    Held(Arc<HeldImage>),
}

impl FoundImage {
    /// The image as a processor takes it. Only an image that a row spells is turned upright.
    pub fn input(&self) -> ImageInput<'_> {
        match self {
            Self::Encoded(bytes) => ImageInput::Encoded(bytes, Facing::Upright),
            Self::Held(image) => match &**image {
                HeldImage::Encoded { bytes, .. } => ImageInput::Encoded(bytes, Facing::AsStored),
                HeldImage::Pixels(pixels) => ImageInput::Pixels(pixels),
            },
        }
    }

    /// The size that the program's object says it has, if that is known.
    pub fn said_size(&self) -> Option<(u32, u32)> {
        match self {
            Self::Held(image) => match &**image {
                HeldImage::Encoded { size, .. } => Some(*size),
                HeldImage::Pixels(_) => None,
            },
            Self::Encoded(_) => None,
        }
    }
}

/// Finds the images of rows that a program built.
#[derive(Debug)]
pub struct ImageFinder {
    root: ImageRoot,
    remote: Option<RemoteImages>,
}

impl ImageFinder {
    /// Reads files below these folders only, and looks for relative paths there. Without a folder, any file that the
    /// process may read is read, and relative paths start from its working folder.
    pub fn new(folders: &[PathBuf], allow_remote: bool) -> Result<Self, DataError> {
        if let Some(folder) = folders.iter().find(|folder| !folder.is_dir()) {
            return Err(DataError::ImageRoot(folder.clone()));
        }
        let root = match folders {
            [] => ImageRoot::within(Path::new("."), Path::new("/")),
            [..] => ImageRoot::only(folders),
        };
        let root = root.map_err(DataError::io(folders.first().map_or(Path::new("/"), PathBuf::as_path)))?;
        Ok(Self { root, remote: allow_remote.then(RemoteImages::default) })
    }

    /// Finds an image.
    pub fn find(&self, image: ImageSource) -> Result<FoundImage, BadRow> {
        match image {
            ImageSource::Held(image) => Ok(FoundImage::Held(image)),
            ImageSource::Bytes(bytes) => Ok(FoundImage::Encoded(bytes)),
            other => {
                let bytes = source::bytes(&other, &self.root, self.remote.as_ref())?;
                Ok(FoundImage::Encoded(bytes.into_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers::{Value, read_row};
    use std::fs;

    fn read(finder: &ImageFinder, path: &Path) -> Result<Vec<u8>, String> {
        match finder.find(ImageSource::Path(path.to_owned())) {
            Ok(FoundImage::Encoded(bytes)) => Ok(bytes),
            Ok(FoundImage::Held(_)) => Err("an object".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn any_file_is_read_until_folders_are_named() {
        let top = tempfile::tempdir().expect("a folder");
        let images = top.path().join("images");
        fs::create_dir(&images).expect("a folder");
        for file in ["images/a.png", "secret"] {
            fs::write(top.path().join(file), file).expect("a file");
        }
        let anywhere = ImageFinder::new(&[], false).expect("the root folder");
        assert_eq!(read(&anywhere, &top.path().join("secret")), Ok(b"secret".to_vec()));
        assert_eq!(
            read(&anywhere, Path::new("Cargo.toml")).map(|text| text.starts_with(b"[package]")),
            Ok(true)
        );

        let below = ImageFinder::new(std::slice::from_ref(&images), false).expect("a folder");
        for path in [images.join("a.png"), "a.png".into(), images.join("../images/a.png")] {
            assert_eq!(read(&below, &path), Ok(b"images/a.png".to_vec()), "{}", path.display());
        }
        for path in [top.path().join("secret"), images.join("../secret")] {
            let error = read(&below, &path).expect_err("outside");
            assert!(error.contains("outside"), "{error}");
        }
        let error = read(&below, Path::new("Cargo.toml")).expect_err("not below the folder");
        assert!(error.contains("no such file"), "{error}");
    }

    #[test]
    fn objects_stand_where_a_row_has_images() {
        let image =
            || Value::Held(Arc::new(HeldImage::Pixels(Pixels { width: 1, height: 1, rgb: vec![1, 2, 3] })));
        let text = |text: &'static str| Value::Text(text.into());
        let map = |fields: Vec<(&'static str, Value<'static>)>| {
            Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
        };
        let asked = |image| map(vec![("prompt", text("What?")), ("completion", text("Red")), image]);
        let part = map(vec![("type", text("image")), ("image", image())]);
        let messages =
            Value::List(vec![map(vec![("role", text("user")), ("content", Value::List(vec![part]))])]);
        let url = map(vec![("url", image())]);
        for row in [
            asked(("image", image())),
            asked(("images", Value::List(vec![image()]))),
            asked(("images", Value::List(vec![url]))),
            map(vec![("messages", messages)]),
        ] {
            let mut conversation = read_row(&row).expect("a row").conversation;
            let images = conversation.take_images();
            assert!(matches!(&images[..], [ImageSource::Held(_)]), "{images:?}");
            let finder = ImageFinder::new(&[], false).expect("the root folder");
            let found = images.into_iter().map(|image| finder.find(image).expect("it is here"));
            assert!(found.into_iter().all(|image| matches!(image.input(), ImageInput::Pixels(_))));
            assert_eq!(conversation.images().count(), 1, "its place stays");
        }
        let unread = read_row(&asked(("photo", image()))).expect_err("nobody reads it");
        assert!(matches!(unread, BadRow::UnreadImage { .. }), "{unread}");
    }

    #[test]
    fn a_folder_that_is_not_there_and_a_forbidden_address_are_refused() {
        let gone = ImageFinder::new(&["/no/such/folder".into()], false).expect_err("no folder");
        assert!(gone.to_string().contains("/no/such/folder"), "{gone}");
        let finder = ImageFinder::new(&[], false).expect("the root folder");
        let url = ImageSource::Url("https://example.org/a.png".into());
        assert!(matches!(finder.find(url), Err(BadRow::RemoteNotAllowed(_))));
    }
}
