//! Names of things on the server: `ftjob-`, `file-`, `upload_` ... and 24 random letters and digits.
//!
//! An id that arrives from outside is checked before it becomes part of a path: the kind's prefix, then only
//! lower-case letters and digits.

use sha2::{Digest, Sha256};
use std::fmt;

const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const LENGTH: usize = 24;

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    File,
    Upload,
    Part,
    Completion,
    Request,
    Webhook,
    WebhookEndpoint,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Job => "ftjob-",
            Self::File => "file-",
            Self::Upload => "upload_",
            Self::Part => "part_",
            Self::Completion => "chatcmpl-",
            Self::Request => "req_",
            Self::Webhook => "evt_",
            Self::WebhookEndpoint => "whe_",
        }
    }

    /// A new id.
    pub(crate) fn fresh(self) -> String {
        self.spell(random::<LENGTH>())
    }

    /// The id that always stands for `text`.
    pub(crate) fn derived(self, text: &str) -> String {
        let hash: [u8; 32] = Sha256::digest(text).into();
        self.spell(hash.into_iter().take(LENGTH))
    }

    fn spell(self, bytes: impl IntoIterator<Item = u8>) -> String {
        let letters = bytes.into_iter().map(|byte| LETTERS[usize::from(byte) % LETTERS.len()] as char);
        self.prefix().chars().chain(letters).collect()
    }

    /// Whether `text` may be an id of this kind, and so part of a path.
    pub(crate) fn names(self, text: &str) -> bool {
        text.strip_prefix(self.prefix()).is_some_and(|rest| {
            (1..=64).contains(&rest.len())
                && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
    }
}

/// Random bytes of the system.
///
/// # Panics
/// If the system has none, which Linux does not do after it has started.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "fine-tuning job",
            Self::File => "file",
            Self::Upload => "upload",
            Self::Part => "part",
            Self::Completion => "completion",
            Self::Request => "request",
            Self::Webhook => "webhook event",
            Self::WebhookEndpoint => "webhook endpoint",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_id_names_its_kind_and_no_path() {
        let id = Kind::Job.fresh();
        assert!(Kind::Job.names(&id) && !Kind::File.names(&id), "{id}");
        assert_ne!(id, Kind::Job.fresh());
        let derived = Kind::Webhook.derived("a");
        assert!(Kind::Webhook.names(&derived), "{derived}");
        assert_eq!(derived, Kind::Webhook.derived("a"));
        assert_ne!(derived, Kind::Webhook.derived("b"));
        for wrong in ["ftjob-", "ftjob-../x", "ftjob-a/b", "ftjob-A", "job", "", "ftjob-a\0"] {
            assert!(!Kind::Job.names(wrong), "{wrong:?}");
        }
    }
}
