//! One model that answers many questions at once.
//!
//! Takes chat messages with images, and gives answers piece by piece: batched, with prefixes and images kept from
//! earlier questions, and held to a JSON schema where one is asked for. An answer is the one that
//! `garden_train::Interpreter` gives to the same question alone, bit for bit, whatever runs beside it.
//!
//! [`Engine`] answers inside a process; [`host`] is the process that owns one, at the other end of a socket;
//! [`plan`] tells the memory of such a process before it is started.

mod answer;
mod engine;
mod grammar;
pub mod host;
mod plan;
mod request;
mod stop;

pub use engine::{Engine, EngineError};
pub use plan::{HostPlan, HostSettings, LARGEST_QUESTION, PlanFailed, plan};
pub use request::{
    ChatRequest, Fault, FaultKind, Finish, Format, Message, MessagePart, Reply, Speaker, TokenLikelihood,
    TopToken, Usage,
};
