//! The runner on a real Slurm, with a shell script in the keeper's place. `server/run` brings a Slurm up and runs these.

use super::*;
use std::{fs, os::unix::fs::PermissionsExt, thread, time::Duration};

/// A job's folder and a keeper that writes its arguments, its environment and the signal it got.
struct Stage {
    _folder: tempfile::TempDir,
    job: JobFolder,
    slurm: Slurm,
}

const KEEPER: &str = r#"#!/bin/sh
trap 'echo stopped; exit 130' TERM
echo "begun: $*"
env
while :; do sleep 0.1; done
"#;

impl Stage {
    fn new(name: &str) -> Self {
        // Not /tmp itself: a node may have one of its own.
        let folder =
            tempfile::Builder::new().prefix("slurm test's").tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let program = folder.path().join("keeper");
        fs::write(&program, KEEPER).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        let slurm = Slurm::new(
            ChildProgram {
                program,
                cache: folder.path().to_owned(),
                empty: folder.path().to_owned(),
                ..ChildProgram::default()
            },
            Vec::new(),
        )
        .unwrap();
        Self { _folder: folder, job: JobFolder::at(path), slurm }
    }

    fn start(&self) -> String {
        self.slurm.start(&self.job, 1, 20 << 20).unwrap()
    }

    fn await_state(&self, handle: &str, wanted: RunState) {
        while self.slurm.state(&self.job, handle) != wanted {
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn await_words(&self, words: &str) -> String {
        loop {
            let text = fs::read_to_string(self.job.events()).unwrap_or_default();
            if text.contains(words) {
                return text;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
#[ignore = "needs Slurm: server/run brings it up"]
fn on_a_real_slurm_a_keeper_runs_in_a_clean_environment_and_stops_when_asked() {
    let stage = Stage::new("ftjob-stop");
    let handle = stage.start();
    stage.await_state(&handle, RunState::Running);
    let text = stage.await_words("\nHOME=");
    let begun = format!("begun: serve-keep {} --attempt 1 --limit 20971520", stage.job.path().display());
    assert!(text.contains(&begun), "{text}");
    assert!(!text.contains("SLURM_CONF"), "{text}");
    stage.slurm.stop(&stage.job, &handle);
    stage.await_words("stopped");
    stage.await_state(&handle, RunState::Gone);
}

#[test]
#[ignore = "needs Slurm: server/run brings it up"]
fn on_a_real_slurm_a_kill_asks_nobody() {
    let stage = Stage::new("ftjob-kill");
    let handle = stage.start();
    stage.await_words("begun");
    stage.slurm.kill(&stage.job, &handle);
    stage.await_state(&handle, RunState::Gone);
    assert!(!fs::read_to_string(stage.job.events()).unwrap().contains("stopped"));
}

#[test]
#[ignore = "needs Slurm: server/run brings it up"]
fn on_a_real_slurm_a_start_that_was_not_recorded_is_found_again() {
    let stage = Stage::new("ftjob-twice");
    let first = stage.start();
    stage.await_words("begun");
    assert_eq!(stage.start(), first, "the server died before it wrote the handle down");
    stage.await_state(&first, RunState::Running);
    stage.slurm.kill(&stage.job, &first);
    stage.await_state(&first, RunState::Gone);
    assert_eq!(stage.await_words("begun").matches("begun").count(), 1);
    stage.start();
    while stage.await_words("begun").matches("begun").count() < 2 {
        thread::sleep(Duration::from_millis(50));
    }
    stage.slurm.kill(&stage.job, &first);
    stage.await_state(&first, RunState::Gone);
}

#[test]
#[ignore = "needs Slurm: server/run brings it up"]
fn on_a_real_slurm_what_waits_is_taken_back_and_what_cannot_run_is_refused() {
    let mut stage = Stage::new("ftjob-wait");
    stage.slurm.options = vec!["--hold".into()];
    let handle = stage.start();
    while !commands::list().unwrap().contains_key(&handle) {
        thread::sleep(Duration::from_millis(50));
    }
    stage.await_state(&handle, RunState::Waiting);
    stage.slurm.stop(&stage.job, &handle);
    stage.await_state(&handle, RunState::Gone);
    stage.slurm.options.clear();
    let handle = stage.slurm.start(&stage.job, 2, 1 << 50).unwrap();
    let words = loop {
        match stage.slurm.state(&stage.job, &handle) {
            RunState::Refused(words) => break words,
            state => assert_ne!(state, RunState::Running),
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert!(words.contains("sbatch failed") && words.contains("emory"), "{words}");
}
