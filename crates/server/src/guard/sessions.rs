//! People who have logged in, in memory: a restart asks them again.

use super::keys::Key;
use crate::id::random;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Sessions that are kept; the one that was used the longest ago goes first.
const MOST: usize = 1024;
/// How long a session lives without being used.
const LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<[u8; 32], Session>>);

struct Session {
    key: Key,
    used: Instant,
}

impl Sessions {
    /// Begins a session of whoever has this key, and gives what its cookie holds.
    pub(super) fn begin(&self, key: Key) -> String {
        let secret = URL_SAFE_NO_PAD.encode(random::<32>());
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.used.elapsed() < LIFE);
        if sessions.len() >= MOST {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(id(&secret), Session { key, used: Instant::now() });
        secret
    }

    /// Whose session it is.
    pub(super) fn find(&self, secret: &str) -> Option<Key> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get_mut(&id(secret)).filter(|session| session.used.elapsed() < LIFE)?;
        session.used = Instant::now();
        Some(session.key.clone())
    }

    pub(super) fn end(&self, secret: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id(secret));
    }
}

/// A session goes by the hash of its secret, so that the time of a look-up tells nothing.
fn id(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_begin_end_and_are_bounded() {
        let sessions = Sessions::default();
        let key = Key::of("anna", "token");
        let first = sessions.begin(key.clone());
        assert_eq!(sessions.find(&first), Some(key.clone()));
        assert_eq!(sessions.find("made up"), None);
        sessions.end(&first);
        assert_eq!(sessions.find(&first), None);
        let second = sessions.begin(key.clone());
        for _ in 0..MOST {
            sessions.begin(key.clone());
        }
        assert_eq!(sessions.find(&second), None, "the oldest made room");
        assert_eq!(sessions.0.lock().unwrap().len(), MOST);
    }
}
