//! `memory run --who` names who holds the memory by which a real Python program grows, without touching the program.

mod support;

use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use support::{Finished, model_garden};

const STEPS: &str = "
import sys, time
def steps(grow, count=60):
    for step in range(1, count + 1):
        grow(step)
        print(f'Step {step}: loss 0.5', flush=True)
        time.sleep(0.03)
";

/// The interpreters that are here, by name, and what is not.
fn interpreters() -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let installed = root.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    let installed: Vec<PathBuf> =
        installed.into_iter().flatten().flatten().map(|entry| entry.path().join("bin/python3")).collect();
    let mut found = Vec::new();
    for minor in 10..=14 {
        let name = format!("python3.{minor}");
        let candidates = std::iter::once(PathBuf::from(&name)).chain(installed.iter().cloned());
        match candidates.into_iter().find(|program| is_version(program, minor)) {
            Some(program) => found.push(program),
            None => eprintln!("{name} is not installed here: left out"),
        }
    }
    found
}

fn is_version(program: &Path, minor: u32) -> bool {
    let code = "import sys; print('%d.%d' % sys.version_info[:2])";
    let output = Command::new(program).args(["-c", code]).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == format!("3.{minor}").as_bytes())
}

fn who(python: &Path, arguments: &[&str]) -> Finished {
    let mut command = model_garden();
    command.args(["memory", "run", "--who", "--interval", "50ms", "--format", "json", "--"]).arg(python);
    Finished::of(command.args(arguments).stdin(Stdio::null()))
}

fn who_of(code: &str) -> Value {
    let finished = who(Path::new("python3"), &["-c", &format!("{STEPS}{code}")]);
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    finished.summary()["who"].clone()
}

fn first_line(who: &Value) -> &str {
    who["explained"]["lines"][0].as_str().unwrap_or_else(|| panic!("nothing was explained: {who}"))
}

#[test]
fn the_founding_bug_is_named_by_every_python_with_its_rate() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lazy_images.py");
    let script = script.to_str().unwrap();
    for python in interpreters() {
        let finished = who(&python, &[script, "--seconds-per-step", "0.04"]);
        let summary = finished.summary();
        let holder = &summary["who"]["explained"]["holders"][0];
        assert_eq!(holder["type"], "LazyImage", "{}: {}", python.display(), summary["who"]);
        assert!(
            holder["chain"].as_str().unwrap().starts_with("list 'images' of main (lazy_images.py:"),
            "{holder}"
        );
        let rate = holder["bytes_per_step"].as_f64().unwrap();
        assert!((rate - 8e6).abs() <= 0.05 * 8e6, "{}: {rate}", python.display());
        let fixed = who(&python, &[script, "--fixed", "--seconds-per-step", "0.02"]);
        assert!(fixed.summary()["who"].get("explained").is_none(), "{}", fixed.summary());
        assert_eq!(fixed.code, Some(0));
    }
}

#[test]
fn memory_of_c_is_called_native() {
    let found = who_of(
        "import ctypes
library = ctypes.CDLL(None); library.malloc.restype = ctypes.c_void_p
def grow(step):
    ctypes.memset(library.malloc(1_000_000), 1, 1_000_000)
steps(grow)",
    );
    let explained = &found["explained"];
    assert!(explained["share"].as_f64().unwrap() < 0.1, "{found}");
    assert!(
        explained["rest"]["native heap"].as_f64().unwrap() > 0.8 * explained["growth"].as_f64().unwrap(),
        "{found}"
    );
}

#[test]
fn a_worker_that_was_forked_is_asked_itself() {
    let found = who_of(
        "import os
def work():
    kept = []
    steps(lambda step: kept.append(bytearray(b'1' * 1_000_000)))
pid = os.fork()
if pid == 0:
    work(); os._exit(0)
os.waitpid(pid, 0)",
    );
    assert!(first_line(&found).contains("held by list 'kept' of "), "{found}");
}

#[test]
fn a_global_cache_is_named() {
    let found = who_of("cache = {}\nsteps(lambda step: cache.update({step: bytearray(b'1' * 1_000_000)}))");
    assert!(first_line(&found).contains("held by dict 'cache' of module "), "{found}");
}

#[test]
fn what_cannot_be_asked_is_said() {
    let code = format!("{STEPS}kept = []\nsteps(lambda step: kept.append(bytearray(b'1' * 1_000_000)))");
    let isolated = who(Path::new("python3"), &["-I", "-c", &code]).summary();
    let why = isolated["who"]["unknown"].as_str().unwrap_or_else(|| panic!("{isolated}"));
    assert!(why.contains("-I, -E or -S"), "{why}");
    let finished = Finished::of(model_garden().args(["memory", "run", "--who", "--", "sleep", "0.1"]));
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
}

#[test]
fn the_program_notices_nothing() {
    let code = "import os, sys, warnings
warnings.simplefilter('always')
pid = os.fork()
if pid == 0: os._exit(0)
os.waitpid(pid, 0)
print(sys.path[1:], os.open('/dev/null', 0), 'sitecustomize' in sys.modules and sys.modules['sitecustomize'].__name__)";
    let finished = Finished::of(
        model_garden().args(["memory", "run", "--who", "--format", "json", "--", "python3", "-c", code]),
    );
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert!(!finished.errors.contains("Warning"), "{}", finished.errors);
    assert!(finished.output.contains("] 3 "), "descriptors move: {}", finished.output);
    assert!(!finished.output.contains("model-garden-"), "{}", finished.output);
}
