//! A build of one crate uses what a build of the workspace left: no dependency is built again with other
//! features.

use std::{collections::BTreeSet, process::Command};

/// Dependencies of a build for tests, each with its features; our own crates are left out.
fn dependencies(of: &[&str]) -> BTreeSet<String> {
    let format =
        ["tree", "--locked", "--offline", "--edges", "normal,build,dev", "--prefix", "none", "--no-dedupe"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(format).args(["--format", "{p} with {f}"]).args(of);
    let tree = cargo.output().unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).unwrap();
    lines.lines().filter(|line| line.contains(" with ") && !line.contains("(/")).map(str::to_owned).collect()
}

/// Those of `alone` that `all` has otherwise, with what `all` has.
fn built_again(alone: &BTreeSet<String>, all: &BTreeSet<String>) -> Vec<String> {
    let package = |line: &str| line.split(" with ").next().unwrap_or_default().to_owned();
    let other = |line: &String| {
        let there: Vec<_> = all.iter().filter(|there| package(there) == package(line)).collect();
        format!("{line}, and in the workspace {there:?}")
    };
    alone.difference(all).map(other).collect()
}

#[test]
fn one_crate_alone_takes_its_dependencies_as_the_workspace_builds_them() {
    let all = dependencies(&["--workspace"]);
    let crates =
        ["data", "engine", "files", "memory", "model", "train", "bench"].map(|name| format!("garden-{name}"));
    for name in crates {
        let alone = dependencies(&["--package", &name]);
        let again = built_again(&alone, &all);
        assert!(!alone.is_empty() && again.is_empty(), "-p {name} builds again: {again:#?}");
    }
}
