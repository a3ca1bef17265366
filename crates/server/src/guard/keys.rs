//! Named keys: who may use the server.
//!
//! A key is a name and the salted hash of a token; the token itself is shown once and kept nowhere. Keys are added and
//! revoked in the data folder, and may come from a file of tokens besides. Both files are read again when they change,
//! so that a key that was revoked opens nothing from then on. Hashes are compared in constant time.

use crate::{
    data_dir::{DataDir, DataDirError},
    files::hex,
    id::random,
    store::now,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{self, Read},
    net::IpAddr,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use subtle::ConstantTimeEq;

/// Tokens begin so, which makes them easy to find where they should not be.
const PREFIX: &str = "mg-";
/// A token that somebody chose must be at least so long.
const SHORTEST: usize = 16;
const LONGEST_NAME: usize = 64;
/// Bytes of a file of keys.
const LARGEST_FILE: u64 = 1 << 20;

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum KeysError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: this is not a file of keys: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: everybody can read these tokens; make the file its owner's alone (chmod 600)", path.display())]
    Readable { path: PathBuf },
    #[error("{}, line {line}: {message}", path.display())]
    Line { path: PathBuf, line: usize, message: &'static str },
    #[error("others can reach the address {0}, so the server needs a key before it listens there")]
    Needed(IpAddr),
    #[error("'{0}' is not a name for a key: use 1 to 64 letters, digits, '.', '-', '_' or '@'")]
    Name(String),
    #[error("there is a key with the name '{0}' already; revoke it or take another name")]
    Taken(String),
    #[error("there is no key with the name '{0}'")]
    Missing(String),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
}

/// A key: a name, and what its token hashes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub name: String,
    salt: String,
    hash: String,
    created_at: i64,
}

/// What may be told about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Whose it is, or what for.
    pub name: String,
    /// When it was added, in seconds since 1970.
    pub created_at: i64,
}

/// The file of the data folder.
#[derive(Debug, Default, Serialize, Deserialize)]
struct KeyFile {
    keys: Vec<Key>,
}

/// Adds a key and gives its token, which cannot be had again.
pub fn add(data_dir: &Path, name: &str) -> Result<String, KeysError> {
    if !is_name(name) {
        return Err(KeysError::Name(name.to_owned()));
    }
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<32>()));
    change(data_dir, |file| {
        if file.keys.iter().any(|key| key.name == name) {
            return Err(KeysError::Taken(name.to_owned()));
        }
        file.keys.push(Key::of(name, &token));
        Ok(())
    })?;
    Ok(token)
}

/// The keys of a data folder, which is left as it is.
pub fn list(data_dir: &Path) -> Result<Vec<KeyInfo>, KeysError> {
    let keys = read(&DataDir::at(data_dir).keys())?.unwrap_or_default().keys;
    Ok(keys.into_iter().map(|key| KeyInfo { name: key.name, created_at: key.created_at }).collect())
}

/// Revokes a key. A server that is running refuses it from now on.
pub fn revoke(data_dir: &Path, name: &str) -> Result<(), KeysError> {
    if read(&DataDir::at(data_dir).keys())?.is_none() {
        return Err(KeysError::Missing(name.to_owned()));
    }
    change(data_dir, |file| {
        let before = file.keys.len();
        file.keys.retain(|key| key.name != name);
        if file.keys.len() == before { Err(KeysError::Missing(name.to_owned())) } else { Ok(()) }
    })
}

/// Changes the file, one program at a time.
fn change(data_dir: &Path, act: impl FnOnce(&mut KeyFile) -> Result<(), KeysError>) -> Result<(), KeysError> {
    let data = DataDir::beside(data_dir)?;
    let path = data.keys();
    let fault = |source| KeysError::Io { path: path.clone(), source };
    let lock = File::create(path.with_extension("lock")).map_err(fault)?;
    give_to_owner(&lock, data.root()).map_err(fault)?;
    lock.lock().map_err(fault)?;
    let mut file = read(&path)?.unwrap_or_default();
    act(&mut file)?;
    let json =
        serde_json::to_vec_pretty(&file).map_err(|source| KeysError::Json { path: path.clone(), source })?;
    // The file is private from its first byte, whatever the umask.
    garden_files::write_with(&path, fault, |file| {
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(fault)?;
        give_to_owner(file, data.root()).map_err(fault)?;
        io::Write::write_all(file, &json).map_err(fault)
    })
}

/// Gives a file to whoever has the data folder: keys are often added as root, and the server must read them.
fn give_to_owner(file: &File, folder: &Path) -> io::Result<()> {
    let (file_now, folder) = (file.metadata()?, fs::metadata(folder)?);
    match file_now.uid() == folder.uid() {
        true => Ok(()),
        false => std::os::unix::fs::fchown(file, Some(folder.uid()), Some(folder.gid())),
    }
}

fn read(path: &Path) -> Result<Option<KeyFile>, KeysError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| KeysError::Json { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeysError::Io { path: path.to_owned(), source }),
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'@');
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

impl Key {
    pub(super) fn of(name: &str, token: &str) -> Self {
        let salt = hex(&random::<16>());
        Self { name: name.to_owned(), hash: hash(&salt, token), salt, created_at: now() }
    }

    fn opens(&self, token: &str) -> bool {
        hash(&self.salt, token).as_bytes().ct_eq(self.hash.as_bytes()).into()
    }
}

fn hash(salt: &str, token: &str) -> String {
    hex(&Sha256::new().chain_update(salt).chain_update(token).finalize())
}

/// The keys of a running server.
pub(crate) struct Keys {
    sources: Vec<Source>,
    loopback: bool,
    loaded: Mutex<Vec<Loaded>>,
}

struct Source {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The data folder's, which may be missing.
    Hashed,
    /// A file of tokens that the server was told of.
    Tokens,
}

/// What a file held when it was read.
struct Loaded {
    stamp: Stamp,
    keys: Vec<Key>,
}

/// What changes with a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stamp {
    /// There is no such file.
    Missing,
    /// Inode, seconds, nanoseconds and bytes.
    Known(u64, i64, i64, u64),
    /// Nobody can say; it is looked at again at the next request.
    Unreadable,
}

impl Keys {
    /// Reads the keys of a data folder, and of a file of tokens.
    pub(super) fn open(data: &DataDir, tokens: Option<&Path>, loopback: bool) -> Result<Self, KeysError> {
        let hashed = Source { path: data.keys(), kind: Kind::Hashed };
        let tokens = tokens.map(|path| Source { path: path.to_owned(), kind: Kind::Tokens });
        let sources: Vec<Source> = [hashed].into_iter().chain(tokens).collect();
        let loaded = sources.iter().map(|source| source.load(&[])).collect::<Result<_, _>>()?;
        Ok(Self { sources, loopback, loaded: Mutex::new(loaded) })
    }

    /// Whether requests need a key: always at an address that others reach, and at loopback once somebody has added a
    /// key. Revoking the last key opens nothing, nor does a file that is gone or cannot be read.
    pub(crate) fn are_needed(&self) -> bool {
        !self.loopback
            || self.sources.len() > 1
            || self.with_loaded(|loaded| loaded.iter().any(|loaded| loaded.stamp != Stamp::Missing))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.with_loaded(|loaded| loaded.iter().all(|loaded| loaded.keys.is_empty()))
    }

    /// The key that a token belongs to.
    pub(super) fn find(&self, token: &str) -> Option<Key> {
        self.with_loaded(|loaded| {
            let keys = loaded.iter().flat_map(|loaded| &loaded.keys);
            // All keys are tried, so that the time does not tell which one it was.
            keys.filter(|key| key.opens(token)).fold(None, |found, key| found.or_else(|| Some(key.clone())))
        })
    }

    /// Whether a key that was found earlier still opens.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.with_loaded(|loaded| loaded.iter().any(|loaded| loaded.keys.contains(key)))
    }

    fn with_loaded<T>(&self, act: impl FnOnce(&[Loaded]) -> T) -> T {
        let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, loaded) in self.sources.iter().zip(all.iter_mut()) {
            let stamp = source.stamp();
            if stamp != loaded.stamp || stamp == Stamp::Unreadable {
                // What cannot be read opens nothing. Keys that were there once were meant to be: a file that
                // is gone opens nothing either, until the server starts anew.
                let read = source.load(&loaded.keys).ok().filter(|read| read.stamp != Stamp::Missing);
                *loaded = read.unwrap_or(Loaded { stamp: Stamp::Unreadable, keys: Vec::new() });
            }
        }
        act(&all)
    }
}

impl Source {
    fn stamp(&self) -> Stamp {
        match fs::metadata(&self.path) {
            Ok(file) => Stamp::Known(file.ino(), file.mtime(), file.mtime_nsec(), file.size()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Stamp::Missing,
            Err(_) => Stamp::Unreadable,
        }
    }

    /// Reads the file; what it held before stays as it was, as far as it is still there.
    fn load(&self, before: &[Key]) -> Result<Loaded, KeysError> {
        // The stamp is taken first: a change in between is then seen at the next request.
        let stamp = self.stamp();
        let keys = match self.kind {
            Kind::Hashed => read(&self.path)?.map(|file| file.keys),
            Kind::Tokens => Some(read_tokens(&self.path, before)?),
        };
        Ok(Loaded { stamp, keys: keys.unwrap_or_default() })
    }
}

/// Reads a file of tokens: a token a line, or a name and a token; `#` begins a comment. A token that was
/// there `before` keeps its salt, so that sessions and streams of its key go on when another line changes.
fn read_tokens(path: &Path, before: &[Key]) -> Result<Vec<Key>, KeysError> {
    let fault = |source| KeysError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    if file.metadata().map_err(fault)?.mode() & 0o004 != 0 {
        return Err(KeysError::Readable { path: path.to_owned() });
    }
    let mut text = String::new();
    file.take(LARGEST_FILE).read_to_string(&mut text).map_err(fault)?;
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |message| KeysError::Line { path: path.to_owned(), line: number, message };
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let (name, token) = match (words.next(), words.next(), words.next()) {
            (None, ..) => continue,
            (Some(token), None, _) => (format!("token-{number}"), token),
            (Some(name), Some(token), None) => (name.to_owned(), token),
            _ => return Err(wrong("write a name and a token, or a token alone")),
        };
        if token.len() < SHORTEST {
            return Err(wrong("a token needs at least 16 characters"));
        }
        let known = before.iter().find(|key| key.name == name && key.opens(token));
        keys.push(known.cloned().unwrap_or_else(|| Key::of(&name, token)));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, DataDir) {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::beside(folder.path()).unwrap();
        (folder, data)
    }

    #[test]
    fn a_key_opens_until_it_is_revoked_and_its_token_is_nowhere() {
        let (folder, data) = folder();
        let keys = Keys::open(&data, None, true).unwrap();
        assert!(!keys.are_needed());
        let token = add(folder.path(), "anna").unwrap();
        assert!(token.starts_with("mg-") && token.len() == 46, "{token}");
        assert!(keys.are_needed());
        let anna = keys.find(&token).unwrap();
        assert!(anna.name == "anna" && keys.has(&anna));
        assert!(keys.find("mg-other").is_none() && keys.find("").is_none());
        assert!(!fs::read_to_string(data.keys()).unwrap().contains(&token));
        assert_eq!(fs::metadata(data.keys()).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(add(folder.path(), "anna"), Err(KeysError::Taken(_))));
        let berta = add(folder.path(), "berta").unwrap();
        revoke(folder.path(), "anna").unwrap();
        assert!(keys.find(&token).is_none() && !keys.has(&anna), "at once");
        assert!(keys.find(&berta).is_some());
        let names: Vec<String> = list(folder.path()).unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["berta"]);
        revoke(folder.path(), "berta").unwrap();
        assert!(keys.are_needed(), "revoking the last key opens nothing");
        assert!(matches!(revoke(folder.path(), "berta"), Err(KeysError::Missing(_))));
        for name in ["", "a b", "a/b", &"x".repeat(65)] {
            assert!(matches!(add(folder.path(), name), Err(KeysError::Name(_))));
        }
    }

    #[test]
    fn a_file_that_breaks_opens_nothing() {
        let (folder, data) = folder();
        let token = add(folder.path(), "anna").unwrap();
        let keys = Keys::open(&data, None, true).unwrap();
        fs::write(data.keys(), "{").unwrap();
        assert!(keys.are_needed() && keys.find(&token).is_none());
        assert!(matches!(Keys::open(&data, None, true), Err(KeysError::Json { .. })));
    }

    #[test]
    fn a_first_key_that_cannot_be_read_opens_nothing_and_neither_does_a_file_that_is_gone() {
        let (folder, data) = folder();
        let keys = Keys::open(&data, None, true).unwrap();
        assert!(!keys.are_needed());
        // A folder in the place of the file cannot be read, whoever asks.
        fs::create_dir(data.keys()).unwrap();
        assert!(keys.are_needed() && keys.is_empty());
        fs::remove_dir(data.keys()).unwrap();
        let token = add(folder.path(), "anna").unwrap();
        assert!(keys.are_needed() && keys.find(&token).is_some(), "it is read as soon as it can be");
        fs::remove_file(data.keys()).unwrap();
        assert!(keys.are_needed() && keys.find(&token).is_none());
    }

    #[test]
    fn listing_and_revoking_make_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none");
        assert_eq!(list(&missing).unwrap(), []);
        assert!(matches!(revoke(&missing, "anna"), Err(KeysError::Missing(_))));
        assert!(!missing.exists());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(list(folder.path()).unwrap(), []);
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn keys_belong_to_the_owner_of_the_data_folder() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give a folder away");
            return;
        }
        let (folder, data) = folder();
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
        add(folder.path(), "anna").unwrap();
        for path in [data.keys(), data.keys().with_extension("lock")] {
            let file = fs::metadata(&path).unwrap();
            assert_eq!((file.uid(), file.gid()), (65534, 65534), "{}", path.display());
        }
    }

    #[test]
    fn tokens_come_from_a_file_that_is_private() {
        let (folder, data) = folder();
        let path = folder.path().join("tokens");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Keys::open(&data, Some(&path), true)
        };
        let text = "# ours\nanna 0123456789abcdef # her laptop\n\n  fedcba9876543210\n";
        let keys = write(text, 0o600).unwrap();
        assert_eq!(keys.find("0123456789abcdef").unwrap().name, "anna");
        assert_eq!(keys.find("fedcba9876543210").unwrap().name, "token-4");
        assert!(keys.find("anna").is_none() && keys.are_needed());
        let anna = keys.find("0123456789abcdef").unwrap();
        write("anna 0123456789abcdef\nberta 0123456789abcdeg\n", 0o600).unwrap();
        assert!(keys.has(&anna) && keys.find("0123456789abcdeg").is_some(), "only another line has changed");
        assert!(keys.find("fedcba9876543210").is_none());
        assert!(matches!(write(text, 0o644), Err(KeysError::Readable { .. })));
        assert!(keys.find("0123456789abcdef").is_none(), "it is not trusted any more");
        assert!(matches!(write("short", 0o600), Err(KeysError::Line { line: 1, .. })));
        assert!(matches!(write("a b c", 0o600), Err(KeysError::Line { line: 1, .. })));
        let missing = Keys::open(&data, Some(&folder.path().join("none")), true);
        assert!(matches!(missing, Err(KeysError::Io { .. })));
    }
}
