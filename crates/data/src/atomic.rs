//! Files that are there whole or not at all.
//!
//! In comes a path and what writes it; out goes the file under its name, synced, or nothing. A reader never sees a
//! half-written file, and two writers at once leave one whole file.

use std::{fs::File, io, os::unix::fs::PermissionsExt, path::Path};

/// Writes a file under a temporary name beside its own, syncs it and renames it. `refused` makes an error of what the
/// system says on the way.
pub(crate) fn write<E>(
    path: &Path,
    refused: impl Fn(io::Error) -> E,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = std::fs::Permissions::from_mode(0o644);
    let builder = &mut tempfile::Builder::new();
    let builder = builder.prefix(".garden-").suffix(".part").permissions(readable);
    let mut file = builder.tempfile_in(folder).map_err(&refused)?;
    write(file.as_file_mut())?;
    file.as_file().sync_all().map_err(&refused)?;
    file.persist(path).map_err(|error| refused(error.error))?;
    // The name is on disk only once its folder is. Some network file systems cannot sync one, and need not; one
    // that may be written but not read cannot be opened.
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if !matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => {
            Err(refused(error))
        }
        _ => Ok(()),
    }
}
