//! What the pages ask of a real server: rows, verdicts, watches, disk, answers.

mod support;

use serde_json::{Value, json};
use std::fs;
use support::server::Server;

#[test]
fn rows_are_surveyed_and_shown_with_what_is_learned() {
    let server = Server::start(12, &[]);
    let file = server.upload();
    let rows = format!("/v1/garden/datasets/{file}");
    let survey = server.post(&format!("{rows}/check"), &json!({"model": "tiny"}));
    assert_eq!((&survey["rows"], &survey["bad"]["count"]), (&json!(12), &json!(0)));
    let row = server.get(&format!("{rows}/rows/3?model=tiny"));
    let learned: Vec<&Value> =
        row["runs"].as_array().unwrap().iter().filter(|run| run["learned"] == true).collect();
    assert!(row["row"] == 3 && learned.len() == 1, "{row}");
    assert!(row["images"][0]["uri"].as_str().unwrap().starts_with("data:image/jpeg;base64,"));
    assert_eq!(server.get(&format!("{rows}/rows?limit=5"))["data"].as_array().unwrap().len(), 5);
    for (path, code) in
        [("rows/13", 400), ("rows/3/images/0", 200), ("rows/3/images/9", 404), ("rows?limit=0", 400)]
    {
        assert_eq!(server.ask("GET", &format!("{rows}/{path}"), None).0, code, "{path}");
    }
    assert_eq!(server.ask("GET", "/v1/garden/datasets/file-none/rows/1", None).0, 404);
    let (code, refused) = server.ask("GET", &format!("{rows}/rows/1?model=../tiny"), None);
    assert_eq!(code, 404, "a model is a name, never a path: {refused}");
}

#[test]
fn a_bad_row_is_named_by_the_files_own_name() {
    let server = Server::start(4, &[]);
    let file =
        server.upload_text("mine.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": 3}\n");
    let survey = server.post(&format!("/v1/garden/datasets/{file}/check"), &json!({"model": "tiny"}));
    assert_eq!(survey["bad"]["count"], 1, "{survey}");
    let told = survey["bad"]["rows"][0].as_str().unwrap();
    assert!(told.starts_with("mine.jsonl, row 2"), "{told}");
    let first = server.get(&format!("/v1/garden/datasets/{file}/rows"));
    assert!(first["data"][0]["error"].is_null() && first["data"][1]["error"].is_string(), "{first}");
}

#[test]
fn rows_tell_nothing_about_the_files_of_the_server() {
    let server = Server::start(4, &[]);
    let row = |path: &str| {
        let question = json!([{"type": "image", "image": path}, {"type": "text", "text": "what?"}]);
        let answer = json!({"role": "assistant", "content": "this"});
        json!({"messages": [{"role": "user", "content": question}, answer]})
    };
    let database = server.data("garden.sqlite");
    let paths = ["/etc/passwd", "/etc/none", "../../garden.sqlite", "rows.jsonl", database.to_str().unwrap()];
    let rows: String = paths.iter().map(|path| format!("{}\n", row(path))).collect();
    let file = server.upload_text("mine.jsonl", &rows);
    let shown = server.get(&format!("/v1/garden/datasets/{file}/rows"));
    let errors: Vec<&str> =
        shown["data"].as_array().unwrap().iter().map(|row| row["error"].as_str().unwrap()).collect();
    assert_eq!(errors.len(), paths.len());
    let sentence = "rows carry their images inside: no image is read by its path here";
    assert!(errors.iter().all(|error| error.contains(sentence)), "{errors:?}");
    let survey =
        server.post(&format!("/v1/garden/datasets/{file}/check"), &json!({"model": "tiny"})).to_string();
    let body = json!({"model": "tiny", "training_file": file});
    let (code, refused) = server.ask("POST", "/v1/garden/plan", Some(&body));
    assert_eq!(code, 400, "{refused}");
    let root = server.data("").to_string_lossy().into_owned();
    for told in [&survey, &refused.to_string(), &shown.to_string()] {
        assert!(!told.contains(root.trim_end_matches('/')) && !told.contains("leads to"), "{told}");
    }
}

#[test]
fn the_form_offers_what_a_job_may_have_and_nothing_else() {
    let server = Server::start(8, &[]);
    let file = server.upload();
    let options = server.get("/v1/garden/options");
    let keys: Vec<&str> =
        options["data"].as_array().unwrap().iter().map(|option| option["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"learning_rate") && !keys.contains(&"base_model") && !keys.contains(&"resume"));
    // Every key is taken: a wrong value is refused for its value, not for its name.
    for key in keys {
        let body = json!({"model": "tiny", "training_file": file, key: {"no": "value"}});
        let (code, refused) = server.ask("POST", "/v1/garden/plan", Some(&body));
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(code == 400 && !message.contains("cannot be set"), "{key}: {message}");
    }
}

#[test]
fn a_log_is_judged_and_a_process_is_watched() {
    let server = Server::start(4, &[]);
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../memory/tests/data/founding-run2.log");
    let facts = "name=run2.log&dataset_size=663&samples_per_step=8";
    let judge = |query: &str, body: &[u8]| {
        server.send("POST", &format!("/v1/garden/analyze?{query}"), "application/octet-stream", body)
    };
    let (_, found) = judge(facts, &fs::read(log).unwrap());
    assert_eq!((&found["verdict"], &found["name"]), (&json!("fill"), &json!("run2.log")));
    assert_eq!(found["chart"]["lines"][0]["x"].as_array().unwrap().len(), 24);
    assert!(
        fs::read_dir(server.data("cache"))
            .unwrap()
            .flatten()
            .all(|entry| { !entry.file_name().to_string_lossy().starts_with("analyze-") })
    );
    let (code, refused) = judge("name=a.csv", b"no trace at all");
    assert!(code == 400 && !refused.to_string().contains("analyze-"), "{refused}");
    let own = std::process::id();
    let told = |heard: &str| heard.contains("event: reading") && heard.contains("\"verdict\"");
    let heard = server.listen(&format!("/v1/garden/watch?pid={own}"), told);
    assert!(told(&heard), "{heard}");
    assert_eq!(server.ask("GET", "/v1/garden/watch?pid=-1", None).0, 400);
    let others = server.get("/v1/garden/processes");
    assert!(!others["data"].as_array().unwrap().is_empty());
}

#[test]
fn checkpoints_of_a_job_that_is_over_are_asked_and_then_deleted() {
    let server = Server::start(16, &[]);
    let file = server.upload();
    let job =
        server.create(&file, &json!({"max_steps": 4, "save_steps": 2, "eval_split": "3", "suffix": "ask"}));
    server.wait_until_over(&job);
    let path = format!("/v1/garden/jobs/{job}/answers");
    server.post(&path, &json!({}));
    let answers = server.poll(&path, |answers| answers["asking"].is_null());
    assert_eq!(answers["error"], Value::Null, "{answers}");
    let steps = |row: &Value| -> Vec<u64> {
        row["answers"].as_array().unwrap().iter().map(|said| said["step"].as_u64().unwrap()).collect()
    };
    let rows = answers["rows"].as_array().unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|row| steps(row) == [0, 2, 4]), "{answers}");

    let storage = server.get("/v1/garden/storage");
    assert_eq!(storage["jobs"][0]["name"], "ask");
    let before = storage["jobs"][0]["bytes"].as_u64().unwrap();
    let clean = json!({"checkpoints": [{"job": job, "step": 2}, {"job": job, "step": 3}], "orphans": true});
    let cleaned = server.post("/v1/garden/storage/clean", &clean);
    assert_eq!(
        (&cleaned["deleted"], cleaned["refused"].as_array().unwrap().len()),
        (&json!(1), 1),
        "{cleaned}"
    );
    let after = server.get("/v1/garden/storage")["jobs"][0]["bytes"].as_u64().unwrap();
    assert_eq!(before - after, cleaned["freed_bytes"].as_u64().unwrap());
    let energy = server.get("/v1/garden/energy?grams_per_kwh=100");
    assert_eq!(energy["grams_per_kwh"], 100.0);
    assert_eq!(server.ask("GET", "/v1/garden/energy?grams_per_kwh=-1", None).0, 400);
}
