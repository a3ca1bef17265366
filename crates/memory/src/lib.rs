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
//! A [`TraceReader`] gives the samples of a file, in our own format, in that of another tool, or in
//! the lines of a training log.
//!
//! ```
//! use garden_memory::{Analyst, TraceReader};
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
//! A [`Recorder`] does all of this to a living process tree, a reading at a time: it takes a sample with a
//! [`probe::Probe`], asks a [`StepBoard`] for the step, writes the trace and judges. [`watch()`] records a
//! tree that runs already; [`supervise::run`] starts a command, stops it at its limit and starts it again.
//! Both show readings and [`Event`]s to an [`Observer`] and are interrupted by [`Wake`]s. A trainer tells its
//! steps to whoever watches it through a [`SupervisorLink`]. [`report`] shows a judged run to a person.

mod assessment;
#[cfg(test)]
mod compatibility_tests;
mod event;
mod failed_looks;
mod observe;
mod record;
mod render;
mod sample;
mod sampling;
mod sentence;
mod settled;
mod signals;
mod socket;
#[cfg(test)]
mod soup_tests;
mod steps;
mod supervision;
mod trace;
mod units;
mod verdict;
mod wake;
mod watch;
mod who;

// Readings: what is judged.
pub use sample::{Holder, Moment, RunFacts, Sample};

// The judgement, and what it is made of.
pub use assessment::{
    Answer, Assessment, BeforeEnd, Ending, Exhaustion, Expectation, Mechanism, MemoryKind, Pattern, Plateau,
    TreePart, Verdict,
};
pub use sentence::{Sentence, Setting};
pub use settled::Settled;
pub use verdict::{Analyst, Axis};

// Traces on disk, written and read.
pub use trace::{
    TraceError, TraceHeader, TraceOptions, TraceReader, TraceWriter, format_names, may_replace_trace,
};

// The step a run is at: from its output, from a log, from what it tells.
pub use socket::{StepSocket, SupervisorLink};
pub use steps::{
    BadPattern, LinePattern, LogError, LogFollower, Progress, StepBoard, StepPatterns, StepSource,
};

// A living tree, recorded and shown.
pub use event::Event;
pub use observe::Observer;
pub use record::{Reading, Recorder, natural_limit};
pub use watch::{WatchEnd, watch};
pub use who::{Explained, WhoReport};

// What interrupts a watch or a supervised run.
pub use signals::{BadSignal, Heard, StopSignal, heeded};
pub use wake::{CommandReport, Stream, Wake, listen};

// Bytes, times and counts as people write them.
pub use units::{BadSize, ByteSize, SizeUnit, TimeUnit, counted, part};

/// What a process tree holds now, and finding the one that trains.
pub mod probe {
    pub use crate::sampling::{
        Candidate, CgroupMemory, Evidence, Found, GpuDevice, Kinds, Level, Machine, Need, Probe, ProbeError,
        ProcessRow, Snapshot, Spike, find_training, gpu_devices, memory_available, memory_ceiling,
    };
}

/// A judged run as text, SVG or HTML; charts and pages for other reports.
pub mod report {
    pub use crate::render::{Run, Style, chart_of as chart, html, html_with, overlay, svg, text};
    // The parts that other reports are made of.
    pub use crate::render::{
        Chart, Colour, Epochs, Level, Line, Meaning, Page, Unit, duration, escape, wrap,
    };
}

/// A command that is started, watched, stopped at its limit and started again.
///
/// The command hangs below a guard, a program that the caller names, so that no process of it is left
/// behind however the supervisor ends.
pub mod supervise {
    pub use crate::supervision::{
        GuardProgram, OnLimit, Orders, Outcome, Passage, SuperviseError, Surroundings, end_like, run,
        run_guard,
    };
    // The decision alone, for a program that acts by itself.
    pub use crate::supervision::{Call, LimitWatch, OwnLimit, TELL_LEVEL};
}
