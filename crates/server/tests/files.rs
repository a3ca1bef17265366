//! Files over HTTP: uploaded, listed, read, deleted, and what names and forms may try.

mod support;

use serde_json::json;
use std::{fs, path::Path};
use support::Server;

const ROWS: &[u8] = b"{\"messages\": []}\n";

/// Every path below a folder, sorted.
fn tree(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            paths.extend(tree(&entry.path()));
        }
        paths.push(entry.path().display().to_string());
    }
    paths.sort();
    paths
}

#[test]
fn a_file_goes_up_is_shown_read_listed_and_deleted() {
    let server = Server::new();
    let fields = [
        ("purpose", None, &b"fine-tune"[..]),
        ("expires_after[anchor]", None, b"created_at"),
        ("expires_after[seconds]", None, b"3600"),
        ("file", Some("rows.jsonl"), ROWS),
    ];
    let file = server.form("/v1/files", &fields).ok();
    assert_eq!(file["object"], "file");
    assert_eq!(file["bytes"], ROWS.len());
    assert_eq!(file["filename"], "rows.jsonl");
    assert_eq!(file["purpose"], "fine-tune");
    assert_eq!(file["status"], "processed");
    assert_eq!(file["expires_at"].as_i64().unwrap() - file["created_at"].as_i64().unwrap(), 3600);
    let path = format!("/v1/files/{}", file["id"].as_str().unwrap());
    assert_eq!(server.get(&path).ok(), file);
    let content = server.get(&format!("{path}/content"));
    assert_eq!((content.status, &*content.body), (200, ROWS));
    assert_eq!(content.header("content-length"), Some("17"));
    assert_eq!(content.header("content-disposition"), Some("attachment; filename*=UTF-8''rows.jsonl"));
    let list = server.get("/v1/files").ok();
    assert_eq!(list["data"], json!([file]));
    assert_eq!((&list["first_id"], &list["last_id"]), (&file["id"], &file["id"]));
    let deleted = server.delete(&path).ok();
    assert_eq!(deleted, json!({"id": file["id"], "object": "file", "deleted": true}));
    assert_eq!(server.get(&path).error(404)["code"], "not_found");
    server.delete(&path).error(404);
    assert_eq!(tree(&server.data().join("blobs")), [""; 0], "the content is gone too");
    assert_eq!(tree(&server.data().join("uploads")), [""; 0]);
}

#[test]
fn the_purpose_may_come_after_the_file() {
    let server = Server::new();
    let fields = [("file", Some("a.jsonl"), ROWS), ("purpose", None, b"user_data")];
    assert_eq!(server.form("/v1/files", &fields).ok()["purpose"], "user_data");
}

#[test]
fn forms_that_are_wrong_are_refused_and_leave_nothing() {
    let server = Server::new();
    let purpose = ("purpose", None, &b"fine-tune"[..]);
    let file = ("file", Some("a.jsonl"), ROWS);
    for (fields, param) in [
        (vec![purpose], "file"),
        (vec![file], "purpose"),
        (vec![("purpose", None, b"nonsense"), file], "purpose"),
        (vec![file, ("purpose", None, b"fine-tune-results")], "purpose"),
        (vec![purpose, ("file", None, ROWS)], "file"),
        (vec![purpose, file, file], "file"),
        (vec![purpose, file, ("other", None, b"x")], "other"),
        (vec![purpose, ("expires_after[seconds]", None, b"5"), file], "expires_after[seconds]"),
        (vec![purpose, ("expires_after[seconds]", None, b"soon"), file], "expires_after[seconds]"),
        (vec![purpose, ("expires_after[anchor]", None, b"created_at"), file], "expires_after[seconds]"),
        (vec![("purpose", None, &[b'x'; 100_000]), file], "purpose"),
    ] {
        assert_eq!(server.form("/v1/files", &fields).error(400)["param"], param, "{fields:?}");
    }
    let send = |kind: &str, body: &[u8]| server.send("POST", "/v1/files", &[("Content-Type", kind)], body);
    send("application/json", b"{}").error(415);
    send("multipart/form-data", b"").error(400);
    send("multipart/form-data; boundary=XX", b"").error(400);
    send("multipart/form-data; boundary=XX", b"--XX\r\nContent-Disposition: form-data; name=\"file\"")
        .error(400);
    server.send("POST", "/v1/files", &[], b"").error(415);
    assert_eq!(tree(&server.data().join("blobs")), [""; 0]);
    assert_eq!(tree(&server.data().join("uploads")), [""; 0]);
}

#[test]
fn the_headers_of_a_field_cannot_fill_the_memory() {
    let server = Server::new();
    let mut body = b"--XX\r\nContent-Disposition: ".to_vec();
    body.resize(8 << 20, b'x');
    let kind = [("Content-Type", "multipart/form-data; boundary=XX")];
    let error = server.send("POST", "/v1/files", &kind, &body).error(400);
    assert!(error["message"].as_str().unwrap().contains("headers of a field are too long"), "{error}");
}

#[test]
fn names_and_ids_never_become_paths() {
    let server = Server::new();
    let before = tree(server.data().parent().unwrap()).len();
    for name in ["../../evil.jsonl", "/etc/passwd", "..", "..\\..\\x.csv", &"x".repeat(3000)] {
        let id = server.upload(name, ROWS);
        let shown = server.get(&format!("/v1/files/{id}")).ok();
        let shown = shown["filename"].as_str().unwrap();
        assert!(!shown.contains(['/', '\\', '\0']) && shown != ".." && shown.len() <= 255, "{shown}");
        server.delete(&format!("/v1/files/{id}")).ok();
    }
    assert_eq!(tree(server.data().parent().unwrap()).len(), before);
    for id in ["..", "../../keys", "%2e%2e%2fkeys", "file-..%2F..%2Fkeys", "file-a%00", "file-%FF", "FILE-A"]
    {
        for path in [format!("/v1/files/{id}"), format!("/v1/files/{id}/content")] {
            let status = server.get(&path).status;
            assert!(status == 404 || status == 400, "{path}: {status}");
        }
        assert!(matches!(server.delete(&format!("/v1/files/{id}")).status, 400 | 404 | 405));
    }
}

#[test]
fn equal_contents_are_kept_once_and_go_with_the_last_file() {
    let server = Server::new();
    let first = server.upload("a.jsonl", ROWS);
    let second = server.upload("b.jsonl", ROWS);
    let other = server.upload("c.csv", ROWS);
    let blobs = tree(&server.data().join("blobs"));
    assert_eq!(blobs.len(), 3, "a folder, and the same bytes under two extensions: {blobs:?}");
    use std::os::unix::fs::MetadataExt;
    let inodes: Vec<u64> = blobs[1..].iter().map(|path| fs::metadata(path).unwrap().ino()).collect();
    assert_eq!(inodes[0], inodes[1], "on disk once");
    server.delete(&format!("/v1/files/{first}")).ok();
    assert_eq!(server.get(&format!("/v1/files/{second}/content")).body, ROWS);
    server.delete(&format!("/v1/files/{second}")).ok();
    assert_eq!(server.get(&format!("/v1/files/{other}/content")).body, ROWS);
    server.delete(&format!("/v1/files/{other}")).ok();
    assert_eq!(tree(&server.data().join("blobs")), [""; 0]);
}

#[test]
fn what_children_made_of_a_content_goes_with_it() {
    let server = Server::new();
    let id = server.upload("a.csv", b"text,response\n1,2\n");
    let blob = tree(&server.data().join("blobs")).pop().unwrap();
    let rows = server.data().join("cache/model-garden/rows");
    fs::create_dir_all(&rows).unwrap();
    let owner = garden_data::cached_as(Path::new(&blob)).unwrap();
    let names = [format!("{owner}1-rows.csv.rows"), format!(".{owner}1-rows.csv.rows.garden-index")];
    for path in names.iter().map(|name| rows.join(name)) {
        fs::write(path, "rows").unwrap();
    }
    fs::write(rows.join("0123-1-rows.csv.rows"), "of another").unwrap();
    fs::write(Path::new(&blob).with_file_name(".rows.csv.garden-index"), "index").unwrap();
    server.delete(&format!("/v1/files/{id}")).ok();
    assert_eq!(tree(&server.data().join("blobs")), [""; 0]);
    assert_eq!(tree(&rows), [rows.join("0123-1-rows.csv.rows").display().to_string()]);
}

#[test]
fn what_cannot_be_trained_on_is_told_and_kept() {
    let server = Server::new();
    let id = server.upload("a.jsonl", b"hello\n");
    let file = server.get(&format!("/v1/files/{id}")).ok();
    assert_eq!(
        (&file["status"], &file["status_details"]),
        (&json!("error"), &json!("the first row is not a JSON object"))
    );
    for name in ["rows.tsv", "rows.zip", "rows.jsonl.gz"] {
        let id = server.upload(name, if name.ends_with("gz") { b"\x1f\x8b\x08" } else { b"PK\x03\x04" });
        let file = server.get(&format!("/v1/files/{id}")).ok();
        let details = file["status_details"].as_str().unwrap_or_default();
        assert!(file["status"] == "error" && details.contains("not read here: "), "{name}: {file}");
    }
}

#[test]
fn lists_are_paged_ordered_and_filtered() {
    let server = Server::new();
    let ids: Vec<String> = (0..5).map(|number| server.upload(&format!("{number}.jsonl"), ROWS)).collect();
    server.form("/v1/files", &[("purpose", None, b"vision"), ("file", Some("x.png"), b"png")]).ok();
    let list = |query: &str| {
        let page = server.get(&format!("/v1/files?{query}")).ok();
        let ids: Vec<String> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| file["id"].as_str().unwrap().to_owned())
            .collect();
        (ids, page["has_more"].as_bool().unwrap())
    };
    assert_eq!(list("purpose=fine-tune&order=asc"), (ids.clone(), false));
    assert_eq!(list("purpose=fine-tune&order=asc&limit=2"), (ids[..2].to_vec(), true));
    let after = format!("purpose=fine-tune&order=asc&limit=3&after={}", ids[1]);
    assert_eq!(list(&after), (ids[2..].to_vec(), false));
    assert_eq!(list("purpose=fine-tune&limit=1").0, [ids[4].clone()], "the newest comes first");
    assert_eq!(list("purpose=batch"), (vec![], false));
    for (query, param) in [("limit=0", "limit"), ("limit=10001", "limit"), ("after=file-none", "after")] {
        assert_eq!(server.get(&format!("/v1/files?{query}")).error(400)["param"], param);
    }
    for query in ["limit=many", "order=up", "limit=1&limit=2", "limit="] {
        server.get(&format!("/v1/files?{query}")).error(400);
    }
}

#[test]
fn a_content_is_given_by_ranges_too() {
    let server = Server::new();
    let id = server.upload("a.jsonl", b"{\"a\": 12345}\n");
    let path = format!("/v1/files/{id}/content");
    let range = |range: &str| server.send("GET", &path, &[("Range", range)], b"");
    let part = range("bytes=6-10");
    assert_eq!((part.status, &*part.body), (206, &b"12345"[..]));
    assert_eq!(part.header("content-range"), Some("bytes 6-10/13"));
    assert_eq!(range("bytes=100-").status, 416);
    let head = server.send("HEAD", &path, &[], b"");
    assert_eq!((head.status, head.body.len(), head.header("content-length")), (200, 0, Some("13")));
}

#[test]
fn a_file_larger_than_the_limit_is_refused_and_leaves_nothing() {
    let server = Server::with(|config| config.max_upload = 100_000);
    let fields = [("purpose", None, &b"fine-tune"[..]), ("file", Some("a.jsonl"), &[b'x'; 100_001])];
    server.form("/v1/files", &fields).error(413);
    assert_eq!(tree(&server.data().join("uploads")), [""; 0]);
    server.upload("a.jsonl", &[b' '; 100_000]);
}

#[test]
fn files_outlive_the_server_and_the_index() {
    let server = Server::new();
    let id = server.upload("a.jsonl", ROWS);
    let data = server.data().to_owned();
    let folder = server.stop();
    for broken in [None, Some(&b"this is no database, whatever its name says"[..])] {
        match broken {
            None => fs::remove_file(data.join("garden.sqlite")).unwrap(),
            Some(bytes) => fs::write(data.join("garden.sqlite"), bytes).unwrap(),
        }
        let server = support::start(support::config(&data)).unwrap();
        assert!(server.notes.iter().any(|note| note.contains("made anew")), "{:?}", server.notes);
        assert_eq!(server.get(&format!("/v1/files/{id}/content")).body, ROWS);
        server.stop();
    }
    assert!(data.join("garden.sqlite.broken-1").exists(), "set aside, not deleted");
    drop(folder);
}

#[test]
fn a_deletion_that_was_interrupted_is_ended_at_the_next_start() {
    let server = Server::new();
    let id = server.upload("a.jsonl", ROWS);
    let data = server.data().to_owned();
    let _folder = server.stop();
    fs::remove_file(data.join("files").join(format!("{id}.json"))).unwrap();
    let server = support::start(support::config(&data)).unwrap();
    server.get(&format!("/v1/files/{id}")).error(404);
    assert_eq!(tree(&data.join("blobs")), [""; 0]);
}

#[test]
fn a_list_goes_on_though_its_files_are_deleted_page_by_page() {
    let server = Server::new();
    for number in 0..5 {
        server.upload(&format!("{number}.jsonl"), ROWS);
    }
    let (mut after, mut deleted) = (String::new(), 0);
    loop {
        let page = server.get(&format!("/v1/files?limit=2{after}")).ok();
        for file in page["data"].as_array().unwrap() {
            server.delete(&format!("/v1/files/{}", file["id"].as_str().unwrap())).ok();
            deleted += 1;
        }
        match page["last_id"].as_str() {
            Some(last) => after = format!("&after={last}"),
            None => break,
        }
    }
    assert_eq!(deleted, 5);
}

#[test]
fn what_a_list_cannot_be_narrowed_to_is_refused_by_name() {
    let server = Server::new();
    for (query, param) in [
        ("files?limit=x", "limit"),
        ("files?purpose=nonsense", "purpose"),
        ("files?after=file-none", "after"),
        ("fine_tuning/jobs?limit=x", "limit"),
        ("fine_tuning/jobs?state=nonsense", "state"),
        ("fine_tuning/jobs?metadata=x", "metadata"),
        ("fine_tuning/jobs?after=ftjob-none", "after"),
    ] {
        assert_eq!(server.get(&format!("/v1/{query}")).error(400)["param"], param, "{query}");
    }
    for query in ["files?purpose=fine-tune-results", "fine_tuning/jobs?metadata=null&state=paused"] {
        assert_eq!(server.get(&format!("/v1/{query}")).ok()["data"], json!([]), "{query}");
    }
}
