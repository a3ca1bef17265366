//! The server with a Slurm that is slow, away or forgets to answer. Shell scripts play its commands; `server/run` has
//! the same jobs on a real one.

mod support;

use serde_json::json;
use std::{fs, os::unix::fs::PermissionsExt, path::Path, path::PathBuf, thread, time::Duration};
use support::server::Server;

/// Refuses while the controller is away, as Slurm's commands do.
const AWAY: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ -e "$here/away" ] && { echo "Unable to contact slurm controller (connect failure)" >&2; exit 1; }
"#;

/// Starts the script as a session of its own, and remembers it under its name. With a file `mute` it never answers.
const SBATCH: &str = r#"
for word; do case $word in --job-name=*) name=${word#--job-name=};; esac; script=$word; done
number=$(($(ls "$here/jobs" | wc -l) + 1))
setsid sh "$script" </dev/null >/dev/null 2>&1 &
echo "$! $name" > "$here/jobs/$number"
[ -e "$here/mute" ] && { rm "$here/mute"; touch "$here/muted"; sleep 600; }
echo $number
"#;

const SQUEUE: &str = r#"
for job in "$here"/jobs/*; do
    [ -e "$job" ] || continue
    read -r pid name < "$job"
    kill -0 "$pid" 2>/dev/null && echo "$(basename "$job")|RUNNING|$name"
done
exit 0
"#;

const SCANCEL: &str = r#"
for word; do case $word in --signal=*) signal=${word#--signal=};; --state=*) exit 0;; esac; number=$word; done
read -r pid name < "$here/jobs/$number"
kill -s "$signal" "$pid" 2>/dev/null
exit 0
"#;

/// A Slurm of scripts, on the `PATH` of the servers that are started meanwhile.
struct Slurm {
    folder: tempfile::TempDir,
}

impl Slurm {
    fn new() -> Self {
        let slurm = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(slurm.path("jobs")).unwrap();
        for (name, text) in [("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)] {
            fs::write(slurm.path(name), format!("{AWAY}{text}")).unwrap();
            fs::set_permissions(slurm.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        slurm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn server(&self) -> Server {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        Server::start_with(8, &["--runner", "slurm"], &[("PATH", &path)])
    }
}

fn wait_for_file(path: &Path) {
    while !path.exists() {
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_order_reaches_a_job_however_long_the_controller_was_away() {
    let slurm = Slurm::new();
    let server = slurm.server();
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 100_000}));
    server.wait_for_step(&job, 2);
    fs::write(slurm.path("away"), "").unwrap();
    let stopping = server.post(&format!("/v1/fine_tuning/jobs/{job}/cancel"), &json!({}));
    assert_eq!(stopping["garden"]["state"], "stopping");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(server.trainers(&job).len(), 1, "nobody could be asked");
    fs::remove_file(slurm.path("away")).unwrap();
    assert_eq!(server.wait_until_over(&job)["status"], "cancelled");
    assert!(server.trainers(&job).is_empty());
}

#[test]
fn a_job_whose_submission_was_never_answered_is_found_by_the_next_server_and_runs_once() {
    let slurm = Slurm::new();
    let mut server = slurm.server();
    let file = server.upload();
    fs::write(slurm.path("mute"), "").unwrap();
    let job = server.create(&file, &json!({"max_steps": 100_000}));
    wait_for_file(&slurm.path("muted"));
    server.wait_for_step(&job, 1);
    server.kill();
    server.restart();
    assert_eq!(server.trainers(&job).len(), 1);
    server.post(&format!("/v1/fine_tuning/jobs/{job}/stop"), &json!({}));
    let stopped = server.wait_until_over(&job);
    assert_eq!(stopped["status"], "cancelled");
    assert!(!stopped["fine_tuned_model"].is_null(), "its last checkpoint is the result: {stopped:#}");
    assert!(server.trainers(&job).is_empty());
    assert_eq!(fs::read_dir(slurm.path("jobs")).unwrap().count(), 1, "submitted once");
}

#[test]
fn a_refusal_by_slurm_is_told_and_the_job_is_offered_again() {
    let slurm = Slurm::new();
    fs::write(slurm.path("away"), "").unwrap();
    let server = slurm.server();
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 2}));
    let waiting = server.wait_for(&job, "waiting", |job| !job["garden"]["waiting_for"].is_null());
    assert!(
        waiting["garden"]["waiting_for"].as_str().unwrap().contains("contact slurm controller"),
        "{waiting:#}"
    );
    fs::remove_file(slurm.path("away")).unwrap();
    assert_eq!(server.wait_until_over(&job)["status"], "succeeded");
}
