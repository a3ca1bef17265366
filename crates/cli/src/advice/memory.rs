//! Advice about the errors of `garden-memory`, and the flags for the settings that its sentences are about.

use super::Advice;
use garden_memory::{Assessment, Setting, TraceError, probe::ProbeError, supervise::SuperviseError};
use std::error::Error;

/// What the command line adds to an error of `garden-memory`.
pub fn advice(error: &(dyn Error + 'static)) -> Option<Advice> {
    let trace = error.downcast_ref().and_then(about_trace);
    let supervise = || error.downcast_ref().and_then(about_supervision);
    let probe = || error.downcast_ref().and_then(about_probing);
    trace.or_else(supervise).or_else(probe).map(|words| Advice::Also(words.to_owned()))
}

fn about_trace(error: &TraceError) -> Option<&'static str> {
    match error {
        TraceError::NoFigures { .. } => {
            Some("--memory-pattern 'REGEX' finds other forms, --column NAME another key")
        }
        TraceError::NoColumn { .. } => Some("--column NAME says which one holds memory"),
        TraceError::NoUnit { .. } => Some("say which with --unit: B, kB, MB, GB, KiB, MiB or GiB"),
        TraceError::NoOwner { .. } => {
            Some("if it is the process's, say its unit with --unit: B, kB, MB, GB, KiB, MiB or GiB")
        }
        _ => None,
    }
}

fn about_supervision(error: &SuperviseError) -> Option<&'static str> {
    match error {
        SuperviseError::NoCommand => Some("write it after --"),
        _ => None,
    }
}

fn about_probing(error: &ProbeError) -> Option<&'static str> {
    match error {
        ProbeError::NothingFound { .. } => Some("watch one by its number with --pid"),
        _ => None,
    }
}

/// Names the flags for the settings that an assessment speaks of.
pub fn name_flags(assessment: &mut Assessment) {
    assessment.name_settings(|setting| match setting {
        Setting::Process => "--process chooses another",
        Setting::SizeUnit => "--unit says another",
        Setting::TimeUnit => "--time-unit says another",
        Setting::EpochLength => "--dataset-size N --samples-per-step K",
        Setting::RestartAtLimit => "model-garden memory run --limit ... --on-limit restart",
        Setting::Recording => "model-garden memory run --out run.jsonl -- COMMAND",
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_flag_that_helps() {
        let no_unit =
            TraceError::NoUnit { path: "run.csv".into(), name: "column 'rss'".into(), largest: 150.0 };
        assert!(matches!(advice(&no_unit), Some(Advice::Also(words)) if words.contains("--unit")));
        assert!(
            matches!(advice(&SuperviseError::NoCommand), Some(Advice::Also(words)) if words.contains("--"))
        );
        let nothing_found = ProbeError::NothingFound { passed_over: Vec::new() };
        assert!(matches!(advice(&nothing_found), Some(Advice::Also(words)) if words.contains("--pid")));
        assert_eq!(advice(&TraceError::Empty { path: "run.csv".into() }), None);
    }
}
