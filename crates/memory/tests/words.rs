//! What is said about many runs: never a word that contradicts the verdict, and always correct English.

mod families;

use garden_memory::{
    Analyst, Assessment, RunFacts, Sample, TraceHeader, TraceOptions, TraceWriter, Verdict,
    report::{self, Run},
};

/// What no report says, whatever it is about.
const NEVER: [&str; 20] = [
    // A file cannot be watched.
    "Watch for",
    "Look again",
    "a steady",
    "% sure",
    "by -",
    "--",
    "samples shows",
    "sample show ",
    " 1 samples",
    " 1 steps",
    " 1 seconds",
    " 1 jumps",
    " 1 times",
    "grew by 0",
    "fell by 0",
    "NaN",
    "inf ",
    "step -",
    "  .",
    " ,",
];

/// What a verdict's report does not say.
fn contradicts(verdict: Verdict) -> &'static [&'static str] {
    match verdict {
        Verdict::Steady => &[
            "grows",
            "per row",
            "Every row",
            "is a straight line",
            "explanation is growth",
            "explanation is one ",
            "explanation is a constant rate",
            "jumps between levels (",
        ],
        Verdict::WarmUp => &[
            "grows by",
            "Every row",
            "per row",
            "is a warm-up on top of a straight line",
            "is a straight line",
            "explanation is a level",
        ],
        Verdict::Fill => &["grows by", "is a straight line"],
        Verdict::Leak => &["stayed level", "Every row", "has stopped", "explanation is a level ("],
        Verdict::Undecided => &["stayed level", "has stopped growing", "Every row"],
    }
}

/// `SEEDS=50` reads the reports of so many more runs of each family.
fn more() -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(0)
}

#[test]
fn reports_of_many_runs_neither_contradict_themselves_nor_break_the_grammar() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("made.jsonl");
    for family in families::all() {
        for seed in 500..503 + more() {
            let made = family(seed);
            let header = TraceHeader::new("made", made.facts.clone());
            let mut writer = TraceWriter::create(&path, &header).expect("a trace");
            made.samples.iter().for_each(|sample| writer.append(sample).expect("a written sample"));
            drop(writer);
            let run = Run::read(
                &path,
                &RunFacts { limit: Some(64_000_000_000), ..made.facts },
                &TraceOptions::default(),
            )
            .expect("a run");
            let verdict = run.assessment.verdict;
            let report = report::text(&run, report::Style { color: false, width: 100 });
            // Flags have two dashes, and a chart has none of these.
            let words = report
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .replace(" --", " ")
                .replace("(--", "(");
            for never in NEVER.iter().chain(contradicts(verdict)) {
                assert!(!words.contains(never), "{}, seed {seed} says '{never}':\n{report}", made.family);
            }
            let least = match verdict {
                Verdict::Undecided => 0.0,
                Verdict::Leak => 0.8,
                _ => 0.75,
            };
            let sure = run.assessment.confidence;
            assert!(sure >= least, "{}, seed {seed}: {verdict:?} at {sure}", made.family);
        }
    }
}

/// The reasons, in one text.
fn said(assessment: &Assessment) -> String {
    assessment.evidence.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// What is found in a run of so many steps, with a little noise.
fn found(steps: u64, epoch: Option<f64>, bytes: impl Fn(u64) -> u64) -> Assessment {
    let mut analyst = Analyst::new(RunFacts { steps_per_epoch: epoch, ..RunFacts::default() });
    for step in 1..=steps {
        let anon = bytes(step) + (step * 7_919) % 300_000;
        analyst.push(&Sample { t: step as f64, step: Some(step), rss: anon, anon, ..Sample::default() });
    }
    analyst.assessment()
}

#[test]
fn jumps_that_come_to_no_growth_are_not_told_as_growth() {
    // Up and down again by 3 MB, twice: the level is where it was.
    let steady = found(200, None, |step| 1_000_000_000 + if step % 100 > 50 { 3_000_000 } else { 0 });
    assert_eq!(steady.verdict, Verdict::Steady, "{steady:#?}");
    let said = said(&steady);
    assert!(said.contains("explanation is a level with 3 jumps that come to no growth"), "{said}");
}

#[test]
fn undecided_growth_that_has_ceased_is_not_told_as_going_on() {
    // At a constant rate up to step 100, and level since; two jumps, and level since.
    let hinge = found(110, None, |step| 1_000_000_000 + 780_000 * step.min(100));
    let jumps =
        found(100, None, |step| 300_000_000 + 4_000_000 * (u64::from(step > 20) + u64::from(step > 70)));
    for (found, since) in [(&hinge, "step 100"), (&jumps, "step 71")] {
        let said = said(found);
        assert!(found.verdict == Verdict::Undecided && !found.grows_now, "{said}");
        assert!(said.contains(&format!("It has hardly grown since {since}, which is too short")), "{said}");
    }
    assert!(hinge.growth_per_step.is_some() && jumps.growth_per_step.is_none(), "two jumps are no rate");
    let grows = found(100, Some(400.0), |step| 1_000_000_000 + 7_800_000 * step);
    assert!(grows.grows_now && grows.verdict == Verdict::Undecided, "{grows:#?}");
    let leaks = found(300, Some(50.0), |step| 1_000_000_000 + 7_800_000 * step);
    assert!(leaks.grows_now && leaks.verdict == Verdict::Leak, "{leaks:#?}");
}

#[test]
fn how_long_it_has_been_level_counts_from_the_last_jump_that_is_told() {
    let found = found(190, None, |step| 1_000_000_000 + 7_800_000 * (step.min(130) / 30));
    let said = said(&found);
    assert!(
        said.contains("at steps 30, 60, 90 and 120) and has stayed level for the 70 steps since"),
        "{said}"
    );
}
