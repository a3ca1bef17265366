//! Memory of any process: samples it, judges it, forecasts it, and acts before it runs out.
//!
//! The crate knows nothing of tensors or models: whatever has a step counter can be judged by steps,
//! everything else by time.
//!
//! # The main path
//!
//! A [`Sample`] is one reading of a process tree. An [`Analyst`] takes samples one by one, in bounded memory,
//! and gives an [`Assessment`] at any moment: leak, fill, warm-up, steady or undecided, with the evidence and
//! a forecast.
//!
//! ```
//! use garden_memory::{Analyst, RunFacts, Sample, Verdict};
//!
//! // 800 rows, 8 a step: an epoch has 100 steps. Memory grows by 5 MB with each step, and goes on after it.
//! let facts = RunFacts { dataset_size: Some(800), samples_per_step: Some(8), ..RunFacts::default() };
//! let mut analyst = Analyst::new(facts);
//! for step in 1..=300 {
//!     let rss = 4_000_000_000 + 5_000_000 * step;
//!     analyst.push(&Sample { t: step as f64, step: Some(step), rss, ..Sample::default() });
//! }
//! let assessment = analyst.assessment();
//! assert_eq!(assessment.verdict, Verdict::Leak);
//! assert_eq!(assessment.growth_per_step.map(|rate| rate.round()), Some(5e6));
//! ```
//!
//! A [`trace::TraceReader`] gives the samples of a file, in our own format, in that of another tool, or in
//! the lines of a training log.
//!
//! ```
//! use garden_memory::{Analyst, trace::TraceReader};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("train.log");
//! let log: String = (1..=50).map(|step| format!("Step {step}: loss 0.5, RAM: 5552 MB\n")).collect();
//! std::fs::write(&path, log)?;
//!
//! let mut reader = TraceReader::open(&path)?;
//! let mut analyst = Analyst::of_recorded(reader.header().facts.clone());
//! for sample in &mut reader {
//!     analyst.push(&sample?);
//! }
//! assert_eq!(analyst.assessment().verdict.name(), "steady");
//! # Ok(())
//! # }
//! ```
//!
//! # The modules
//!
//! | module | subject |
//! |---|---|
//! | [`probe`] | what a process tree holds now, and finding the one that trains |
//! | [`steps`] | which step a run is at: from its output, from a log, from what it tells |
//! | [`record`] | a [`Recorder`](record::Recorder): probe, steps, trace and analyst, a reading at a time |
//! | [`trace`] | traces on disk, written and read |
//! | [`report`] | a judged run as text, SVG or HTML; charts and pages for other reports |
//! | [`supervise`] | a command that is started, watched, stopped at its limit and started again |
//! | [`units`] | bytes and counts as people write them |
//!
//! [`watch()`] looks at a tree that runs already. Both [`watch()`] and [`supervise`] show readings and
//! [`Event`]s to an [`Observer`] and are interrupted by [`Wake`]s. A trainer tells its steps to whoever
//! watches it through a [`SupervisorLink`].

mod assessment;
mod event;
mod failed_looks;
mod observe;
pub mod probe;
pub mod record;
pub mod report;
mod sample;
mod sentence;
mod settled;
mod signals;
mod socket;
pub mod steps;
pub mod supervise;
pub mod trace;
pub mod units;
mod verdict;
mod wake;
mod watch;

pub use assessment::{
    Answer, Assessment, BeforeEnd, Ending, Exhaustion, Mechanism, MemoryKind, Pattern, Plateau, TreePart,
    Verdict,
};
pub use event::Event;
pub use observe::Observer;
pub use sample::{Holder, Moment, RunFacts, Sample};
pub use sentence::{Sentence, Setting};
pub use settled::Settled;
pub use signals::{BadSignal, Heard, StopSignal, heeded};
pub use socket::{StepSocket, SupervisorLink};
pub use trace::{TraceError, TraceHeader, TraceReader, TraceWriter};
pub use units::ByteSize;
pub use verdict::{Analyst, Axis};
pub use wake::{CommandReport, Stream, Wake, listen};
pub use watch::{WatchEnd, watch};
