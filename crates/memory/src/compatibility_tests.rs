//! Every example in docs/compatibility.md under "Logs and traces" is read, or refused, as the page says.
//!
//! An example is a fenced block whose first line says what is found in it: ```` ```text memory=5552MB step=10
//! ````.

use crate::{
    ByteSize, RunFacts, Sample,
    steps::{OutputParser, Position, StepBoard, StepPatterns},
    trace::{TraceOptions, TraceReader},
};
use std::{collections::BTreeMap, path::Path};

struct Example {
    says: BTreeMap<String, String>,
    text: String,
    line: usize,
}

/// The examples of a section.
fn examples(page: &str, section: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let (mut inside, mut in_block) = (false, false);
    for (number, line) in page.lines().enumerate() {
        if let Some(title) = line.strip_prefix("## ").filter(|_| !in_block) {
            inside = title == section;
        } else if let Some(says) = line.strip_prefix("```").filter(|_| inside) {
            in_block = !in_block;
            if in_block {
                let says =
                    says.strip_prefix("text ").unwrap_or_else(|| panic!("line {}: '{says}'", number + 1));
                examples.push(Example { says: attributes(says), text: String::new(), line: number + 1 });
            }
        } else if in_block {
            let text = &mut examples.last_mut().expect("a block has begun").text;
            text.push_str(line);
            text.push('\n');
        }
    }
    examples
}

/// `step=10 note="two words"`.
fn attributes(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim();
    while let Some((name, value)) = rest.split_once('=') {
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').expect("a closing quote"),
            None => value.split_once(' ').unwrap_or((value, "")),
        };
        found.insert(name.trim().to_owned(), value.to_owned());
        rest = after.trim_start();
    }
    found
}

/// The flags as `memory analyze` takes them.
fn options(flags: &str) -> TraceOptions {
    let mut options = TraceOptions::default();
    let words: Vec<&str> = flags.split_whitespace().collect();
    for pair in words.chunks(2) {
        let [flag, value] = pair else { panic!("{flags}: a flag and its value") };
        let pattern = || Some(value.parse().expect("a pattern"));
        match *flag {
            "--memory-pattern" => options.memory = pattern(),
            "--step-pattern" => options.steps.step = pattern(),
            "--epoch-pattern" => options.steps.epoch = pattern(),
            "--column" => options.column = Some((*value).to_owned()),
            "--process" => options.process = Some((*value).to_owned()),
            "--unit" => options.unit = Some(value.parse().expect("a unit")),
            "--time-unit" => options.time_unit = Some(value.parse().expect("a unit")),
            _ => panic!("{flag} is no flag that reads"),
        }
    }
    options
}

/// What was found in an example, under the names that the page uses.
fn found(example: &Example) -> Result<BTreeMap<&'static str, String>, String> {
    let mut found = BTreeMap::new();
    let figures = ["memory", "note", "refused", "time"].iter().any(|name| example.says.contains_key(*name));
    if figures {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        std::fs::write(&path, &example.text).expect("a file");
        let options = options(example.says.get("flags").map_or("", String::as_str));
        let mut reader = TraceReader::open_with(&path, &options).map_err(|error| error.to_string())?;
        let samples =
            reader.by_ref().collect::<Result<Vec<Sample>, _>>().map_err(|error| error.to_string())?;
        let last = samples.last().expect("a file without figures is an error");
        found.insert("memory", last.rss.to_string());
        found.insert("readings", samples.len().to_string());
        found.insert("time", last.t.to_string());
        found.insert("step", last.step.map_or("none".to_owned(), |step| step.to_string()));
        found.insert("epoch", last.epoch.map_or("none".to_owned(), |epoch| epoch.to_string()));
        found.insert("note", reader.notes().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    } else {
        let board = StepBoard::default();
        OutputParser::new(board.clone(), &StepPatterns::default()).feed(example.text.as_bytes());
        let Position { step, epoch } = board.now(&RunFacts::default());
        let facts = board.facts(&RunFacts::default());
        let said = |number: Option<u64>| number.map_or("none".to_owned(), |number| number.to_string());
        found.insert("step", said(step));
        found.insert("epoch", epoch.map_or("none".to_owned(), |epoch| epoch.to_string()));
        found.insert("rows", said(facts.dataset_size));
        found.insert("rows-per-step", said(facts.samples_per_step));
    }
    Ok(found)
}

/// Whether what was found is what the page says.
fn agrees(name: &str, said: &str, found: &str) -> bool {
    match name {
        "memory" => said.parse::<ByteSize>().expect("a size").0.to_string() == found,
        "note" if said.is_empty() => found.is_empty(),
        "note" => found.contains(said),
        _ => said == found,
    }
}

fn check(example: &Example) -> Result<(), String> {
    let refused = example.says.get("refused");
    match (found(example), refused) {
        (Err(error), Some(why)) if error.contains(why.as_str()) => Ok(()),
        (Err(error), _) => Err(format!("refused: {error}")),
        (Ok(found), Some(why)) => Err(format!("read as {found:?}, not refused ({why})")),
        (Ok(found), None) => {
            let note = found.get("note").filter(|_| !example.says.contains_key("note"));
            if let Some(note) = note.filter(|note| !note.is_empty()) {
                return Err(format!("a note that the page does not tell: {note}"));
            }
            for (name, said) in example.says.iter().filter(|(name, _)| *name != "flags") {
                let found = found.get(name.as_str()).ok_or_else(|| format!("'{name}' is not known here"))?;
                if !agrees(name, said, found) {
                    return Err(format!("{name} is {found}, not {said}"));
                }
            }
            Ok(())
        }
    }
}

#[test]
fn every_example_is_read_or_refused_as_the_page_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let examples = examples(&std::fs::read_to_string(page).expect("the page"), "Logs and traces");
    assert!(examples.len() > 50, "{} examples", examples.len());
    let wrong: Vec<String> = examples
        .iter()
        .filter_map(|example| {
            Some(format!("line {}: {}\n{}", example.line, check(example).err()?, example.text))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
