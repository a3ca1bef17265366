//! Uploads in parts over HTTP.

mod support;

use serde_json::{Value, json};
use std::fs;
use support::{Answer, Server};

fn begin(server: &Server, bytes: usize) -> String {
    let body =
        json!({"bytes": bytes, "filename": "rows.jsonl", "mime_type": "text/plain", "purpose": "fine-tune"});
    let upload = server.post("/v1/uploads", &body).ok();
    assert_eq!((&upload["object"], &upload["status"]), (&json!("upload"), &json!("pending")));
    assert_eq!(upload["expires_at"].as_i64().unwrap() - upload["created_at"].as_i64().unwrap(), 3600);
    upload["id"].as_str().unwrap().to_owned()
}

fn send_part(server: &Server, upload: &str, bytes: &[u8]) -> Answer {
    server.form(&format!("/v1/uploads/{upload}/parts"), &[("data", Some("part"), bytes)])
}

fn part(server: &Server, upload: &str, bytes: &[u8]) -> String {
    let part = send_part(server, upload, bytes).ok();
    assert_eq!((&part["object"], &part["upload_id"]), (&json!("upload.part"), &json!(upload)));
    part["id"].as_str().unwrap().to_owned()
}

fn complete(server: &Server, upload: &str, body: &Value) -> Answer {
    server.post(&format!("/v1/uploads/{upload}/complete"), body)
}

#[test]
fn parts_are_joined_in_the_order_that_is_asked_for() {
    let server = Server::new();
    let upload = begin(&server, 9);
    let second = part(&server, &upload, b": 12}");
    let lost = part(&server, &upload, b"{\"a\"");
    let first = part(&server, &upload, b"{\"a\"");
    let body = json!({"part_ids": [first, second], "md5": "d41d8cd98f00b204e9800998ecf8427e"});
    let error = complete(&server, &upload, &body).error(400);
    assert_eq!(error["param"], "md5");
    let right = "E686F2DF1EB5CB6C3F0293D32A1488E9";
    let done = complete(&server, &upload, &json!({"part_ids": [first, second], "md5": right})).ok();
    assert_eq!((&done["status"], &done["file"]["status"]), (&json!("completed"), &json!("processed")));
    assert_eq!(done["file"]["bytes"], 9);
    let file = done["file"]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/files/{file}/content")).body, b"{\"a\": 12}");
    assert_eq!(complete(&server, &upload, &json!({"part_ids": [lost]})).ok(), done, "again, the same");
    send_part(&server, &upload, b"x").error(400);
    server.post(&format!("/v1/uploads/{upload}/cancel"), &json!({})).error(400);
    let left: Vec<_> = fs::read_dir(server.data().join("uploads").join(&upload)).unwrap().collect();
    assert_eq!(left.len(), 1, "only the record");
}

#[test]
fn what_does_not_add_up_is_refused_and_may_be_mended() {
    let server = Server::new();
    let upload = begin(&server, 4);
    let two = part(&server, &upload, b"{}");
    let three = part(&server, &upload, b"\n\n\n");
    let end = part(&server, &upload, b"\n\n");
    for parts in [
        json!([two]),
        json!([two, three]),
        json!([two, two]),
        json!([two, "part_x"]),
        json!([]),
        json!(["../upload.json"]),
    ] {
        assert_eq!(
            complete(&server, &upload, &json!({"part_ids": parts})).error(400)["param"],
            "part_ids",
            "{parts}"
        );
    }
    complete(&server, &upload, &json!({"part_ids": [two, end], "other": 1})).error(400);
    complete(&server, &upload, &json!({"part_ids": [two, end]})).ok();
}

#[test]
fn a_cancelled_upload_takes_nothing_more() {
    let server = Server::new();
    let upload = begin(&server, 2);
    let only = part(&server, &upload, b"{}");
    let cancel = format!("/v1/uploads/{upload}/cancel");
    assert_eq!(server.send("POST", &cancel, &[], b"").ok()["status"], "cancelled");
    assert_eq!(server.send("POST", &cancel, &[], b"").ok()["status"], "cancelled");
    send_part(&server, &upload, b"{}").error(400);
    complete(&server, &upload, &json!({"part_ids": [only]})).error(400);
}

#[test]
fn wrong_requests_are_refused() {
    let server = Server::new();
    let good = json!({"bytes": 9, "filename": "a", "mime_type": "b", "purpose": "fine-tune"});
    for (field, value) in [
        ("bytes", json!(0)),
        ("bytes", json!(-1)),
        ("bytes", json!(9_u64 << 30)),
        ("purpose", json!("nonsense")),
        ("filename", json!(null)),
        ("expires_after", json!({"anchor": "created_at", "seconds": 1})),
        ("expires_after", json!({"anchor": "now", "seconds": 3600})),
        ("other", json!(1)),
    ] {
        let mut body = good.clone();
        body[field] = value;
        server.post("/v1/uploads", &body).error(400);
    }
    server.send("POST", "/v1/uploads", &[("Content-Type", "application/json")], b"{").error(400);
    server.send("POST", "/v1/uploads", &[("Content-Type", "text/plain")], b"{}").error(415);
    for id in ["upload_none", "..%2F..", "upload_..%2Fx", "x"] {
        server.post(&format!("/v1/uploads/{id}/complete"), &json!({"part_ids": ["part_a"]})).error(404);
        server.form(&format!("/v1/uploads/{id}/parts"), &[("data", Some("x"), b"x")]).error(404);
        server.post(&format!("/v1/uploads/{id}/cancel"), &json!({})).error(404);
    }
    let upload = begin(&server, 9);
    server.form(&format!("/v1/uploads/{upload}/parts"), &[]).error(400);
    server.form(&format!("/v1/uploads/{upload}/parts"), &[("file", Some("x"), b"x")]).error(400);
}

#[test]
fn parts_are_limited() {
    let server = Server::new();
    let upload = begin(&server, 65 << 20);
    send_part(&server, &upload, &vec![b'x'; (64 << 20) + 1]).error(413);
    part(&server, &upload, &vec![b'x'; 64 << 20]);
    let small = begin(&server, 1);
    part(&server, &small, &vec![b'x'; 64 << 20]);
    send_part(&server, &small, b"xxx").error(400);
}

#[test]
fn an_upload_expires_even_across_a_restart() {
    let server = Server::new();
    let upload = begin(&server, 2);
    let only = part(&server, &upload, b"{}");
    let data = server.data().to_owned();
    let _folder = server.stop();
    // An hour passes.
    let path = data.join("uploads").join(&upload).join("upload.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["expires_at"] = json!(record["expires_at"].as_i64().unwrap() - 3601);
    fs::write(&path, record.to_string()).unwrap();
    fs::write(data.join("uploads/incoming-left"), "half a body").unwrap();
    let server = support::start(support::config(&data)).unwrap();
    assert!(!data.join("uploads/incoming-left").exists());
    let error = complete(&server, &upload, &json!({"part_ids": [only]})).error(400);
    assert!(error["message"].as_str().unwrap().ends_with("is expired"), "{error}");
    let gone = || !data.join("uploads").join(&upload).join(&only).exists();
    while !gone() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
