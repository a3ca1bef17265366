//! A server whose disk, index or time is against it, and its own memory over a hundred jobs.

mod support;

use garden_memory::{Analyst, Assessment, RunFacts, Sample};
use procfs::process::Process;
use serde_json::{Value, json};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use support::server::Server;

fn ids(server: &Server) -> Vec<String> {
    let listed = server.get("/v1/fine_tuning/jobs?limit=100");
    let id = |job: &Value| job["id"].as_str().unwrap().to_owned();
    listed["data"].as_array().unwrap().iter().map(id).collect()
}

#[test]
fn an_index_that_is_broken_or_gone_is_made_anew_from_the_folders() {
    let mut server = Server::start(8, &[]);
    let file = server.upload();
    let mut jobs: Vec<String> = (0..2).map(|_| server.create(&file, &json!({"max_steps": 2}))).collect();
    let keyed = json!({"model": "tiny", "training_file": file, "max_steps": 2});
    jobs.push(server.create_by_key("once", &keyed));
    jobs.iter().for_each(|job| drop(server.wait_until_over(job)));
    jobs.reverse();
    assert_eq!(ids(&server), jobs);
    let before: Vec<Value> = jobs.iter().map(|job| server.job(job)).collect();
    for broken in [true, false] {
        server.kill();
        for name in ["garden.sqlite", "garden.sqlite-wal", "garden.sqlite-shm"] {
            let path = server.data(name);
            match broken {
                true if path.exists() => fs::write(path, b"this is no database").unwrap(),
                _ => drop(fs::remove_file(path)),
            }
        }
        server.restart();
        assert_eq!(ids(&server).len(), 3, "broken: {broken}");
        for (job, before) in jobs.iter().zip(&before) {
            assert_eq!(server.job(job), *before, "broken: {broken}");
        }
        assert_eq!(server.get(&format!("/v1/files/{file}"))["id"], file.as_str());
        assert_eq!(server.create_by_key("once", &keyed), jobs[0], "the key made a job already");
    }
    let aside = fs::read_dir(server.data("")).unwrap().flatten();
    assert!(aside.map(|entry| entry.file_name().into_string().unwrap()).any(|name| name.contains("broken")));
}

/// Another program that has the index locked, for as long as it lives.
struct Holder(Child);

impl Holder {
    fn of(server: &Server) -> Self {
        let hold = "import sqlite3, sys
index = sqlite3.connect(sys.argv[1], isolation_level=None)
index.execute('BEGIN IMMEDIATE')
print('held', flush=True)
sys.stdin.readline()";
        let mut holder = Command::new("python3")
            .args(["-c", hold])
            .arg(server.data("garden.sqlite"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut held = [0; 5];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();
        Self(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_locked_index_keeps_no_job_from_being_made_or_from_running() {
    let server = Server::start(8, &[]);
    let file = server.upload();
    let first = server.create(&file, &json!({"max_steps": 300}));
    server.wait_for_step(&first, 3);
    let holder = Holder::of(&server);
    assert_eq!(ids(&server), [first.as_str()], "reading goes on");
    let second = server.create(&file, &json!({"max_steps": 2}));
    assert_eq!(server.job(&second)["id"], second.as_str(), "it is told from its folder");
    let paused = server.post(&format!("/v1/fine_tuning/jobs/{second}/pause"), &json!({}));
    assert_eq!(paused["garden"]["state"], "paused", "the answer is what is true now");
    server.post(&format!("/v1/fine_tuning/jobs/{second}/resume"), &json!({}));
    thread::sleep(Duration::from_secs(2));
    drop(holder);
    for job in [&first, &second] {
        let done = server.wait_until_over(job);
        assert_eq!(done["status"], "succeeded", "{done:#}");
    }
}

#[test]
fn an_end_that_did_not_reach_the_index_is_found_by_the_next_server() {
    let mut server = Server::start(8, &[]);
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 100_000}));
    server.wait_for_step(&job, 1);
    let holder = Holder::of(&server);
    server.post(&format!("/v1/fine_tuning/jobs/{job}/cancel"), &json!({}));
    let state = server.data("jobs").join(&job).join("state.json");
    while !fs::read_to_string(&state).unwrap().contains("\"announced\": true") {
        thread::sleep(Duration::from_millis(20));
    }
    server.kill();
    drop(holder);
    server.restart();
    assert_eq!(server.job(&job)["status"], "cancelled");
}

#[test]
fn a_helper_ends_with_the_server_that_started_it() {
    let mut helper = support::model_garden();
    helper.args(["memory", "watch", "--format=json", "--pid", &std::process::id().to_string()]);
    helper.env(garden_server::ENDS_WITH_STDIN, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut helper = helper.spawn().unwrap();
    let mut first = String::new();
    let output = helper.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut first).unwrap();
    assert!(helper.try_wait().unwrap().is_none(), "it runs while its line is open");
    drop(helper.stdin.take());
    helper.wait().unwrap();
}

/// A small disk of its own, for as long as it lives.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Nothing where this user may not mount.
    fn mount(path: &'a Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=160m", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(path).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_loses_nothing_and_the_jobs_go_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        eprintln!("SKIPPED: mounting a small disk needs root");
        return;
    };
    let data = folder.path().join("data");
    let server = Server::start(8, &["--data-dir", data.to_str().unwrap()]);
    let file = server.upload();
    let first = server.create(&file, &json!({"max_steps": 3}));
    assert_eq!(server.wait_until_over(&first)["status"], "succeeded");
    let filler = folder.path().join("filler");
    let mut full = fs::File::create(&filler).unwrap();
    while full.write_all(&[7; 1 << 16]).is_ok() {}
    let body = json!({"model": "tiny", "training_file": file, "max_steps": 3});
    let (code, refused) = server.ask("POST", "/v1/fine_tuning/jobs", Some(&body));
    assert_eq!((code, refused["error"]["code"].as_str()), (507, Some("disk_full")), "{refused}");
    assert_eq!(server.job(&first)["status"], "succeeded", "reading goes on");
    // Some room, but too little for checkpoints: the job waits and says why.
    full.set_len(110 << 20).unwrap();
    let second = server.create(&file, &json!({"max_steps": 3}));
    let waiting = server.wait_for(&second, "waiting", |job| !job["garden"]["waiting_for"].is_null());
    assert!(waiting["garden"]["waiting_for"].as_str().unwrap().starts_with("disk"), "{waiting:#}");
    fs::remove_file(&filler).unwrap();
    drop(full);
    assert_eq!(server.wait_until_over(&second)["status"], "succeeded");
}

#[test]
fn after_a_hundred_jobs_the_server_holds_what_it_held_after_the_first() {
    let server = Server::start(8, &[]);
    let file = server.upload();
    let run = |count: usize| {
        let jobs: Vec<String> = (0..count).map(|_| server.create(&file, &json!({"max_steps": 1}))).collect();
        for job in &jobs {
            let done = server.wait_until_over(job);
            assert_eq!(done["status"], "succeeded", "{done:#}");
        }
    };
    let resident = || {
        let status = Process::new(server.pid()).unwrap().status().unwrap();
        status.vmrss.unwrap() * 1024
    };
    run(1);
    let first = resident();
    let running = AtomicBool::new(true);
    let judged = thread::scope(|scope| {
        let watcher = scope.spawn(|| verdict_while(server.pid(), &running));
        run(99);
        running.store(false, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    let last = resident();
    assert!(last < first + 5_000_000, "{first} bytes after the first job, {last} after the hundredth");
    assert_eq!(judged.verdict.name(), "steady", "{judged:#?}");
}

/// Judges the memory of one process, without its children, for as long as it is asked.
fn verdict_while(pid: i32, running: &AtomicBool) -> Assessment {
    let mut analyst = Analyst::new(RunFacts::default());
    let begun = Instant::now();
    while running.load(Ordering::Relaxed) {
        let status = Process::new(pid).unwrap().status().unwrap();
        let bytes = |kilobytes: Option<u64>| kilobytes.unwrap_or(0) * 1024;
        let (rss, anon, file) = (bytes(status.vmrss), bytes(status.rssanon), bytes(status.rssfile));
        analyst.push(&Sample { t: begun.elapsed().as_secs_f64(), rss, anon, file, ..Sample::default() });
        thread::sleep(Duration::from_millis(200));
    }
    analyst.assessment()
}
