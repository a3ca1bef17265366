//! Labelled traces that lie beside the project, where they do: every one must get an accepted verdict.

use garden_memory::{Analyst, TraceReader};
use std::{collections::BTreeMap, path::Path};

#[derive(serde::Deserialize)]
struct Label {
    accept: Vec<String>,
}

#[test]
fn every_labelled_trace_gets_an_accepted_verdict() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    let folder = if folder.exists() { folder } else { Path::new("/work/shared/corpus").to_owned() };
    let Ok(labels) = std::fs::read(folder.join("labels.json")) else { return };
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
        if std::env::var("SHOW").is_ok() {
            println!("{name} {verdict}");
        }
        if !label.accept.iter().any(|accepted| *accepted == verdict) {
            wrong.push(format!("{name}: {verdict}, not {:?}; {:#?}", label.accept, assessment.evidence));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), labels.len(), wrong.join("\n"));
}
