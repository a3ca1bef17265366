//! A large upload does not show in the server's memory. Alone in its file: the peak is the whole process's.

mod support;

use std::{
    io::{self, Read, Write},
    thread,
};
use support::{Server, answer};

const BYTES: u64 = 300 << 20;

fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn an_upload_of_300_mib_takes_no_memory() {
    let server = Server::new();
    // The first one warms the server up.
    server.upload("small.jsonl", &[b' '; 64 << 10]);
    let before = peak();
    let front =
        b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{\"a\": 1}\n";
    let back = b"\r\n--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--XX--\r\n";
    let mut stream = server.connect();
    let length = front.len() as u64 + BYTES + back.len() as u64;
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\
         Content-Type: multipart/form-data; boundary=XX\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut body = front.chain(io::repeat(b'\n').take(BYTES)).chain(&back[..]);
    io::copy(&mut body, &mut stream).unwrap();
    let file = answer(stream).ok();
    assert_eq!(file["bytes"], BYTES + 9);
    let up = peak() - before;

    let mut stream = server.connect();
    let id = file["id"].as_str().unwrap();
    write!(
        stream,
        "GET /v1/files/{id}/content HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        server.address
    )
    .unwrap();
    let got =
        thread::spawn(move || io::copy(&mut stream.take(u64::MAX), &mut io::sink()).unwrap()).join().unwrap();
    assert!(got > BYTES);
    let down = peak() - before;
    println!("the peak rose by {up} bytes while sending and by {down} in all");
    assert!(down < 16 << 20, "the peak rose by {up} bytes, then {down}");
}
