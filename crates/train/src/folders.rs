//! Whether two folders are the same or one holds the other, whatever their paths say.
//!
//! Takes the folder for the results, which may not exist yet, and a folder that the results are made from.
//! Links, `..` and mounts make no difference: folders are compared by device and inode.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf, absolute},
};

/// How the folder of results touches one that it must not touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// They are the same folder.
    Same,
    /// The results would be inside the other folder.
    Inside,
    /// The folder of the results holds the other folder.
    Around,
}

impl Overlap {
    /// How `output` touches `source`; nothing if they are apart or `source` does not exist.
    pub fn of(output: &Path, source: &Path) -> Option<Self> {
        match (is_within(output, source), is_within(source, output)) {
            (true, true) => Some(Self::Same),
            (true, false) => Some(Self::Inside),
            (false, true) => Some(Self::Around),
            (false, false) => None,
        }
    }

    /// Between two folders in a message: `out is inside models/qwen`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Same => "is",
            Self::Inside => "is inside",
            Self::Around => "holds",
        }
    }
}

/// Whether `path` is `folder` or lies below it.
fn is_within(path: &Path, folder: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let Some(wanted) = identity(&resolved(folder)) else { return false };
    resolved(path).ancestors().any(|above| identity(above) == Some(wanted))
}

/// The folder that a path names, or will name once it is made, without links and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in absolute(path).unwrap_or_default().components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
        // What does not exist yet has no links.
        whole = whole.canonicalize().unwrap_or(whole);
    }
    whole
}

/// The folder that a path is in: `.` for a name alone.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The folder that a link leads to; any other path as it is.
pub fn without_link(path: &Path) -> PathBuf {
    match path.is_symlink() {
        true => path.canonicalize().unwrap_or_else(|_| path.to_owned()),
        false => path.to_owned(),
    }
}

/// What keeps another folder from taking the name of an empty one, if anything does.
pub fn fixed(path: &Path) -> Option<&'static str> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let own = identity(&resolved(path))?;
    if identity(Path::new(".")) == Some(own) {
        return Some("the folder that this runs in");
    }
    let above = identity(resolved(path).parent()?)?;
    (above.0 != own.0).then_some("where a file system is mounted")
}

/// Whether there is nothing under this name, or an empty folder.
pub fn is_free(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(fs::symlink_metadata(path).is_err()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_dots_do_not_hide_a_folder() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        fs::create_dir_all(path("base/deep")).unwrap();
        symlink(path("base"), path("link")).unwrap();
        let of = |output: &str| Overlap::of(&path(output), &path("base"));
        for same in ["base", "link", "base/deep/..", "new/../base", "link/deep/../../link"] {
            assert_eq!(of(same), Some(Overlap::Same), "{same}");
        }
        for inside in ["base/deep", "base/new/er", "link/new", "new/../base/new"] {
            assert_eq!(of(inside), Some(Overlap::Inside), "{inside}");
        }
        assert_eq!(of("."), Some(Overlap::Around));
        for apart in ["base2", "new", "base/../other"] {
            assert_eq!(of(apart), None, "{apart}");
        }
        assert_eq!(Overlap::of(&path("new"), &path("gone")), None);
    }

    #[test]
    fn a_mount_and_the_folder_of_the_process_stay_where_they_are() {
        assert_eq!(fixed(Path::new(".")), Some("the folder that this runs in"));
        assert_eq!(fixed(Path::new("/proc")), Some("where a file system is mounted"));
        let top = tempfile::tempdir().unwrap();
        assert_eq!(fixed(top.path()), None);
        assert_eq!(fixed(&top.path().join("new")), None);
        symlink(top.path(), top.path().join("link")).unwrap();
        assert_eq!(without_link(&top.path().join("link")), top.path().canonicalize().unwrap());
    }

    #[test]
    fn only_nothing_and_an_empty_folder_are_free() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        fs::create_dir(path("empty")).unwrap();
        fs::create_dir_all(path("full/inner")).unwrap();
        fs::write(path("file"), "").unwrap();
        symlink(path("gone"), path("dangling")).unwrap();
        for (name, free) in
            [("new", true), ("empty", true), ("full", false), ("file", false), ("dangling", false)]
        {
            assert_eq!(is_free(&path(name)).unwrap(), free, "{name}");
        }
    }
}
