//! Memory of any process: probe -> sample -> trace -> assessment -> report, and supervision on top.
//!
//! In come `/proc` readings or recorded traces; out come verdicts with their evidence. The crate knows
//! nothing of tensors or models: whatever has a step counter can be judged.

pub mod assessment;
pub mod event;
mod failed_looks;
pub mod observe;
pub mod probe;
pub mod record;
pub mod report;
pub mod sample;
pub mod sentence;
pub mod settled;
pub mod signals;
pub mod socket;
pub mod steps;
pub mod supervise;
pub mod trace;
pub mod units;
pub mod verdict;
pub mod wake;
pub mod watch;

pub use assessment::{Answer, Assessment, BeforeEnd, Ending, Exhaustion, Mechanism, Plateau, Verdict};
pub use sample::{RunFacts, Sample};
pub use trace::{TraceError, TraceHeader, TraceReader, TraceWriter};
pub use units::ByteSize;
pub use verdict::Analyst;
