//! The message about a file or folder that does not exist.
//!
//! Takes the name that a user wrote and looks through its folder: a name that differs by a letter or two is
//! probably the one that was meant.

use crate::error::DataError;
use std::path::{Path, PathBuf};

/// Refuses a path that is not a folder: a file, or a name that does not exist. The error names the nearest
/// name that does.
pub fn check_folder(path: &Path) -> Result<(), DataError> {
    match path.is_file() {
        true => Err(DataError::NoData { path: path.to_owned(), reason: "a file; name its folder".into() }),
        false => check_exists(path, "folder"),
    }
}

/// Refuses a path that does not exist; `what` says what it should be. The error names the nearest name that
/// does exist.
pub fn check_exists(path: &Path, what: &str) -> Result<(), DataError> {
    match path.exists() {
        true => Ok(()),
        false => Err(DataError::NoData { path: path.to_owned(), reason: reason(path, what) }),
    }
}

/// Why a path does not exist: its first part that is missing, and the nearest name that exists there.
pub(crate) fn reason(path: &Path, what: &str) -> String {
    let missing = first_missing(path);
    let inner =
        if missing == path { String::new() } else { format!(" ({} is not there)", missing.display()) };
    match nearest(missing) {
        Some(near) => format!("no such {what}{inner}; did you mean {}?", near.display()),
        None => format!("no such {what}{inner}"),
    }
}

/// The shortest part of a path that is not there.
fn first_missing(path: &Path) -> &Path {
    let missing = |part: &&Path| !part.as_os_str().is_empty() && !part.exists();
    path.ancestors().take_while(missing).last().unwrap_or(path)
}

/// The entry beside a missing one whose name is the most alike, if at most a third of its letters differ.
fn nearest(missing: &Path) -> Option<PathBuf> {
    let parent = missing.parent().filter(|parent| !parent.as_os_str().is_empty());
    let wanted = missing.file_name()?.to_str()?.to_lowercase();
    let names = std::fs::read_dir(parent.unwrap_or(Path::new("."))).ok()?.flatten();
    let scored = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((edit_distance(&wanted, &name.to_lowercase()), name))
    });
    let (differing, name) = scored.min()?;
    (3 * differing <= wanted.chars().count()).then(|| missing.with_file_name(name))
}

/// How many letters must be inserted, removed, replaced or swapped with their neighbour to turn one name into
/// the other.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Rows of the table for one letter more of `a` each: two before, one before, this one.
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect(), vec![0; b.len() + 1]];
    for i in 1..=a.len() {
        let [before, last, row] = &mut rows;
        row[0] = i;
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_counts_once() {
        for (typed, meant) in [("rwos", "rows"), ("rws", "rows"), ("rowss", "rows"), ("rovs", "rows")] {
            assert_eq!(edit_distance(typed, meant), 1, "{typed}");
        }
        assert_eq!(
            (edit_distance("rows", "rows"), edit_distance("", "rows"), edit_distance("images", "rows")),
            (0, 4, 5)
        );
    }

    #[test]
    fn the_nearest_name_is_offered_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("models/Qwen2.5-VL")).unwrap();
        let said =
            |name: &str| reason(&path(name), "folder").replace(&format!("{}/", folder.path().display()), "");
        assert_eq!(said("models/qwen2.5-v"), "no such folder; did you mean models/Qwen2.5-VL?");
        assert_eq!(said("models/llama"), "no such folder");
        std::fs::write(path("models/Qwen2.5-VL/config.json"), "{}").unwrap();
        let file = check_folder(&path("models/Qwen2.5-VL/config.json")).unwrap_err().to_string();
        assert!(file.ends_with("config.json: a file; name its folder"), "{file}");
        assert!(check_folder(&path("models/Qwen2.5-VL")).is_ok());
        assert_eq!(said("modles/Qwen2.5-VL"), "no such folder (modles is not there); did you mean models?");
    }
}
