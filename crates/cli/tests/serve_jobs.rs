//! Jobs on a real server: their whole life, and what happens when something dies.

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread, time::Duration};
use support::{
    Finished, model_garden,
    server::{Server, kill_9},
};

fn status(job: &Value) -> &str {
    job["status"].as_str().unwrap()
}

/// The hash of a job's adapter.
fn adapter(server: &Server, id: &str) -> String {
    let path = server.data("jobs").join(id).join("output/adapter_model.safetensors");
    format!("{:x}", Sha256::digest(fs::read(path).unwrap()))
}

#[test]
fn a_job_lives_from_the_queue_to_a_model() {
    let server = Server::start(24, &[]);
    let file = server.upload();
    let first = server.create(
        &file,
        &json!({"max_steps": 300, "save_steps": 20, "suffix": "one", "metadata": {"team": "a"}}),
    );
    let second = server.create(&file, &json!({"max_steps": 4, "priority": 1}));
    let third = server.create(&file, &json!({"max_steps": 4, "priority": 5}));
    server.wait_for_step(&first, 21);
    assert_eq!(server.job(&third)["garden"]["queue_position"], 1, "the higher priority goes first");
    assert_eq!(server.job(&second)["garden"]["queue_position"], 2);
    let (code, refused) = server.ask("DELETE", &format!("/v1/files/{file}"), None);
    assert_eq!(code, 400, "a file that is in use stays: {refused}");

    let paused = server.post(&format!("/v1/fine_tuning/jobs/{first}/pause"), &json!({}));
    assert_eq!(paused["garden"]["state"], "stopping");
    let paused = server.wait_for(&first, "paused", |job| job["garden"]["state"] == "paused");
    assert_eq!(status(&paused), "queued", "a strict client knows no `paused`");
    assert_eq!(status(&server.wait_until_over(&third)), "succeeded");
    assert_eq!(status(&server.wait_until_over(&second)), "succeeded", "the queue goes on without it");
    server.post(&format!("/v1/fine_tuning/jobs/{first}/resume"), &json!({}));
    let done = server.wait_until_over(&first);
    assert_eq!((status(&done), &done["garden"]["attempt"]), ("succeeded", &json!(2)), "{done:#}");
    // Its process has ten megabytes of its own: tens of kilobytes in the first steps decide between the two.
    let verdict = done["garden"]["memory"]["verdict"].as_str().unwrap();
    assert!(["steady", "warm-up"].contains(&verdict), "{verdict}");
    assert!(done["trained_tokens"].as_u64() > Some(0));

    let whole = server.create(&file, &json!({"max_steps": 300, "save_steps": 20}));
    server.wait_until_over(&whole);
    assert_eq!(adapter(&server, &first), adapter(&server, &whole), "a pause changes nothing");

    let checkpoints = server.get(&format!("/v1/fine_tuning/jobs/{first}/checkpoints"));
    assert_eq!(checkpoints["data"][0]["step_number"], 300);
    let name = done["fine_tuned_model"].as_str().unwrap();
    let encoded = name.replace(':', "%3A");
    assert_eq!(server.get(&format!("/v1/models/{encoded}"))["id"], name);
    let found = server.get("/v1/fine_tuning/jobs?metadata%5Bteam%5D=a");
    assert_eq!(found["data"].as_array().unwrap().len(), 1);
    let (code, _) = server.ask("DELETE", &format!("/v1/fine_tuning/jobs/{first}"), None);
    assert_eq!(code, 200);
    assert_eq!(server.ask("GET", &format!("/v1/models/{encoded}"), None).0, 404);
}

/// An interpreter whose worker speaks the messages of an engine in Python and learns nothing.
fn fake_python(folder: &Path) -> String {
    let script = folder.join("fake_worker.py");
    fs::write(&script, include_str!("../../train/tests/runs/fake_worker.py")).unwrap();
    let plan = json!({"version": env!("CARGO_PKG_VERSION")});
    let run = format!("#!/bin/sh\nFAKE_WORKER_PLAN='{plan}' exec python3 {} \"$@\"\n", script.display());
    let path = folder.join("python");
    fs::write(&path, run).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn a_job_may_have_an_engine_in_python_with_the_servers_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(16, &["--python", &fake_python(folder.path())]);
    let options = server.get("/v1/garden/options");
    let keys: Vec<&str> =
        options["data"].as_array().unwrap().iter().filter_map(|o| o["key"].as_str()).collect();
    assert!(keys.contains(&"engine") && !keys.contains(&"python"), "{keys:?}");
    let file = server.upload();
    let ask = |more: Value| {
        let mut body =
            json!({"model": "tiny", "training_file": file, "engine": "transformers", "max_steps": 4});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("POST", "/v1/fine_tuning/jobs", Some(&body))
    };
    for (more, param) in [
        (json!({}), "memory_budget"),
        (json!({"memory_budget": "400MB", "python": "/bin/sh"}), "python"),
        (json!({"memory_budget": "400MB", "cleanup_every": 3}), "cleanup_every"),
    ] {
        let (code, refused) = ask(more);
        assert_eq!((code, refused["error"]["param"].as_str()), (400, Some(param)), "{refused:#}");
    }
    let (_, job) = ask(json!({"memory_budget": "400MB"}));
    let id = job["id"].as_str().unwrap_or_else(|| panic!("{job:#}"));
    let done = server.wait_until_over(id);
    assert_eq!(status(&done), "succeeded", "{done:#}");
    let asked = fs::read_to_string(folder.path().join("requests.jsonl")).unwrap();
    assert_eq!(asked.lines().filter(|line| line.contains("\"step\"")).count(), 4);
    let plan = fs::read_to_string(server.data("jobs").join(id).join("plan.json")).unwrap();
    assert!(plan.contains("reserved") && plan.contains("400000000"), "{plan}");
}

#[test]
fn a_rerun_goes_on_from_any_checkpoint_with_the_bits_of_the_whole() {
    let server = Server::start(16, &[]);
    let file = server.upload();
    let settings = json!({"max_steps": 30, "save_steps": 10, "save_total_limit": 5});
    let first = server.create(&file, &settings);
    server.wait_until_over(&first);
    let checkpoints = server.get(&format!("/v1/fine_tuning/jobs/{first}/checkpoints"));
    let of_ten = checkpoints["data"]
        .as_array()
        .unwrap()
        .iter()
        .find(|checkpoint| checkpoint["step_number"] == 10)
        .unwrap();
    let again = server
        .post(&format!("/v1/fine_tuning/jobs/{first}/rerun"), &json!({"from_checkpoint": of_ten["id"]}));
    let id = again["id"].as_str().unwrap();
    assert_eq!(again["garden"]["rerun_of"], first.as_str());
    assert_eq!(again["garden"]["resumed_from"], json!({"job": first, "step": 10}));
    let done = server.wait_until_over(id);
    assert_eq!(status(&done), "succeeded", "{done:#}");
    assert_eq!(adapter(&server, id), adapter(&server, &first));
    let changed = server.post(
        &format!("/v1/fine_tuning/jobs/{first}/rerun"),
        &json!({"max_steps": 3, "save_total_limit": null}),
    );
    assert_eq!(changed["garden"]["settings"]["max_steps"], 3);
    assert_eq!(changed["garden"]["settings"].get("save_total_limit"), None);
}

#[test]
fn a_job_that_can_never_fit_is_refused_with_its_plan() {
    let server = Server::start(8, &["--memory-budget", "20MB"]);
    let file = server.upload();
    let body = json!({"model": "tiny", "training_file": file});
    let (code, refused) = server.ask("POST", "/v1/fine_tuning/jobs", Some(&body));
    let message = refused["error"]["message"].as_str().unwrap();
    assert_eq!((code, refused["error"]["code"].as_str()), (400, Some("memory_budget_exceeded")));
    assert!(
        message.contains("budget is 20 MB") && message.contains("weights") && message.contains("total"),
        "{message}"
    );
}

#[test]
fn no_name_of_a_client_is_a_path() {
    let server = Server::start(8, &[]);
    let file = server.upload();
    let outside = server.garden.path("rows.jsonl");
    for (key, value) in [
        ("training_file", json!(format!("hub:{outside}"))),
        ("training_file", json!("hub:rows.jsonl")),
        ("validation_file", json!("hub:../../rows.jsonl")),
        ("model", json!("models/tiny@../../x")),
        ("model", json!(server.garden.path("models/tiny"))),
        ("image_root", json!(["/"])),
        ("image-root", json!(["/"])),
        ("output-dir", json!("/tmp/x")),
    ] {
        let mut body = json!({"model": "tiny", "training_file": file, "max_steps": 1});
        body[key] = value;
        let (code, answer) = server.ask("POST", "/v1/fine_tuning/jobs", Some(&body));
        assert!([400, 404].contains(&code), "{body}: {code} {answer}");
    }
}

#[test]
fn equal_requests_at_once_make_one_job_and_one_later_another() {
    let server = Server::start(8, &[]);
    let file = server.upload();
    let body = json!({"model": "tiny", "training_file": file, "max_steps": 1});
    let made: Vec<Value> = thread::scope(|scope| {
        let ask = || server.post("/v1/fine_tuning/jobs", &body)["id"].clone();
        let asked: Vec<_> = (0..10).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let distinct: std::collections::BTreeSet<String> = made.iter().map(ToString::to_string).collect();
    assert!(distinct.len() < made.len(), "requests in flight share a job: {distinct:?}");
    let later = server.post("/v1/fine_tuning/jobs", &body)["id"].clone();
    assert!(!made.contains(&later), "a request of its own makes a job of its own");
}

#[test]
fn a_job_whose_handle_was_lost_can_still_be_cancelled() {
    let mut server = Server::start(16, &[]);
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 100_000, "save_steps": 5}));
    server.wait_for_step(&job, 3);
    server.kill();
    let path = server.data("jobs").join(&job).join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state["handle"] = Value::Null;
    fs::write(&path, state.to_string()).unwrap();
    server.restart();
    assert_eq!(server.trainers(&job).len(), 1, "it trained on without a server");
    server.post(&format!("/v1/fine_tuning/jobs/{job}/cancel"), &json!({}));
    assert_eq!(status(&server.wait_until_over(&job)), "cancelled");
    assert!(server.trainers(&job).is_empty());
}

#[test]
fn a_server_with_less_memory_keeps_the_job_for_one_with_more() {
    let mut server = Server::start(16, &["--memory-budget", "1GB"]);
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 200, "save_steps": 5}));
    server.wait_for_step(&job, 6);
    assert_eq!(server.end_by(Signal::TERM), Some(0));
    server.set_flags(&["--memory-budget", "30MB"]);
    server.restart();
    let waiting = server.wait_for(&job, "waiting", |job| !job["garden"]["waiting_for"].is_null());
    assert!(waiting["garden"]["waiting_for"].as_str().unwrap().starts_with("memory"), "{waiting:#}");
    server.end_by(Signal::TERM);
    server.set_flags(&["--memory-budget", "1GB"]);
    server.restart();
    assert_eq!(status(&server.wait_until_over(&job)), "succeeded");
}

#[test]
fn deleting_a_tuned_model_leaves_its_checkpoints() {
    let server = Server::start(8, &[]);
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 4, "save_steps": 2}));
    let name = server.wait_until_over(&job)["fine_tuned_model"].as_str().unwrap().replace(':', "%3A");
    assert_eq!(server.ask("DELETE", &format!("/v1/models/{name}"), None).0, 200);
    assert_eq!(server.ask("GET", &format!("/v1/models/{name}"), None).0, 404);
    let checkpoint = format!("/v1/models/{name}%3Ackpt-step-4");
    assert_eq!(server.ask("DELETE", &checkpoint, None).0, 200);
    let left = server.get(&format!("/v1/fine_tuning/jobs/{job}/checkpoints"));
    assert_eq!(left["data"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(server.ask("DELETE", "/v1/models/tiny", None).0, 400, "base models are not the server's");
}

#[test]
fn a_job_gets_its_memory_although_a_model_is_asked_all_the_time() {
    let garden = support::training::Garden::new(1);
    let model = std::path::PathBuf::from(garden.path("model"));
    let host = garden_chat::plan(&model, None, garden_model::Precision::AsStored, None).unwrap().limit();
    // The model and a job do not fit at once.
    let budget = (host + 20_000_000).to_string();
    let server = Server::start(16, &["--memory-budget", &budget]);
    let file = server.upload();
    let hello =
        json!({"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "Hello"}]});
    let ask = || server.ask("POST", "/v1/chat/completions", Some(&hello)).0;
    assert_eq!(ask(), 200);
    let done = std::sync::atomic::AtomicBool::new(false);
    let job = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let code = ask();
                    assert!(matches!(code, 200 | 429), "{code}");
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let job = server.create(&file, &json!({"max_steps": 4}));
        let job = server.wait_until_over(&job);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        job
    });
    assert_eq!(status(&job), "succeeded", "{job:#}");
    assert_eq!(ask(), 200, "the model is back");
}

#[test]
fn a_killed_trainer_is_told_in_words_or_started_again() {
    let server = Server::start(16, &[]);
    let file = server.upload();
    let settings = json!({"max_steps": 2000, "save_steps": 5});
    let job = server.create(&file, &settings);
    server.wait_for_step(&job, 6);
    server.trainers(&job).into_iter().for_each(kill_9);
    let failed = server.wait_until_over(&job);
    let message = failed["error"]["message"].as_str().unwrap();
    assert_eq!((status(&failed), failed["error"]["code"].as_str()), ("failed", Some("killed")));
    assert!(message.contains("signal 9") && message.contains("last reading was"), "{message}");
    assert!(!failed["garden"]["last_end"]["last_readings"].as_array().unwrap().is_empty());

    let job = server.create(&file, &json!({"max_steps": 60, "save_steps": 5, "max_restarts": 3}));
    server.wait_for_step(&job, 6);
    server.trainers(&job).into_iter().for_each(kill_9);
    let done = server.wait_until_over(&job);
    assert_eq!((status(&done), &done["garden"]["attempt"]), ("succeeded", &json!(2)), "{done:#}");
}

#[test]
fn a_second_keeper_and_a_late_one_start_nothing() {
    let server = Server::start(16, &[]);
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 100_000, "save_steps": 5}));
    server.wait_for_step(&job, 3);
    let keep = |attempt: &str| {
        let mut command = model_garden();
        command.arg("serve-keep").arg(server.data("jobs").join(&job));
        Finished::of(command.args(["--attempt", attempt, "--limit", "1000000000"]))
    };
    let trainers = server.trainers(&job);
    assert_eq!(keep("1").code, Some(0), "somebody looks after the job: no fault");
    assert_eq!((server.trainers(&job), trainers.len()), (trainers, 1), "the first one trains on, alone");
    server.post(&format!("/v1/fine_tuning/jobs/{job}/pause"), &json!({}));
    server.wait_for(&job, "paused", |job| job["garden"]["state"] == "paused");
    let events = || fs::metadata(server.data("jobs").join(&job).join("events.jsonl")).unwrap().len();
    let before = events();
    for (attempt, why) in [("1", "attempt 1 is over"), ("2", "no attempt 2 was asked for")] {
        assert_eq!(keep(attempt).code, Some(0), "{why}");
        assert_eq!((events(), server.trainers(&job).len()), (before, 0), "{why}");
    }
}

#[test]
fn the_end_of_a_server_checkpoints_the_jobs_and_the_next_one_goes_on_with_them() {
    // SIGHUP is the end of the terminal.
    for signal in [Signal::TERM, Signal::HUP] {
        checkpoints_at(signal);
    }
}

fn checkpoints_at(signal: Signal) {
    let mut server = Server::start(16, &[]);
    let file = server.upload();
    let job = server.create(&file, &json!({"max_steps": 400, "save_steps": 1000}));
    let before = server.wait_for_step(&job, 20)["garden"]["progress"]["step"].as_u64().unwrap();
    assert_eq!(server.end_by(signal), Some(0));
    assert!(server.trainers(&job).is_empty(), "nothing runs on");
    server.restart();
    let done = server.wait_until_over(&job);
    assert_eq!((status(&done), &done["garden"]["attempt"]), ("succeeded", &json!(2)));
    let log = server.ask("GET", &format!("/v1/fine_tuning/jobs/{job}/log"), None).1;
    let from = log
        .as_str()
        .unwrap()
        .lines()
        .find_map(|line| line.split("Going on from the checkpoint of step ").nth(1));
    assert!(
        from.unwrap().trim().parse::<u64>().unwrap() >= before,
        "from where it was, not from the start: {from:?}"
    );
}

/// Kills trainers, keepers and the server at random moments: no job is lost, none runs twice at once, none is stuck,
/// and every adapter is the one of an undisturbed run.
#[test]
fn whatever_is_killed_no_job_is_lost_or_runs_twice() {
    const ROUNDS: u64 = 30;
    let mut server = Server::start(16, &["--max-jobs", "2"]);
    let file = server.upload();
    let settings = |restarts: u32| json!({"max_steps": 150, "save_steps": 5, "max_restarts": restarts});
    let undisturbed = server.create(&file, &settings(0));
    server.wait_until_over(&undisturbed);
    let mut jobs: Vec<String> = (0..2).map(|_| server.create(&file, &settings(99))).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for round in 0..ROUNDS {
        thread::sleep(Duration::from_millis(50 + next(700)));
        for job in &jobs {
            let trainers = server.trainers(job);
            assert!(trainers.len() <= 1, "round {round}: {job} runs twice: {trainers:?}");
        }
        let victim = jobs[next(jobs.len() as u64) as usize].clone();
        match next(4) {
            0 => server.trainers(&victim).into_iter().for_each(kill_9),
            1 => server.keepers(&victim).into_iter().for_each(kill_9),
            2 => {
                server.kill();
                server.restart();
            }
            _ => {
                server.kill();
                jobs.iter()
                    .flat_map(|job| [server.trainers(job), server.keepers(job)].concat())
                    .for_each(kill_9);
                server.restart();
            }
        }
        if round % 10 == 9 {
            jobs.push(server.create(&file, &settings(99)));
        }
    }
    for job in &jobs {
        let done = server.wait_until_over(job);
        assert_eq!(status(&done), "succeeded", "{done:#}");
        assert_eq!(adapter(&server, job), adapter(&server, &undisturbed));
    }
    let listed = server.get("/v1/fine_tuning/jobs?limit=100");
    assert_eq!(listed["data"].as_array().unwrap().len(), jobs.len() + 1);
}
