//! `memory analyze` and `memory report` as a user runs them: exit codes, JSON, files, messages.

use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const KNOWN: [&str; 4] = ["--dataset-size", "663", "--samples-per-step", "8"];

fn garden(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_model-garden"))
        .arg("memory")
        .args(arguments)
        .output()
        .expect("the command runs")
}

/// Judges one of the founding case's logs, with its dataset told.
fn analyze(run: u8, more: &[&str]) -> Output {
    garden(&[&["analyze", &founding(run)], more, &KNOWN[..]].concat())
}

fn founding(run: u8) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memory/tests/data");
    data.join(format!("founding-run{run}.log")).to_str().expect("a path").to_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A trace whose memory at each of 200 steps, two epochs, is `bytes`.
fn trace(folder: &Path, name: &str, bytes: impl Fn(u64) -> u64) -> PathBuf {
    let header = serde_json::json!({"trace": "model-garden/1", "name": name, "dataset_size": 100, "samples_per_step": 1});
    let samples = (1..=200).map(|step| {
        let anon = bytes(step);
        serde_json::json!({"t": step, "step": step, "rss": anon, "anon": anon, "file": 0, "shmem": 0, "swap": 0})
    });
    let lines: Vec<String> =
        std::iter::once(header).chain(samples).map(|line| line.to_string() + "\n").collect();
    let path = folder.join("made.jsonl");
    fs::write(&path, lines.concat()).expect("a written trace");
    path
}

#[test]
fn the_exit_code_is_the_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let code = |bytes: &dyn Fn(u64) -> u64, limit: &str| {
        let path = trace(folder.path(), "made", bytes);
        garden(&["analyze", path.to_str().expect("a path"), "--limit", limit]).status.code()
    };
    let gigabyte = 1_000_000_000;
    assert_eq!(code(&|step| gigabyte + step % 3, "8GB"), Some(0), "steady");
    assert_eq!(code(&|step| gigabyte + step % 3, "900MB"), Some(4), "steady, but above the limit");
    assert_eq!(code(&|step| gigabyte + 10_000_000 * step, "8GB"), Some(1), "leak");
    assert_eq!(code(&|step| gigabyte + 10_000_000 * step.min(100), "8GB"), Some(0), "a fill that fits");
    assert_eq!(code(&|step| gigabyte + 10_000_000 * step.min(100), "1.5GB"), Some(4), "a fill that does not");
    assert_eq!(analyze(1, &[]).status.code(), Some(3), "undecided");
}

#[test]
fn a_level_above_the_limit_is_said_not_to_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = trace(folder.path(), "made", |step| 1_000_000_000 + step % 3);
    let output = garden(&["analyze", path.to_str().expect("a path"), "--limit", "900MB"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("It will not fit: 1.00 GB against a limit of 900 MB"), "{said}");
    assert!(!said.contains("Nothing to do"), "{said}");
}

#[test]
fn a_limit_that_cannot_be_meant_is_refused() {
    let output = garden(&["analyze", &founding(1), "--limit", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("a limit of 0 leaves nothing to run in"));
    let output = garden(&["analyze", &founding(1), "--limit", "80%"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a file does not say of which machine"), "{said}");
}

#[test]
fn json_has_every_key_and_bytes_throughout() {
    let found = json(&analyze(2, &["--limit", "32GB", "--format", "json"]));
    let keys = "verdict confidence growth_per_step growth_per_sample growth_per_minute plateau exhaustion endings \
                decidable_at_step mechanism evidence advice";
    for key in keys.split_whitespace() {
        assert!(found.get(key).is_some(), "{key} is missing");
    }
    assert_eq!(found["verdict"], "fill");
    assert_eq!(found["plateau"]["step"], 83);
    for key in ["bytes", "low", "high"] {
        assert!(found["plateau"][key].as_u64().is_some_and(|bytes| bytes > 16_000_000_000), "{key}");
    }
    let undecided = json(&analyze(1, &["--limit", "32GB", "--format", "json"]));
    let leak =
        undecided["endings"].as_array().expect("endings").iter().find(|ending| ending["verdict"] == "leak");
    let exhaustion = &leak.expect("a leak ending")["exhaustion"];
    assert!(exhaustion["step"].as_u64().is_some_and(|step| (160..185).contains(&step)), "{exhaustion}");
    assert_eq!(undecided["decidable_at_step"], 91);
}

#[test]
fn unreadable_input_is_named_and_ends_with_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = "{\"trace\":\"model-garden/1\"}\n{\"t\":1,\"rss\":2}\nnonsense\n";
    let cases = [
        ("empty.jsonl", "", "the file is empty"),
        ("words.log", "hello\nworld\n", "no memory figure in 2 lines"),
        ("broken.jsonl", broken, "broken.jsonl:3: expected a sample"),
    ];
    for (name, text, message) in cases {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a written file");
        let output = garden(&["analyze", path.to_str().expect("a path")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(said.starts_with("error: ") && said.contains(message), "{said}");
    }
    assert_eq!(garden(&["analyze", "/nowhere/at/all"]).status.code(), Some(2));
    assert_eq!(garden(&["analyze"]).status.code(), Some(2));
}

#[test]
fn help_names_every_format() {
    let help = garden(&["analyze", "--help"]);
    let words: Vec<_> = str::from_utf8(&help.stdout).expect("text").split_whitespace().collect();
    let formats = garden_memory::format_names();
    assert!(words.join(" ").contains(&format!("Reads {formats}, plain or packed")), "{formats}: {words:?}");
}

#[test]
fn an_error_says_which_flag_would_help() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("words.log", "hello\nworld\n", "--memory-pattern"),
        ("board.csv", "Wall time,Step,Value\n1,10,5552\n", "--column NAME"),
        ("bare.csv", "step,mem\n10,17.4\n", "--unit: B, kB, MB"),
    ];
    for (name, text, flag) in cases {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a written file");
        let said = garden(&["analyze", path.to_str().expect("a path")]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains(flag) && said.lines().count() == 1, "{said}");
    }
    let bad = garden(&["analyze", "x", "--memory-pattern", "no group"]);
    assert!(String::from_utf8_lossy(&bad.stderr).contains("has no group"), "{bad:?}");
}

#[test]
fn standard_input_and_the_flags_for_reading_work_in_both_commands() {
    let log: String = (1..=120).map(|step| format!("it<{step}> host~{}M\n", 1000 + step % 3)).collect();
    let flags = ["--memory-pattern", r"host~(\d+)(M)", "--step-pattern", r"it<(\d+)>"];
    let mut analyze = Command::new(env!("CARGO_BIN_EXE_model-garden"))
        .args(["memory", "analyze", "-", "--format", "json"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    analyze.stdin.take().expect("piped").write_all(log.as_bytes()).expect("it reads");
    let output = analyze.wait_with_output().expect("it ends");
    let found = json(&output);
    assert_eq!((&found["name"], &found["verdict"]), (&"standard input".into(), &"steady".into()));
    assert_eq!(found["samples"], 120);

    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    fs::write(path("run.log"), log).expect("a written file");
    let picture = path("run.svg");
    let output = garden(&[&["report", &path("run.log"), "--svg", &picture][..], &flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_was_assumed_is_said_with_the_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.csv");
    let rows: String = (1..=60).map(|step| format!("{step},{}\n", 5000 + step % 3)).collect();
    fs::write(&path, format!("step,mem\n{rows}")).expect("a written file");
    let path = path.to_str().expect("a path");
    let said = |output: Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let text = said(garden(&["analyze", path]));
    assert!(text.contains("Column 'mem' has no unit") && text.contains("taken for MB"), "{text}");
    let told = said(garden(&["analyze", path, "--unit", "MB"]));
    assert!(!told.contains("no unit") && told.contains("5.00 GB"), "{told}");
}

#[test]
fn pictures_and_pages_stand_on_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let (svg, single, compared) = (path("curve.svg"), path("page.html"), path("compare.html"));
    analyze(2, &["--svg", &svg, "--html", &single]);
    let svg = fs::read_to_string(svg).expect("a picture");
    assert!(
        svg.contains("epoch 1 ends at step 83")
            && svg.contains("plateau 17.4 GB")
            && svg.ends_with("</svg>\n")
    );

    let hostile = trace(folder.path(), "</script><b>", |step| 1_000_000_000 + step);
    let hostile = hostile.to_str().expect("a path");
    let output = garden(&["report", &founding(1), &founding(2), hostile, "--html", &compared]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for page in [&single, &compared] {
        let page = fs::read_to_string(page).expect("a page");
        assert!(!page.contains("<script src=") && !page.contains("<link"), "nothing is fetched");
        assert!(page.contains("var uPlot=") && page.len() < 500_000, "a small script is inside");
        assert!(page.contains("default-src 'none'") && page.contains("The MIT License"));
    }
    let page = fs::read_to_string(compared).expect("a page");
    let data =
        page.rsplit("type=\"application/json\">").next().and_then(|rest| rest.split("</script>").next());
    let charts: Value = serde_json::from_str(data.expect("data")).expect("JSON");
    assert_eq!(charts.as_array().map(Vec::len), Some(4), "all together, and each alone");
    let names: Vec<&str> = charts[0]["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .filter_map(|line| line["name"].as_str())
        .collect();
    assert_eq!(names.len(), 3);
    assert!(names[2].starts_with("</script><b>: "), "a name is no markup: {names:?}");
}

#[test]
fn several_runs_share_a_picture_over_steps_or_over_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("both.svg");
    let picture = picture.to_str().expect("a path");
    let facts = ["--dataset-size", "663", "--samples-per-step", "8"];
    let flat = trace(folder.path(), "flat <run>", |_| 1_000_000_000);
    let flat = flat.to_str().expect("a path");
    let more = ["report", &founding(2), flat, "--svg", picture, "--title", "Two runs"];
    let output = garden(&[&more[..], &facts].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let svg = fs::read_to_string(picture).expect("a picture");
    assert_eq!(svg.matches("<polyline").count(), 2);
    for text in ["Two runs", "epoch 1 ends at step 83", ": fill", "flat &lt;run&gt;: steady", ">1.00 GB<"] {
        assert!(svg.contains(text), "{text} is missing in {svg}");
    }

    let seconds = folder.path().join("seconds.dat");
    let lines: String = (0..200).map(|i| format!("MEM 100.0 {}.0\n", 1_700_000_000 + i)).collect();
    fs::write(&seconds, lines).expect("a written file");
    let seconds = seconds.to_str().expect("a path");
    let mixed = garden(&["report", flat, seconds, "--svg", picture]);
    assert!(mixed.status.success(), "{}", String::from_utf8_lossy(&mixed.stderr));
    assert!(fs::read_to_string(picture).expect("a picture").contains(">time</text>"), "both know the time");
    // This log tells steps and no times.
    let untimed = garden(&["report", &founding(2), seconds, "--svg", picture]);
    let said = String::from_utf8_lossy(&untimed.stderr);
    assert_eq!(untimed.status.code(), Some(2), "{said}");
    assert!(said.contains("one has only steps"), "{said}");
}

#[test]
fn notes_and_advice_name_the_flags_that_help_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a written file");
        path.to_str().expect("a path").to_owned()
    };
    let page = folder.path().join("page.html").to_str().expect("a path").to_owned();
    let ranks = (1..=20).flat_map(|step| (0..2).map(move |rank| (step, rank)));
    let ranks: String =
        ranks.map(|(step, rank)| format!("[rank{rank}]:Step {step} RSS: {} MB\n", 5000 + step)).collect();
    let bare: String = (1..=20).map(|row| format!("{},5552\n", row * 1001)).collect();
    let growing: String = (1..=40).map(|step| format!("{step},{}\n", 5000 + 50 * step)).collect();
    for (path, flags) in [
        (write("ranks.log", ranks), &["(--process chooses another)"][..]),
        (
            write("bare.csv", format!("time,rss\n{bare}")),
            &["(--unit says another)", "(--time-unit says another)"],
        ),
        (
            write("growing.csv", format!("step,rss_mb\n{growing}")),
            &["(--dataset-size N --samples-per-step K)"],
        ),
        (
            write("few.csv", "time_s,rss_mb\n1,500\n".to_owned()),
            &["(model-garden memory run --out run.jsonl"],
        ),
    ] {
        let text = garden(&["analyze", &path, "--html", &page]);
        let json = garden(&["analyze", &path, "--format", "json"]);
        let joined =
            |text: &[u8]| String::from_utf8_lossy(text).split_whitespace().collect::<Vec<_>>().join(" ");
        let page = joined(&fs::read(&page).expect("a page"));
        for flag in flags {
            for (form, said) in
                [("text", joined(&text.stdout)), ("json", joined(&json.stdout)), ("html", page.clone())]
            {
                assert!(said.contains(flag), "{path}: no {flag} in the {form}: {}", joined(&text.stdout));
            }
        }
    }
    let leak = trace(folder.path(), "leak", |step| 1_000_000_000 + 10_000_000 * step);
    let said =
        garden(&["analyze", leak.to_str().expect("a path"), "--limit", "8GB", "--format", "json"]).stdout;
    let restart = "(model-garden memory run --limit ... --on-limit restart)";
    assert!(String::from_utf8_lossy(&said).contains(restart));
}
