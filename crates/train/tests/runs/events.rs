//! Compares what runs emit with docs/events.md: every event and field is documented with its type, and every
//! documented one exists.

use crate::garden::Garden;
use garden_train::{
    Cancel, Event, OnBadRow, OnMemoryLimit, TrainOptions,
    events::{EVENT_VERSION, EVENTS, EndReason, Record},
    train,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Types of the fields of each event, by their paths: `image_sizes[].width`.
pub type Schema = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

pub fn documented() -> Schema {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
    let mut schema = Schema::new();
    let mut event = None;
    for line in fs::read_to_string(page).unwrap().lines() {
        if let Some(name) = line.strip_prefix("### `").and_then(|name| name.strip_suffix('`')) {
            event = Some(name.to_owned());
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(event), [_, field, types, ..]) = (&event, cells.as_slice())
            && let Some(field) = field.strip_prefix('`').and_then(|field| field.strip_suffix('`'))
        {
            let types = types.split(" or ").map(str::to_owned).collect();
            schema.entry(event.clone()).or_default().insert(field.to_owned(), types);
        }
    }
    schema
}

/// The leaves of a value with their types.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, &'static str)>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let name = if path == "values" { "*" } else { name };
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            leaves(&path, value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| leaves(&format!("{path}[]"), item, found)),
        Value::Null => found.push((path.to_owned(), "null")),
        Value::Bool(_) => found.push((path.to_owned(), "boolean")),
        Value::String(_) => found.push((path.to_owned(), "text")),
        Value::Number(number) if number.is_f64() => found.push((path.to_owned(), "number")),
        Value::Number(_) => found.push((path.to_owned(), "integer")),
    }
}

/// Holds one line against the page, and remembers what was seen.
pub fn check(line: &str, schema: &Schema, seen: &mut BTreeSet<(String, String)>) {
    let record: Record = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(record.version, EVENT_VERSION);
    let mut value: Value = serde_json::from_str(line).unwrap();
    let fields = value.as_object_mut().unwrap();
    assert!(fields.remove("version").is_some() && fields.remove("time").is_some_and(|time| time.is_f64()));
    let Some(Value::String(event)) = fields.remove("event") else { panic!("no event: {line}") };
    let documented = schema.get(&event).unwrap_or_else(|| panic!("{event} is not in docs/events.md"));
    let mut found = Vec::new();
    leaves("", &value, &mut found);
    for (field, kind) in found {
        let types = documented.get(&field).unwrap_or_else(|| panic!("{event}: {field} is not documented"));
        assert!(types.contains(kind), "{event}: {field} is {kind}, documented as {types:?}");
        seen.insert((event.clone(), field));
    }
}

/// Runs with an observer that keeps every event as a line.
fn events_of(garden: &Garden, output: &str, options: TrainOptions, cancel_after: Option<u64>) -> Vec<String> {
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let mut observer = Keeping { lines: Vec::new(), stop, cancel_after };
    // One of them fails on purpose: its last event says so.
    let _ = train(&garden.config(output, options), &mut observer, &cancel);
    observer.lines
}

struct Keeping {
    lines: Vec<String>,
    stop: Cancel,
    cancel_after: Option<u64>,
}

impl garden_train::Observer for Keeping {
    fn on_event(&mut self, event: &Event) {
        if matches!(event, Event::Step(step) if Some(step.step) == self.cancel_after) {
            self.stop.cancel();
        }
        self.lines.push(Record::now(event.clone()).to_json());
    }
}

#[test]
fn every_event_of_a_run_is_as_documented() {
    let garden = Garden::new();
    let schema = documented();
    let evaluated = || TrainOptions {
        eval_split: Some("4".into()),
        eval_steps: Some(2),
        save_steps: Some(2),
        ..TrainOptions::default()
    };
    // A bad row and one that is too long, fields that are not read, rows both trained and evaluated on.
    let rows = garden.path("rows/train.jsonl");
    let text = fs::read_to_string(&rows).unwrap();
    let mut lines: Vec<String> = text.lines().map(|line| line.replacen('{', "{\"ticket\": 1, ", 1)).collect();
    lines.push(lines[0].clone());
    lines.push("{\"messages\": 3}".to_owned());
    fs::write(&rows, lines.join("\n")).unwrap();
    let skipping =
        || TrainOptions { on_bad_row: Some(OnBadRow::Skip), max_bad_rows: Some("50%".into()), ..evaluated() };
    let limited = TrainOptions {
        memory_limit: Some("1MB".parse().unwrap()),
        on_memory_limit: Some(OnMemoryLimit::Warn),
        cleanup_every: Some(1),
        ..skipping()
    };
    let runs = [
        events_of(&garden, "out", skipping(), Some(2)),
        events_of(&garden, "out", TrainOptions { learning_rate: Some(1e-5), ..skipping() }, None),
        events_of(&garden, "out", skipping(), None),
        events_of(&garden, "limited", limited, None),
        events_of(&garden, "refused", evaluated(), None),
        events_of(&garden, "stopped", TrainOptions { early_stopping_patience: Some(1), ..skipping() }, None),
    ];
    let mut seen = BTreeSet::new();
    for run in &runs {
        run.iter().for_each(|line| check(line, &schema, &mut seen));
        let ends = run.iter().filter(|line| line.contains("\"event\":\"end\"")).count();
        assert_eq!(ends, 1, "one end");
        assert!(run.last().unwrap().contains("\"event\":\"end\""), "and it comes last");
    }
    let file = fs::read_to_string(garden.path("out").join(EVENTS)).unwrap();
    file.lines().for_each(|line| check(line, &schema, &mut seen));
    let ends: Vec<EndReason> = runs.iter().map(|run| end_of(run)).collect();
    use EndReason::{AlreadyFinished, Cancelled, Failed, Finished};
    assert_eq!(ends[..5], [Cancelled, Finished, AlreadyFinished, Finished, Failed]);

    let events: BTreeSet<&String> = seen.iter().map(|(event, _)| event).collect();
    assert_eq!(events, schema.keys().collect(), "every documented event was emitted");
    // What these runs have no reason to say.
    let rare = [
        ("rows_surveyed", "longest.pixels"),
        ("rows_surveyed", "not_read[]"),
        ("rows_surveyed", "selective_loss_keys[]"),
        ("rows_surveyed", "example"),
    ];
    for (event, fields) in &schema {
        for field in fields.keys().filter(|field| !rare.contains(&(event.as_str(), field.as_str()))) {
            assert!(seen.contains(&(event.clone(), field.clone())), "{event}: {field} was never emitted");
        }
    }
}

fn end_of(run: &[String]) -> EndReason {
    let record: Record = serde_json::from_str(run.last().unwrap()).unwrap();
    let Event::End(end) = record.event else { panic!("{record:?}") };
    end.reason
}

#[test]
fn the_journal_is_what_the_observer_heard_without_progress() {
    let garden = Garden::new();
    let heard = events_of(&garden, "out", TrainOptions::default(), None);
    let file = fs::read_to_string(garden.path("out").join(EVENTS)).unwrap();
    let events = |lines: &mut dyn Iterator<Item = &str>| -> Vec<Event> {
        lines.map(|line| serde_json::from_str::<Record>(line).unwrap().event).collect()
    };
    let mut heard = events(&mut heard.iter().map(String::as_str));
    heard.retain(|event| !matches!(event, Event::Progress(_)));
    let written = events(&mut file.lines());
    assert_eq!(written, heard);
    assert!(matches!(written.last(), Some(Event::End(_))));
}
