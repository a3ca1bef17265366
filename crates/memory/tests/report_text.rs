//! What a person sees: the text of the founding case, to the letter.
//!
//! `UPDATE=1 cargo test -p garden-memory --test report_text` writes it anew; check the difference before you
//! keep it.

use garden_memory::{
    RunFacts, TraceOptions,
    report::{self, Run},
};
use std::path::Path;

fn shown(log: &str, color: bool) -> String {
    let facts = RunFacts {
        dataset_size: Some(663),
        samples_per_step: Some(8),
        limit: Some(32_000_000_000),
        ..RunFacts::default()
    };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let run = Run::read(data.join(log), &facts, &TraceOptions::default()).expect("a run");
    report::text(&run, report::Style { color, width: 80 })
}

#[test]
fn the_founding_case_reads_as_it_should() {
    for run in ["founding-run1", "founding-run2"] {
        let found = shown(&format!("{run}.log"), false);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{run}.txt"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &found).expect("a written file");
        }
        assert_eq!(found, std::fs::read_to_string(path).expect("the text as it should be"));
    }
}

#[test]
fn colour_is_on_top_of_the_same_text() {
    let painted = shown("founding-run2.log", true);
    assert!(painted.contains("\u{1b}[1;36mFILL\u{1b}[0m"));
    let mut plain = painted;
    for code in ["\u{1b}[1;36m", "\u{1b}[1m", "\u{1b}[0m"] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, shown("founding-run2.log", false));
}

#[test]
fn a_file_that_decides_nothing_is_not_to_be_watched() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("short.csv");
    for rows in ["1,500\n", "1,500\n2,510\n3,520\n4,530\n5,545\n"] {
        std::fs::write(&path, format!("time_s,rss_mb\n{rows}")).expect("a written file");
        let run = Run::read(&path, &RunFacts::default(), &TraceOptions::default()).expect("a run");
        let last = run.assessment.advice.last().expect("advice");
        assert!(last.as_str().contains("Record a longer part of the run"), "{last}");
    }
}
