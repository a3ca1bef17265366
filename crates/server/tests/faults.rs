//! What goes wrong around a server: a full disk, a locked database, clients that leave, and bodies that would not fit
//! the memory.

mod support;

use serde_json::json;
use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};
use support::Server;

const ROWS: &[u8] = b"{\"messages\": []}\n";

/// A small file system of its own; `None`, with a word about it, where there may be none.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(folder)),
            other => {
                eprintln!("SKIPPED: no small disk can be mounted here: {other:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_full_disk_is_told_and_the_server_goes_on() {
    let Some(disk) = SmallDisk::mount("8m") else { return };
    let server = support::start(support::config(&disk.path().join("data"))).unwrap();
    let kept = server.upload("a.jsonl", ROWS);
    let large = vec![b' '; 20 << 20];
    let fields = [("purpose", None, &b"fine-tune"[..]), ("file", Some("large.jsonl"), &large)];
    let answer = server.form("/v1/files", &fields);
    assert_eq!(answer.error(507)["code"], "disk_full");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!((count(&server.data().join("blobs")), count(&server.data().join("uploads"))), (1, 0));

    // To the last byte: not even a record can be written.
    let mut filler = fs::File::create(disk.path().join("filler")).unwrap();
    while filler.write(&[0; 4096]).is_ok() {}
    drop(filler);
    let fields = [("purpose", None, &b"fine-tune"[..]), ("file", Some("b.jsonl"), &b"{\"b\": 1}\n"[..])];
    assert_eq!(server.form("/v1/files", &fields).error(507)["code"], "disk_full");
    let upload = json!({"bytes": 9, "filename": "a", "mime_type": "b", "purpose": "fine-tune"});
    server.post("/v1/uploads", &upload).error(507);
    assert_eq!((count(&server.data().join("blobs")), count(&server.data().join("files"))), (1, 1));
    assert_eq!(server.get("/v1/files").ok()["data"].as_array().unwrap().len(), 1, "reading goes on");
    assert_eq!(server.get(&format!("/v1/files/{kept}/content")).body, ROWS);

    fs::remove_file(disk.path().join("filler")).unwrap();
    server.upload("b.jsonl", b"{\"b\": 1}\n");
    server.delete(&format!("/v1/files/{kept}")).ok();
}

#[test]
fn a_locked_database_delays_writes_and_nothing_else() {
    let server = Server::new();
    let kept = server.upload("a.jsonl", ROWS);
    let other = rusqlite::Connection::open(server.data().join("garden.sqlite")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    thread::scope(|scope| {
        let upload = scope.spawn(|| server.upload("b.jsonl", b"{\"b\": 1}\n"));
        server.get(&format!("/v1/files/{kept}")).ok();
        assert_eq!(server.get("/health").ok()["status"], "ok");
        thread::sleep(Duration::from_millis(300));
        assert!(!upload.is_finished());
        other.execute_batch("ROLLBACK").unwrap();
        let id = upload.join().unwrap();
        server.get(&format!("/v1/files/{id}")).ok();
    });
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = server.form("/v1/files", &[("purpose", None, b"batch"), ("file", Some("c"), b"c")]);
    assert_eq!(answer.error(429)["code"], "index_locked");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(count(&server.data().join("files")), 2, "nothing is half done");
    assert_eq!(count(&server.data().join("blobs")), 2);
    other.execute_batch("ROLLBACK").unwrap();
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing() {
    let server = Server::new();
    let mut stream = server.connect();
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nHost: {}\r\nContent-Type: multipart/form-data; boundary=XX\r\n\
         Content-Length: 100000000\r\n\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b'x'; 2 << 20]).unwrap();
    let uploads = server.data().join("uploads");
    while count(&uploads) == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    while count(&uploads) > 0 {
        thread::sleep(Duration::from_millis(5));
    }
    server.get("/health").ok();
}

#[test]
fn the_server_ends_though_a_client_holds_the_line() {
    let server = Server::new();
    let mut idle = server.connect();
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut some = [0; 64];
    assert!(idle.read(&mut some).unwrap() > 0);
    let _half = server.connect();
    server.stop();
}
