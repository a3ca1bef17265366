//! The datagram socket between a trainer and whoever watches its memory (docs/memory-socket.md).
//!
//! A watcher binds a [`StepSocket`] and names it in [`SOCKET_VARIABLE`]; the trainer opens a
//! [`SupervisorLink`] to it. The trainer tells its facts and steps, the watcher tells of a limit. `protocol`
//! holds every message of both directions. Neither end ever waits long for the other, and a message that
//! cannot be read is ignored.

mod link;
mod protocol;
mod receiver;

pub use link::SupervisorLink;
pub(crate) use protocol::{LimitAction, LimitNotice, SupervisorMessage};
pub use receiver::StepSocket;

/// The environment variable that names the socket.
pub(crate) const SOCKET_VARIABLE: &str = "MODEL_GARDEN_SOCKET";
