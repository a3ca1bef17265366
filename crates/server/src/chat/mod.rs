//! Models that answer, each in a process of its own.
//!
//! [`ChatPool`] takes a question for a model and gives its answer piece by piece. The process of a model is started
//! by its first question, shared by all that follow, and ended after some idle time or when its memory is needed. A
//! process that dies gives its questions an error in words; the next question starts another.

mod host;
mod key;
mod pool;

pub(crate) use key::HostKey;
pub(crate) use pool::{Answer, ChatPool, Loaded, PoolSettings};
