//! Runs every `model-garden` command that the README and the guides show: the README's in a bare clone, the
//! guides' in a folder where small things stand for what they name.

mod support;

use garden_files::rename;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use support::{Finished, model_garden};

/// Guides, in the order in which a reader would follow them: what one makes, a later one uses.
const DOCUMENTS: [&str; 10] = [
    "docs/memory.md",
    "docs/memory-watch.md",
    "docs/memory-socket.md",
    "docs/memory-verdict.md",
    "docs/training.md",
    "docs/troubleshooting.md",
    "docs/memory-plan.md",
    "docs/cluster.md",
    "docs/generation.md",
    "docs/memory-who.md",
];
/// What a newcomer follows from top to bottom, in a clone and with nothing prepared.
const README: &str = "README.md";

/// Commands of the guides that take long and are run with README's.
const RUN_ELSEWHERE: [&str; 1] = ["model-garden demo"];

/// What a command becomes so that it ends by itself, and soon.
const SUBSTITUTES: [(&str, &str); 5] = [
    // Needs PyTorch; peers/test_python_engine.py runs it.
    (" --engine transformers --python ~/torch/bin/python", ""),
    ("isolate --dataset", "isolate --rows 4 --dataset"),
    ("cargo run --release -- ", "model-garden "),
    ("--pid 177381", "--duration 1s --pid $TRAINING"),
    ("--find-training", "--duration 1s --find-training"),
];

/// Stands for anybody's training script.
const SCRIPT: &str = "\
import sys, time
for step in range(1, 31):
    print(f'Step {step}: loss 1.0', flush=True)
    time.sleep(0.02 if 'forever' not in sys.argv else 60)
";

/// A folder with everything that the documents' commands name.
struct Stage {
    folder: tempfile::TempDir,
    training: Child,
}

impl Stage {
    /// A clone: our program on the path, the examples in their place, nothing else.
    fn clone() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        // Documents say python; some machines only have python3.
        fs::create_dir(path("bin")).expect("a folder");
        fs::write(path("bin/python"), "#!/bin/sh\nexec python3 \"$@\"\n").expect("a script");
        fs::set_permissions(path("bin/python"), fs::Permissions::from_mode(0o755)).expect("permissions");
        symlink(env!("CARGO_BIN_EXE_model-garden"), path("bin/model-garden")).expect("a link");
        symlink(root().join("examples"), path("examples")).expect("a link");
        fs::write(path("train.py"), SCRIPT).expect("a script");
        let training = Command::new("python3")
            .arg(path("train.py"))
            .arg("forever")
            .stdout(Stdio::null())
            .spawn()
            .expect("python3 runs");
        Self { folder, training }
    }

    /// A clone with everything that the guides take for granted.
    fn set() -> Self {
        let stage = Self::clone();
        let path = |name: &str| stage.folder.path().join(name);
        for name in ["a.py", "b.py"] {
            fs::write(path(name), SCRIPT).expect("a script");
        }
        make(
            &["dataset", "create", "--kind", "shapes", "--rows", "24", "--size", "56x56", "--output"],
            &path("made"),
        );
        rename(path("made/train.jsonl"), path("rows.jsonl")).expect("rows");
        rename(path("made/images"), path("images")).expect("images");
        make(&["init", "--preset", "tiny", "--output"], &path("models/qwen"));
        let logs = root().join("crates/memory/tests/data");
        fs::copy(logs.join("founding-run2.log"), path("run.log")).expect("a log");
        for name in ["a.jsonl", "b.jsonl"] {
            fs::copy(path("run.log"), path(name)).expect("a trace");
        }
        stage
    }

    fn run(&self, command: &str) -> Finished {
        let path = format!(
            "{}:{}",
            self.folder.path().join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        Finished::of(
            Command::new("sh")
                .args(["-c", command])
                .current_dir(self.folder.path())
                .env("PATH", path)
                .env("TRAINING", self.training.id().to_string())
                .stdin(Stdio::null()),
        )
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.training.kill();
        let _ = self.training.wait();
    }
}

fn make(arguments: &[&str], output: &Path) {
    let done = Finished::of(model_garden().args(arguments).arg(output));
    assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.errors);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Commands in the code blocks of a document: lines that begin with the program's name, each with its
/// continuation.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut fenced = false;
    let mut found = Vec::new();
    for line in joined.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let command = line.trim();
        let is_code = fenced || line.starts_with("    ");
        if is_code && (command.starts_with("model-garden ") || command.starts_with("cargo run --release -- "))
        {
            found.push(command.to_owned());
        }
    }
    found
}

/// The exit codes that answer: an analysis and a plan have more than one. Not 2, which says that the command
/// was no use, and not that of a crash.
fn answers(command: &str) -> &'static [i32] {
    if command.contains(" analyze ") {
        &[0, 1, 3, 4]
    } else if command.contains(" plan ") {
        &[0, 4]
    } else {
        &[0]
    }
}

/// A file that a document shows under its name, in a comment at the top of its block: `# run.toml`.
fn shown_file(text: &str, name: &str) -> Option<String> {
    let start = text.find(&format!("    # {name}\n"))?;
    let lines = text[start..].lines().take_while(|line| line.starts_with("    "));
    Some(lines.map(|line| format!("{}\n", line.trim())).collect())
}

/// Runs every command of `documents`, in order; gives those that ran, and those that are left out.
fn run_all(
    stage: &Stage,
    documents: &[&str],
    left_out: &[&'static str],
) -> (BTreeSet<String>, BTreeSet<&'static str>) {
    let (mut seen, mut excused) = (BTreeSet::new(), BTreeSet::new());
    for document in documents {
        let text = fs::read_to_string(root().join(document)).expect(document);
        if let Some(file) = shown_file(&text, "run.toml") {
            fs::write(stage.folder.path().join("run.toml"), file).expect("a file");
        }
        for shown in commands(&text) {
            let command = SUBSTITUTES.iter().fold(shown, |text, (from, to)| text.replace(from, to));
            if let Some(elsewhere) = left_out.iter().find(|elsewhere| command.contains(**elsewhere)) {
                excused.insert(*elsewhere);
            } else if seen.insert(command.clone()) {
                let done = stage.run(&command);
                let fine = done.code.is_some_and(|code| answers(&command).contains(&code));
                assert!(fine, "{document}: `{command}` ended with {:?}:\n{}", done.code, done.errors);
            }
        }
    }
    (seen, excused)
}

#[test]
fn every_command_in_the_guides_works() {
    let (seen, excused) = run_all(&Stage::set(), &DOCUMENTS, &RUN_ELSEWHERE);
    assert!(seen.len() >= 12, "commands are found: {seen:?}");
    for elsewhere in RUN_ELSEWHERE {
        assert!(excused.contains(&elsewhere), "no guide shows `{elsewhere}`: take it off the list");
    }
}

#[test]
fn the_readme_works_from_top_to_bottom_as_written() {
    let stage = Stage::clone();
    let (seen, _) = run_all(&stage, &[README], &[]);
    assert!(seen.len() >= 12, "commands are found: {seen:?}");
    for elsewhere in RUN_ELSEWHERE {
        assert!(seen.iter().any(|command| command.contains(elsewhere)), "README runs `{elsewhere}`");
    }
    // What a newcomer asks is answered rightly.
    let asked = seen.iter().find(|command| command.contains(" generate ")).expect("a question");
    let rows =
        fs::read_to_string(stage.folder.path().join("garden-demo/held-out/train.jsonl")).expect("rows");
    let row: serde_json::Value = serde_json::from_str(rows.lines().next().expect("a row")).expect("JSON");
    let right = row["messages"][1]["content"].as_str().expect("an answer");
    assert_eq!(stage.run(asked).output.trim(), right, "{asked}");
}

#[test]
fn all_documents_are_looked_at() {
    let with_commands = fs::read_dir(root().join("docs"))
        .expect("docs")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .filter(|path| !commands(&fs::read_to_string(path).expect("a document")).is_empty());
    for path in with_commands {
        let name = format!("docs/{}", path.file_name().expect("a name").to_string_lossy());
        // The guides to the server and to Python show tours of other programs: `server/test_docs.py` and
        // `peers/test_python_docs.py` run them.
        if ["docs/server.md", "docs/python.md"].contains(&name.as_str()) {
            continue;
        }
        assert!(DOCUMENTS.contains(&name.as_str()), "{name} shows commands that nothing runs");
    }
}

#[test]
fn commands_are_found_in_code_and_only_there() {
    let text = "Run model-garden demo.\n\n    model-garden a --b \\\n      c   # why\n    x model-garden\n\n```\nmodel-garden d\n```\n";
    assert_eq!(commands(text), ["model-garden a --b        c   # why", "model-garden d"]);
    assert_eq!(shown_file("    # run.toml\n    a = 1\n\nrest", "run.toml").unwrap(), "# run.toml\na = 1\n");
}

#[test]
fn neither_a_crash_nor_wrong_use_is_an_answer() {
    for command in
        ["model-garden memory analyze a", "model-garden memory plan --config a", "model-garden demo"]
    {
        assert!(![2, 101, 134, 139].iter().any(|code| answers(command).contains(code)), "{command}");
    }
}
