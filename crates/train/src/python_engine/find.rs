//! The interpreter of an engine in Python, and whether it has what the engine needs.
//!
//! Takes the interpreter that the user names, or looks where an environment is active and on `PATH`. Asks it
//! which packages it has before anything else happens. What is missing is named, with the command that
//! installs it.

use crate::{
    config::{Engine, Precision, RunConfig},
    optimizer::OptimizerKind,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Lists the packages of an interpreter.
const CHECK: &str = include_str!("check.py");
/// What our own package is called where it is imported, and where it is installed from.
const OWN: (&str, &str) = ("model_garden", "model-garden");
/// The oldest Python that our package is made for; `check.py` compares with it.
const OLDEST: &str = "3.10";
/// The version that this program works with.
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why an engine in Python cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// There is no interpreter.
    #[error("engine {engine} needs Python, and there is no interpreter in an active environment or on PATH")]
    None {
        /// The engine.
        engine: Engine,
    },
    /// The interpreter cannot be started, or did not answer.
    #[error("{} is no Python that works: {reason}", path.display())]
    Broken {
        /// The interpreter.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// It is older than our package allows.
    #[error("{} is Python {there}, and engine {engine} needs {OLDEST} or newer", path.display())]
    Outdated {
        /// The engine.
        engine: Engine,
        /// The interpreter.
        path: PathBuf,
        /// Its version.
        there: String,
    },
    /// Packages are missing.
    #[error(
        "engine {engine} needs {} in {}: {} -m pip install {}",
        names.join(", "), path.display(), path.display(), install.join(" ")
    )]
    Missing {
        /// The engine.
        engine: Engine,
        /// The interpreter.
        path: PathBuf,
        /// What is missing, as it is imported.
        names: Vec<String>,
        /// The same as it is installed.
        install: Vec<String>,
    },
    /// Our own package is of another version.
    #[error(
        "model_garden is {there} in {} and this program is {here}: {} -m pip install model-garden=={here}",
        path.display(), path.display()
    )]
    Version {
        /// The interpreter.
        path: PathBuf,
        /// The package's version.
        there: String,
        /// This program's version.
        here: &'static str,
    },
    /// Unsloth computes on GPUs only.
    #[error("engine unsloth needs a GPU with CUDA, and PyTorch in {} finds none: engine transformers does without", path.display())]
    NoCuda {
        /// The interpreter.
        path: PathBuf,
    },
}

/// A Python that has what an engine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// Its program.
    pub path: PathBuf,
}

/// What the check prints.
#[derive(Deserialize)]
struct Answer {
    /// The version of a Python that is too old to be asked anything else.
    outdated: Option<String>,
    found: BTreeMap<String, Option<String>>,
    broken: Option<String>,
    cuda: Option<bool>,
}

impl Interpreter {
    /// Finds the interpreter of a run and checks its packages.
    pub fn find(config: &RunConfig) -> Result<Self, PythonError> {
        let engine = config.engine;
        let path = match &config.python {
            Some(path) => path.clone(),
            None => active(|name| env::var_os(name)).ok_or(PythonError::None { engine })?,
        };
        let answer = ask(&path, &needed(config))?;
        judge(engine, path, answer)
    }

    /// A command of this interpreter that does not import what lies in the current folder.
    pub(super) fn command(&self) -> Command {
        command(&self.path)
    }
}

fn command(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env("PYTHONSAFEPATH", "1").env("PYTHONUNBUFFERED", "1");
    command
}

/// The packages of an engine with these settings, as they are imported.
fn needed(config: &RunConfig) -> Vec<&'static str> {
    let mut names = vec![OWN.0, "torch", "transformers", "peft", "accelerate"];
    let quantised = matches!(config.precision, Precision::FourBit | Precision::EightBit);
    if quantised || config.optimizer == OptimizerKind::Adamw8bit {
        names.push("bitsandbytes");
    }
    if config.engine == Engine::Unsloth {
        names.push("unsloth");
    }
    names
}

/// The interpreter of the active environment, or the first on `PATH`.
fn active(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable);
    let in_environments = environments.map(|folder| Path::new(&folder).join("bin/python"));
    let folders: Vec<PathBuf> =
        variable("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let on_path =
        ["python3", "python"].into_iter().flat_map(|name| folders.iter().map(move |at| at.join(name)));
    in_environments.chain(on_path).find(|path| path.is_file())
}

fn ask(path: &Path, names: &[&str]) -> Result<Answer, PythonError> {
    let broken = |reason: String| PythonError::Broken { path: path.to_owned(), reason };
    // Ctrl-C reaches this program alone: an interrupted interpreter would look like a broken one.
    let mut check = command(path);
    check.process_group(0).arg("-c").arg(CHECK).args(names).stdin(Stdio::null());
    let output = check.output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => broken("no such program".to_owned()),
        _ if path.is_dir() => broken(about_folder(path)),
        _ => broken(error.to_string()),
    })?;
    // Packages may print when they are imported, and again when the interpreter ends.
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok()).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed no answer");
        broken(format!("{last} ({})", output.status))
    })
}

/// What to say of a folder where an interpreter should be: most often that of an environment.
fn about_folder(path: &Path) -> String {
    let inside = path.join("bin/python");
    if inside.is_file() {
        format!("it is a folder, whose interpreter is {}", inside.display())
    } else {
        "it is a folder".to_owned()
    }
}

fn judge(engine: Engine, path: PathBuf, answer: Answer) -> Result<Interpreter, PythonError> {
    if let Some(there) = answer.outdated {
        return Err(PythonError::Outdated { engine, path, there });
    }
    let missing = answer.found.iter().filter(|(_, version)| version.is_none()).map(|(name, _)| name.clone());
    let names: Vec<String> = missing.collect();
    if !names.is_empty() {
        let installed = |name: &String| match name.as_str() {
            // Another version would be refused next.
            name if name == OWN.0 => format!("{}=={OWN_VERSION}", OWN.1),
            name => name.to_owned(),
        };
        let install = names.iter().map(installed).collect();
        return Err(PythonError::Missing { engine, path, names, install });
    }
    if let Some(reason) = answer.broken {
        return Err(PythonError::Broken { path, reason });
    }
    let there = answer.found.get(OWN.0).cloned().flatten().unwrap_or_default();
    if there != OWN_VERSION {
        return Err(PythonError::Version { path, there, here: OWN_VERSION });
    }
    if engine == Engine::Unsloth && answer.cuda != Some(true) {
        return Err(PythonError::NoCuda { path });
    }
    Ok(Interpreter { path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    /// A program in a folder.
    fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn an_active_environment_comes_before_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for place in ["venv/bin/python", "conda/bin/python", "usr/python3", "usr/python", "old/python"] {
            program(folder.path(), place, "");
        }
        let found = |variables: &[(&str, &str)]| {
            active(|name| {
                let (_, value) = variables.iter().find(|(key, _)| *key == name)?;
                let folders = value.split(':').map(at);
                env::join_paths(folders).ok()
            })
        };
        let path = ("PATH", "empty:old:usr");
        assert_eq!(
            found(&[("VIRTUAL_ENV", "venv"), ("CONDA_PREFIX", "conda"), path]),
            Some(at("venv/bin/python"))
        );
        assert_eq!(found(&[("CONDA_PREFIX", "conda"), path]), Some(at("conda/bin/python")));
        assert_eq!(found(&[("VIRTUAL_ENV", "gone"), path]), Some(at("usr/python3")), "python3 before python");
        assert_eq!(found(&[("PATH", "old")]), Some(at("old/python")));
        assert_eq!(found(&[("PATH", "empty")]), None);
    }

    fn judged(engine: Engine, answer: &str) -> Result<Interpreter, String> {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("echo 'a library greets'; echo '{answer}'; echo 'and says goodbye'");
        let python = program(folder.path(), "python", &script);
        let path = folder.path().display().to_string();
        let answer = ask(&python, &[]).and_then(|answer| judge(engine, python, answer));
        answer.map_err(|error| error.to_string().replace(&path, "/env"))
    }

    #[test]
    fn missing_packages_are_named_with_the_command_that_installs_them() {
        let answer = r#"{"found": {"model_garden": null, "torch": "2.9", "peft": null}, "broken": null, "cuda": null}"#;
        assert_eq!(
            judged(Engine::Transformers, answer).unwrap_err(),
            format!(
                "engine transformers needs model_garden, peft in /env/python: \
                 /env/python -m pip install model-garden=={OWN_VERSION} peft"
            )
        );
    }

    #[test]
    fn another_version_a_broken_package_and_a_missing_gpu_are_told_apart() {
        let own =
            |version: &str, rest: &str| format!(r#"{{"found": {{"model_garden": "{version}"}}, {rest}}}"#);
        let error =
            judged(Engine::Transformers, &own("0.0.1", r#""broken": null, "cuda": null"#)).unwrap_err();
        assert!(error.starts_with("model_garden is 0.0.1 in /env/python and this program is "), "{error}");
        let error = judged(Engine::Transformers, &own(OWN_VERSION, r#""broken": "no numpy", "cuda": null"#));
        assert_eq!(error.unwrap_err(), "/env/python is no Python that works: no numpy");
        let ready = |cuda| own(OWN_VERSION, &format!(r#""broken": null, "cuda": {cuda}"#));
        assert!(judged(Engine::Transformers, &ready("null")).is_ok());
        assert!(judged(Engine::Unsloth, &ready("true")).is_ok());
        let error = judged(Engine::Unsloth, &ready("false")).unwrap_err();
        assert!(error.starts_with("engine unsloth needs a GPU with CUDA"), "{error}");
    }

    #[test]
    fn what_is_no_python_is_said_to_be_none() {
        let folder = tempfile::tempdir().unwrap();
        let words = |path: &Path| ask(path, &[]).err().unwrap().to_string();
        let gone = words(&folder.path().join("python"));
        assert!(gone.ends_with("is no Python that works: no such program"), "{gone}");
        let ends = words(&program(folder.path(), "ends", "echo 'it broke' >&2; exit 3"));
        assert!(ends.ends_with("is no Python that works: it broke (exit status: 3)"), "{ends}");
        let empty = words(folder.path());
        assert!(empty.ends_with("is no Python that works: it is a folder"), "{empty}");
        program(folder.path(), "env/bin/python", "");
        let environment = words(&folder.path().join("env"));
        assert!(environment.ends_with("env/bin/python"), "{environment}");
    }

    #[test]
    fn a_python_that_is_too_old_is_told_its_version() {
        let error = judged(Engine::Transformers, r#"{"found": {}, "outdated": "3.9.2"}"#).unwrap_err();
        assert_eq!(error, "/env/python is Python 3.9.2, and engine transformers needs 3.10 or newer");
        assert!(CHECK.contains(&format!("OLDEST = ({})", OLDEST.replace('.', ", "))));
    }
}
