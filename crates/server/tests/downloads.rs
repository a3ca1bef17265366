//! Models as archives, and clients that do not read them.

mod support;

use std::{fs, io::Write, net::TcpStream};
use support::{Server, answer};

/// A merged model whose download fills no buffer of the system.
fn big_model(server: &Server) {
    let folder = server.data().join("models/big");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
    fs::File::create(folder.join("model.safetensors")).unwrap().set_len(64 << 20).unwrap();
}

fn begin(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    let head = format!(
        "GET /v1/garden/models/merged:big/download HTTP/1.1\r\nConnection: close\r\nHost: {}\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn unread_downloads_do_not_stop_the_server() {
    let server = Server::with(|config| config.max_streams = 40);
    big_model(&server);
    let unread: Vec<TcpStream> = (0..40).map(|_| begin(&server)).collect();
    // Every download has begun.
    for stream in &unread {
        stream.peek(&mut [0]).unwrap();
    }
    server.get("/v1/files").ok();
    server.get("/v1/models").ok();
    answer(begin(&server)).error(429);
    drop(unread);
}

#[test]
fn a_download_is_whole() {
    let server = Server::new();
    big_model(&server);
    let answer = answer(begin(&server));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    let mut archive = tar::Archive::new(&answer.body[..]);
    let sizes: Vec<(String, u64)> = (archive.entries().unwrap().map(Result::unwrap))
        .map(|entry| (entry.path().unwrap().display().to_string(), entry.size()))
        .collect();
    assert_eq!(
        sizes,
        [("merged-big/config.json".into(), 2), ("merged-big/model.safetensors".into(), 64 << 20)]
    );
}
