//! Refuses to write over what is read.
//!
//! Takes the files that a command reads and those that it writes. A file is known by its place on the disk,
//! not by how its path is written, so a link or `./x` is the same file as `x`. Pipes and devices can be read
//! and written at once, and are allowed.

use anyhow::{Context, Result, bail};
use garden_memory::may_replace_trace;
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Something that is read, if it is a file.
pub struct Input {
    what: &'static str,
    path: PathBuf,
}

impl Input {
    /// An input and what to call it.
    pub fn new(what: &'static str, path: impl AsRef<OsStr>) -> Self {
        Self { what, path: PathBuf::from(path.as_ref()) }
    }
}

/// A file that a flag asks to write.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    flag: &'static str,
    path: &'a Path,
}

impl<'a> Output<'a> {
    /// The output of a flag, if it was given.
    pub fn of(flag: &'static str, path: Option<&'a PathBuf>) -> Option<Self> {
        path.map(|path| Self { flag, path })
    }
}

/// Which file a path names: the one that is there, or the one that would be made.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    Existing { device: u64, number: u64 },
    New { folder: PathBuf, name: OsString },
}

impl Identity {
    /// `None` for what writing cannot harm, and for a path that leads nowhere.
    fn of(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(file) if file.is_file() => Some(Self::Existing { device: file.dev(), number: file.ino() }),
            Ok(_) => None,
            Err(_) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
                Some(Self::New { folder, name: path.file_name()?.to_owned() })
            }
        }
    }
}

/// Fails if one of the outputs is one of the inputs, or another output.
pub fn refuse(inputs: &[Input], outputs: &[Option<Output<'_>>]) -> Result<()> {
    let outputs: Vec<Output<'_>> = outputs.iter().flatten().copied().collect();
    for (index, output) in outputs.iter().enumerate() {
        let Some(identity) = Identity::of(output.path) else { continue };
        let is_same = |path: &Path| Identity::of(path).is_some_and(|other| other == identity);
        let Output { flag, path } = output;
        if let Some(Input { what, path: read }) = inputs.iter().find(|input| is_same(&input.path)) {
            let path = path.display();
            bail!("{flag} {path} would overwrite {what} {}: give it another name", read.display());
        }
        if let Some(other) = outputs[..index].iter().find(|other| is_same(other.path)) {
            bail!("{} and {flag} name the same file, {}: give each its own", other.flag, path.display());
        }
    }
    Ok(())
}

/// Fails if a trace would replace a file that is not a trace.
pub fn refuse_foreign(flag: &str, path: &Path) -> Result<()> {
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file());
    let replaceable =
        !is_file || may_replace_trace(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !replaceable {
        let path = path.display();
        bail!("{flag} {path} exists and is not a trace: give another name, or remove the file first");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_recognised_however_its_path_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        fs::write(&script, "print()").unwrap();
        let link = folder.path().join("link.py");
        std::os::unix::fs::symlink(&script, &link).unwrap();
        let roundabout = folder.path().join("../").join(folder.path().file_name().unwrap()).join("train.py");
        for path in [&script, &link, &roundabout] {
            let said = refuse(&[Input::new("the script", &script)], &[Output::of("--out", Some(path))]);
            let said = said.unwrap_err().to_string();
            assert!(said.contains("would overwrite the script"), "{said}");
        }
        let other = folder.path().join("trace.jsonl");
        refuse(&[Input::new("the script", &script)], &[Output::of("--out", Some(&other))]).unwrap();
    }

    #[test]
    fn two_outputs_are_two_files_also_where_neither_is_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let (page, same) = (folder.path().join("page"), folder.path().join("./page"));
        let said = refuse(&[], &[Output::of("--svg", Some(&page)), Output::of("--html", Some(&same))]);
        let said = said.unwrap_err().to_string();
        assert!(said.starts_with("--svg and --html name the same file"), "{said}");
    }

    #[test]
    fn devices_may_be_read_and_written() {
        let null = PathBuf::from("/dev/null");
        let outputs = [Output::of("--svg", Some(&null)), Output::of("--html", Some(&null))];
        refuse(&[Input::new("the trace", &null)], &outputs).unwrap();
        refuse_foreign("--out", &null).unwrap();
    }
}
