//! `dataset create`, `check`, `show` and `convert` as a person runs them, and what the hub's variables do.

mod support;

use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
};
use support::{Finished, model_garden};

/// Runs in a folder, with none of the caller's hub variables.
fn run(folder: &Path, arguments: &[&str]) -> Finished {
    Finished::of(&mut command(folder, arguments))
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = model_garden();
    command.current_dir(folder).args(arguments);
    for name in ["HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.output).unwrap_or_else(|error| panic!("{error}: {}", finished.errors))
}

/// Twelve rows of shapes and a tiny checkpoint.
fn shapes_and_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let create =
        ["dataset", "create", "--kind", "shapes", "--rows", "12", "--size", "84x56", "--output", "shapes"];
    assert_eq!(run(folder.path(), &create).code, Some(0));
    let init = ["init", "--preset", "tiny", "--output", "tiny"];
    assert_eq!(run(folder.path(), &init).code, Some(0));
    folder
}

#[test]
fn check_tells_what_training_will_make_of_the_rows() {
    let folder = shapes_and_model();
    let flags = ["dataset", "check", "shapes", "--base-model", "tiny", "--batch-size", "4"];
    let text = run(folder.path(), &flags);
    assert_eq!(text.code, Some(0), "{}", text.errors);
    for wanted in
        ["Rows      12", "84x56", "Tokens a row", "A batch   4 rows", "Bad rows  none", "<|im_start|>user"]
    {
        assert!(text.output.contains(wanted), "no '{wanted}' in\n{}", text.output);
    }

    let report = json(&run(folder.path(), &[&flags[..], &["--format", "json"]].concat()));
    assert_eq!((report["rows"].as_u64(), report["images"]["count"].as_u64()), (Some(12), Some(12)));
    let sample = report["sample"].as_array().unwrap();
    let learned: Vec<_> = sample.iter().filter(|run| run["learned"] == true).collect();
    assert!(learned.iter().all(|run| run["text"].as_str().unwrap().contains("<|im_end|>")), "{sample:?}");
    let tokens: u64 = sample.iter().map(|run| run["tokens"].as_u64().unwrap()).sum();
    assert!(!learned.is_empty() && tokens <= report["tokens"]["max"].as_u64().unwrap());
}

#[test]
fn single_rows_are_shown_as_the_model_reads_them_with_small_images() {
    let folder = shapes_and_model();
    let ask = ["dataset", "show", "shapes", "--row", "2", "--base-model", "tiny", "--format", "json"];
    let row = json(&run(
        folder.path(),
        &[&ask[..], &["--images", "thumbnails", "--thumbnail-side", "42"]].concat(),
    ));
    assert_eq!((row["row"].as_u64(), row["rows"].as_u64()), (Some(2), Some(12)));
    let image = &row["images"][0];
    assert_eq!((image["width"].as_u64(), image["height"].as_u64()), (Some(84), Some(56)));
    assert!(image["uri"].as_str().unwrap().starts_with("data:image/jpeg;base64,"), "{image}");
    let runs = row["runs"].as_array().unwrap();
    let learned: Vec<&Value> = runs.iter().filter(|run| run["learned"] == true).collect();
    let answer = row["turns"].as_array().unwrap().last().unwrap()["parts"][0]["text"].as_str().unwrap();
    assert!(learned.len() == 1 && learned[0]["text"].as_str().unwrap().contains(answer), "{runs:?}");
    let held_out = run(folder.path(), &["dataset", "show", "shapes", "--held-out", "25%", "--count", "9"]);
    assert_eq!(held_out.output.matches("train.jsonl, row ").count(), 3, "{}", held_out.output);
    let beyond = run(folder.path(), &["dataset", "show", "shapes", "--row", "13"]);
    assert!(beyond.code == Some(2) && beyond.errors.contains("12 rows"), "{}", beyond.errors);
}

#[test]
fn rows_over_the_length_are_counted_as_left_out() {
    let folder = shapes_and_model();
    let flags =
        ["dataset", "check", "shapes", "--base-model", "tiny", "--max-seq-length", "3", "--format", "json"];
    let report = json(&run(folder.path(), &flags));
    assert_eq!(report["left_out"]["too_long"], 12);
    assert_eq!(report["sample"], Value::Null);
}

#[test]
fn a_bad_row_is_named_and_makes_the_answer_negative() {
    let folder = tempfile::tempdir().unwrap();
    let good = r#"{"text": "What?", "response": "That."}"#;
    let bad = r#"{"text": "What?", "image": "no-such.png", "response": "That."}"#;
    fs::write(folder.path().join("rows.jsonl"), format!("{good}\n{bad}\n{good}\n")).unwrap();
    let found = run(folder.path(), &["dataset", "check", "rows.jsonl"]);
    assert_eq!(found.code, Some(1));
    assert!(
        found.output.contains("rows.jsonl, row 2") && found.output.contains("no-such.png"),
        "{}",
        found.output
    );
}

#[test]
fn refused_rows_are_counted_by_their_reason_and_ignored_fields_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [
        r#"{"id": 1, "text": "What?", "response": "That."}"#,
        r#"{"id": 2, "text": "What?", "response": "That.", "videos": ["a.mp4"]}"#,
        r#"{"id": 3, "text": "What?", "response": "That.", "videos": ["b.mp4"]}"#,
        r#"{"id": 4, "prompt": "What?"}"#,
    ];
    fs::write(folder.path().join("rows.jsonl"), rows.join("\n")).unwrap();
    let found = run(folder.path(), &["dataset", "check", "rows.jsonl"]);
    assert_eq!(found.code, Some(1));
    for wanted in [
        "Ignored   id (1 of 4 rows): fields that no shape reads",
        "Bad rows  3",
        "2  with a field that is not followed: 'videos'",
        "1  without an answer",
        "rows.jsonl, row 2: 'videos' is not followed: videos are not trained on; remove the field, or the row",
    ] {
        assert!(found.output.contains(wanted), "no '{wanted}' in\n{}", found.output);
    }
}

#[test]
fn columns_of_any_name_and_an_image_folders_csv_are_read() {
    let folder = shapes_and_model();
    let image = fs::read_dir(folder.path().join("shapes/images")).unwrap().next().unwrap().unwrap().path();
    fs::create_dir(folder.path().join("photos")).unwrap();
    fs::copy(image, folder.path().join("photos/one.png")).unwrap();
    let csv = "photo,ask,reply,id\none.png,What?,\"A square, red\",7\n";
    fs::write(folder.path().join("photos/metadata.csv"), csv).unwrap();
    let flags = ["dataset", "check", "photos", "--format", "json"];
    let check = |more: &[&str]| {
        let mut command = command(folder.path(), &[&flags[..], more].concat());
        Finished::of(command.env("XDG_CACHE_HOME", folder.path().join("cache")))
    };
    let unknown = check(&[]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.errors);
    assert!(unknown.output.contains("it has photo, ask, reply, id; expected"), "{}", unknown.output);
    let named = check(&["--columns", "image=photo,prompt=ask,response=reply"]);
    assert_eq!(named.code, Some(0), "{}", named.errors);
    let report = json(&named);
    assert_eq!(report["shapes"]["question-answer"], 1);
    assert_eq!((&report["images"]["count"], &report["ignored"]["id"]), (&1.into(), &1.into()));
    let wrong = check(&["--columns", "picture=photo"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.errors.contains("'picture' is no meaning of a column"), "{}", wrong.errors);
}

#[test]
fn what_cannot_be_read_is_said_with_exit_code_two() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, wanted) in [
        (&["dataset", "check", "absent.jsonl"][..], "absent.jsonl"),
        (&["dataset", "check", "absent.jsonl", "--max-seq-length", "9"], "--base-model"),
        (
            &["dataset", "create", "--kind", "shapes", "--rows", "1", "--size", "9", "--output", "x"],
            "width x height",
        ),
    ] {
        let found = run(folder.path(), arguments);
        assert_eq!(found.code, Some(2), "{arguments:?}");
        assert!(found.errors.contains(wanted), "{}", found.errors);
    }
}

#[test]
fn an_empty_dataset_is_an_error_in_words() {
    let folder = shapes_and_model();
    for (name, text) in [("empty.jsonl", ""), ("blank.jsonl", "\n \n"), ("list.json", "[]")] {
        fs::write(folder.path().join(name), text).unwrap();
        let train = ["train-vision", "--base-model", "tiny", "--output-dir", "out", "--dataset", name];
        for arguments in [&["dataset", "check", name][..], &["dataset", "convert", name, "to.jsonl"], &train]
        {
            let finished = run(folder.path(), arguments);
            assert_eq!(
                (finished.code, &*finished.output),
                (Some(2), ""),
                "{arguments:?}: {}",
                finished.errors
            );
            assert_eq!(finished.errors, format!("error: {name}: there are no rows in it\n"), "{arguments:?}");
        }
    }
}

#[test]
fn convert_keeps_rows_and_images_through_every_format() {
    let folder = shapes_and_model();
    let steps =
        [("shapes", "a.jsonl"), ("a.jsonl", "b.json"), ("b.json", "c.parquet"), ("c.parquet", "d.jsonl")];
    for (from, to) in steps {
        let done = run(folder.path(), &["dataset", "convert", from, to]);
        assert_eq!(done.output, format!("12 rows in {to}\n"), "{}", done.errors);
    }
    let report = |path| {
        let mut report = json(&run(
            folder.path(),
            &["dataset", "check", path, "--base-model", "tiny", "--format", "json"],
        ));
        report.as_object_mut().unwrap().remove("shapes");
        report
    };
    assert_eq!(report("shapes"), report("d.jsonl"));
    let inside = run(folder.path(), &["dataset", "convert", "shapes", "shapes/train.parquet"]);
    assert_eq!(inside.code, Some(2));
    assert!(inside.errors.contains("its rows would be read twice the next time"), "{}", inside.errors);
    let again = run(folder.path(), &["dataset", "convert", "a.jsonl", "d.jsonl"]);
    assert_eq!(again.code, Some(2), "a file that is there is not written over");
}

#[test]
fn offline_a_dataset_of_the_hub_comes_from_the_cache_under_hf_home() {
    let folder = tempfile::tempdir().unwrap();
    let check = || {
        let mut command = command(folder.path(), &["dataset", "check", "garden/few", "--format", "json"]);
        command.env("HF_HOME", folder.path().join("home")).env("HF_HUB_OFFLINE", "1");
        Finished::of(&mut command)
    };
    let absent = check();
    assert_eq!(absent.code, Some(2));
    assert!(absent.errors.contains("HF_HUB_OFFLINE") && absent.errors.contains("home"), "{}", absent.errors);

    let repository = folder.path().join("home/hub/datasets--garden--few");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), commit).unwrap();
    fs::create_dir_all(repository.join("snapshots").join(commit)).unwrap();
    let row = r#"{"text": "What?", "response": "That."}"#;
    fs::write(repository.join("snapshots").join(commit).join("train.jsonl"), format!("{row}\n{row}\n"))
        .unwrap();
    assert_eq!(json(&check())["rows"], 2);
}

#[test]
fn the_hub_is_asked_where_hf_endpoint_says_with_the_token_which_no_message_shows() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (requests, seen) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines =
                BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let request: Vec<_> = lines.collect();
            let _ = requests.send(request.join("\n"));
            let _ = stream
                .write_all(b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut command = command(folder.path(), &["dataset", "check", "garden/private"]);
    command.env("HF_HOME", folder.path()).env("HF_ENDPOINT", endpoint).env("HF_TOKEN", "hf_secret");
    let refused = Finished::of(&mut command);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.errors.contains("garden/private") && refused.errors.contains("HF_TOKEN"),
        "{}",
        refused.errors
    );
    assert!(!refused.errors.contains("hf_secret"));
    let request = seen.recv().unwrap();
    assert!(request.contains("/api/datasets/garden/private"), "{request}");
    assert!(request.to_lowercase().contains("authorization: bearer hf_secret"), "{request}");
}

#[test]
fn a_row_is_told_by_its_first_bad_image_and_programs_are_told_the_flag_too() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("broken.png"), "no image").unwrap();
    let row =
        |images: &str| format!(r#"{{"images": [{images}], "question": "What is it?", "answer": "A cat."}}"#);
    let rows = [row(r#""broken.png", "gone.png""#), row(r#""gone.png", "broken.png""#)].join("\n");
    fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    let checked = run(folder.path(), &["dataset", "check", "rows.jsonl", "--format", "json"]);
    assert_eq!(checked.code, Some(1), "{}", checked.errors);
    let report = json(&checked);
    let told: Vec<&str> =
        report["bad"]["rows"].as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
    assert!(told[0].contains("row 1: image 1: "), "{told:?}");
    assert!(told[1].contains("gone.png") && told[1].contains("--image-root"), "{told:?}");
}
