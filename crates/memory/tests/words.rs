//! What is said of many runs: never a word that contradicts the verdict, nor one that is no English.

mod families;

use garden_memory::{
    RunFacts, TraceHeader, TraceWriter, Verdict,
    report::{Run, text},
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
        Verdict::Steady => &["grows", "per row", "Every row", "is a straight line"],
        Verdict::WarmUp => &[
            "grows by",
            "Every row",
            "per row",
            "is a warm-up on top of a straight line",
            "is a straight line",
        ],
        Verdict::Fill => &["grows by", "is a straight line"],
        Verdict::Leak => &["stayed level", "Every row", "has stopped"],
        Verdict::Undecided => &["stayed level", "has stopped growing", "Every row"],
    }
}

#[test]
fn reports_of_many_runs_neither_contradict_themselves_nor_break_the_grammar() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("made.jsonl");
    for family in families::all() {
        for seed in 500..503 {
            let made = family(seed);
            let header = TraceHeader::new("made", made.facts.clone());
            let mut writer = TraceWriter::create(&path, &header).expect("a trace");
            made.samples.iter().for_each(|sample| writer.append(sample).expect("a written sample"));
            drop(writer);
            let run =
                Run::read(&path, &RunFacts { limit: Some(64_000_000_000), ..made.facts }).expect("a run");
            let verdict = run.assessment.verdict;
            let report = text::text(&run, text::Style { color: false, width: 100 });
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
