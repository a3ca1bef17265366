//! What to say of a file or folder that is not there.
//!
//! Takes the name that a user wrote and looks at its folder: a name that differs in a letter or two is probably the one that was meant.

use std::path::{Path, PathBuf};

/// What is wrong with a name that leads nowhere: where it goes wrong, and the nearest name that exists there.
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
        Some((distance(&wanted, &name.to_lowercase()), name))
    });
    let (differing, name) = scored.min()?;
    (3 * differing <= wanted.chars().count()).then(|| missing.with_file_name(name))
}

/// Levenshtein's distance between two names.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("models/Qwen2.5-VL")).unwrap();
        let said =
            |name: &str| reason(&path(name), "folder").replace(&format!("{}/", folder.path().display()), "");
        assert_eq!(said("models/qwen2.5-v"), "no such folder; did you mean models/Qwen2.5-VL?");
        assert_eq!(said("models/llama"), "no such folder");
        assert_eq!(said("modles/Qwen2.5-VL"), "no such folder (modles is not there); did you mean models?");
    }
}
