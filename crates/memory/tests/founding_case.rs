//! The case that founded the project: 663 images kept by a list, 8 a step, read from its own log lines.
//!
//! The log of the second run goes past the end of the first epoch at step 83; that of the first run does not.

use garden_memory::{Analyst, Assessment, Ending, RunFacts, TraceReader, Verdict};
use std::path::Path;

/// Judges the lines of a log up to a step.
fn judge(log: &str, last_step: u64, facts: RunFacts) -> Assessment {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(log);
    let mut analyst = Analyst::new(facts);
    for sample in TraceReader::open(path).expect("a log") {
        let sample = sample.expect("a sample");
        if sample.step <= Some(last_step) {
            analyst.push(&sample);
        }
    }
    analyst.assessment()
}

fn told() -> RunFacts {
    RunFacts {
        dataset_size: Some(663),
        samples_per_step: Some(8),
        limit: Some(32_000_000_000),
        ..RunFacts::default()
    }
}

fn assert_near(found: f64, wanted: f64, part: f64) {
    assert!((found - wanted).abs() <= part * wanted, "{found} is not within {part} of {wanted}");
}

#[test]
fn the_second_run_is_a_fill() {
    let assessment = judge("founding-run2.log", u64::MAX, told());
    assert_eq!(assessment.verdict, Verdict::Fill, "{:#?}", assessment.evidence);
    assert!(assessment.confidence > 0.9, "{}", assessment.confidence);
    let plateau = assessment.plateau.expect("a plateau");
    assert_near(plateau.bytes as f64, 17.5e9, 0.03);
    assert!(plateau.low < plateau.bytes && plateau.bytes < plateau.high);
    assert!(plateau.step.expect("a knee").abs_diff(83) <= 2);
    let per_sample = assessment.growth_per_sample.expect("a cost per sample");
    assert!((18e6..21e6).contains(&per_sample), "{per_sample}");
    assert_eq!(assessment.growth_per_step, Some(per_sample * 8.0));
    assert_eq!(assessment.growth_per_minute, None, "the log has no clock");
    assert!(
        assessment
            .evidence
            .iter()
            .any(|sentence| sentence.as_str().contains("663 rows, 8 a step) ends at step 83"))
    );
}

#[test]
fn without_the_numbers_it_is_bounded_all_the_same() {
    let assessment = judge("founding-run2.log", u64::MAX, RunFacts::default());
    assert!([Verdict::Fill, Verdict::WarmUp].contains(&assessment.verdict), "{:#?}", assessment);
}

/// Inside the first epoch a fill and a leak look alike: both endings are told.
fn assert_both_endings(assessment: &Assessment, out_at: (u64, u64)) {
    assert_eq!(assessment.verdict, Verdict::Undecided, "{:#?}", assessment.evidence);
    assert_eq!(assessment.decidable_at_step, Some(91));
    let ending = |verdict: Verdict| -> &Ending {
        assessment.endings.iter().find(|ending| ending.verdict == verdict).expect("an ending")
    };
    let plateau = ending(Verdict::Fill).plateau.expect("a plateau");
    assert_near(plateau.bytes as f64, 17.7e9, 0.05);
    assert_eq!(plateau.step, Some(83));
    let out = ending(Verdict::Leak).exhaustion.expect("a step at which the limit is reached");
    assert!((out_at.0..=out_at.1).contains(&out.step.expect("a step")), "{out:?}");
    assert!(out.low < out.step.map(|step| step as f64) && out.high > out.step.map(|step| step as f64));
}

#[test]
fn the_first_run_ends_before_it_can_be_told() {
    assert_both_endings(&judge("founding-run1.log", u64::MAX, told()), (165, 180));
}

#[test]
fn nor_can_the_second_be_told_after_forty_steps() {
    assert_both_endings(&judge("founding-run2.log", 40, told()), (165, 180));
}
