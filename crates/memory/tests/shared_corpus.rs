//! Labelled traces beside the project, where there are any: each must get an accepted verdict.
//!
//! `TRACES=folder cargo test -p garden-memory --test shared_corpus` judges those of another folder.

use garden_memory::{Analyst, TraceReader};
use std::{collections::BTreeMap, path::Path};

#[derive(serde::Deserialize)]
struct Label {
    accept: Vec<String>,
}

#[test]
fn every_labelled_trace_gets_an_accepted_verdict() {
    // Beside the workspace, or beside the folder of its work trees.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = ["../shared/corpus", "../../shared/corpus"].map(|place| workspace.join(place));
    let told = std::env::var_os("TRACES").map(std::path::PathBuf::from);
    let Some(folder) = told.into_iter().chain(places).find(|place| place.join("labels.json").exists()) else {
        return;
    };
    let labels = std::fs::read(folder.join("labels.json")).expect("labels");
    let labels: BTreeMap<String, Label> = serde_json::from_slice(&labels).expect("labels");
    let mut wrong = Vec::new();
    for (name, label) in &labels {
        let reader = TraceReader::open(folder.join(format!("{name}.jsonl"))).expect("a trace");
        let mut analyst = Analyst::new(reader.header().facts.clone());
        for sample in reader {
            analyst.push(&sample.expect("a sample"));
        }
        let assessment = analyst.assessment();
        let verdict = serde_json::to_value(assessment.verdict).expect("a verdict");
        if !label.accept.iter().any(|accepted| *accepted == verdict) {
            wrong.push(format!("{name}: {verdict}, not {:?}; {:#?}", label.accept, assessment.evidence));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), labels.len(), wrong.join("\n"));
}
