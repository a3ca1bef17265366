//! Who is let in: keys, sessions, Host and Origin, limits, and what every answer carries.

mod support;

use garden_server::{ServeError, keys};
use serde_json::json;
use std::{
    io::{Read, Write},
    net::Ipv4Addr,
};
use support::{Answer, Server, answer, config, start};

/// Asks with a key.
fn with_key(server: &Server, token: &str) -> Answer {
    server.send("GET", "/v1/files", &[("Authorization", &format!("Bearer {token}"))], b"")
}

#[test]
fn an_address_that_others_reach_needs_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut everywhere = config(folder.path());
    everywhere.host = Ipv4Addr::UNSPECIFIED.into();
    let error = start(everywhere.clone()).err().unwrap();
    assert!(matches!(error, ServeError::Keys(keys::KeysError::Needed(_))), "{error}");
    let token = keys::add(folder.path(), "anna").unwrap();
    let server = start(everywhere).unwrap();
    let host = format!("127.0.0.1:{}", server.address.port());
    let ask = |headers: &[(&str, &str)]| {
        server.send("GET", "/v1/files", &[&[("Host", &*host)], headers].concat(), b"")
    };
    ask(&[]).error(401);
    ask(&[("Authorization", &format!("Bearer {token}"))]).ok();
}

#[test]
fn a_key_is_asked_for_everywhere_until_it_is_revoked() {
    let server = Server::new();
    server.get("/v1/files").ok();
    let token = keys::add(server.data(), "anna").unwrap();
    let other = keys::add(server.data(), "berta").unwrap();
    let error = server.get("/v1/files").error(401);
    assert_eq!((&error["type"], &error["code"]), (&json!("authentication_error"), &json!("invalid_api_key")));
    with_key(&server, "mg-wrong").error(401);
    with_key(&server, "").error(401);
    server.send("GET", "/v1/files", &[("Authorization", &format!("Basic {token}"))], b"").error(401);
    with_key(&server, &token).ok();
    for (method, path) in
        [("POST", "/v1/files"), ("GET", "/metrics"), ("POST", "/v1/uploads"), ("GET", "/nothing")]
    {
        server.send(method, path, &[], b"").error(401);
    }
    let health = server.get("/health").ok();
    assert_eq!((&health["status"], health.get("jobs")), (&json!("ok"), None), "a balancer has no key");
    keys::revoke(server.data(), "anna").unwrap();
    with_key(&server, &token).error(401);
    with_key(&server, &other).ok();
    keys::revoke(server.data(), "berta").unwrap();
    server.get("/v1/files").error(401);
}

#[test]
fn people_log_in_with_a_key_and_out_again() {
    let server = Server::new();
    let token = keys::add(server.data(), "anna").unwrap();
    let page = server.send("GET", "/jobs/new?a=1", &[("Accept", "text/html")], b"");
    assert_eq!((page.status, page.header("location")), (303, Some("/login?next=/jobs/new%3Fa%3D1")));
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let login = |key: &str, next: &str| {
        server.send("POST", "/login", &form, format!("key={key}&next={next}").as_bytes())
    };
    let wrong = login("mg-wrong", "/jobs");
    assert_eq!((wrong.status, wrong.header("location")), (303, Some("/login?wrong=1&next=/jobs")));
    assert_eq!(wrong.header("set-cookie"), None);
    assert_eq!(login(&token, "//evil.example").header("location"), Some("/"));
    let good = login(&token, "/jobs/new");
    assert_eq!((good.status, good.header("location")), (303, Some("/jobs/new")));
    let cookie = good.header("set-cookie").unwrap();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let ask = || server.send("GET", "/v1/files", &[("Cookie", &format!("a=b; {cookie}"))], b"");
    ask().ok();
    server.send("POST", "/logout", &[("Cookie", cookie)], b"");
    ask().error(401);
    let again = login(&token, "/");
    let cookie = again.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    server.send("GET", "/v1/files", &[("Cookie", &cookie)], b"").ok();
    keys::revoke(server.data(), "anna").unwrap();
    server.send("GET", "/v1/files", &[("Cookie", &cookie)], b"").error(401);
    server.send("POST", "/login", &form, b"nonsense").error(422);
    server.send("POST", "/login", &[("Content-Type", "text/plain")], b"x").error(415);
}

#[test]
fn other_names_and_other_sites_are_refused() {
    let server = Server::with(|config| config.allowed_hosts.push("garden.example.org".to_owned()));
    let status =
        |method: &str, headers: &[(&str, &str)]| server.send(method, "/v1/files/x", headers, b"").status;
    assert_eq!(status("GET", &[("Host", "evil.example")]), 403);
    assert_eq!(status("GET", &[("Host", "garden.example.org")]), 404);
    assert_eq!(status("DELETE", &[("Origin", "http://evil.example")]), 403);
    assert_eq!(status("DELETE", &[("Sec-Fetch-Site", "cross-site")]), 403);
    assert_eq!(status("DELETE", &[("Origin", &format!("http://{}", server.address))]), 404);
    let error = server.send("GET", "/", &[("Host", "evil.example")], b"").error(403);
    assert_eq!(error["type"], "permission_error");
    let options = server.send("OPTIONS", "/v1/files", &[("Origin", "http://evil.example")], b"");
    assert!(!options.head.to_ascii_lowercase().contains("access-control"), "no CORS: {}", options.head);
}

#[test]
fn a_client_that_asks_too_often_is_told_when_to_come_again() {
    let server = Server::with(|config| config.rate_limit = 1);
    let answers: Vec<Answer> = (0..12).map(|_| server.get("/health")).collect();
    assert!(answers[..10].iter().all(|answer| answer.status == 200));
    let last = answers.last().unwrap();
    assert_eq!(last.error(429)["code"], "rate_limit_exceeded");
    assert_eq!(last.header("retry-after"), Some("1"));
    assert!(last.header("x-request-id").is_some());
}

#[test]
fn every_answer_has_an_id_and_is_kept_from_harm() {
    let server = Server::new();
    let answers = [server.get("/health"), server.get("/nothing"), server.send("PUT", "/health", &[], b"")];
    for answer in &answers {
        assert!(answer.header("x-request-id").unwrap().starts_with("req_"));
        assert!(answer.header("openai-processing-ms").unwrap().parse::<u64>().is_ok());
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"));
        assert!(answer.header("content-security-policy").is_some());
    }
    assert_ne!(answers[0].header("x-request-id"), answers[1].header("x-request-id"));
    assert_eq!(answers[1].error(404)["code"], "not_found");
    answers[2].error(405);
    assert_eq!(answers[2].header("allow"), Some("GET,HEAD"));
}

#[test]
fn bodies_are_limited() {
    let server = Server::new();
    let kind = [("Content-Type", "application/json")];
    let large = format!("{{\"filename\": \"{}\"}}", "x".repeat(3 << 20));
    server.send("POST", "/v1/uploads", &kind, large.as_bytes()).error(413);
}

#[test]
fn encoded_slashes_stay_in_their_segment() {
    let server = Server::new();
    let error = server.get("/v1/files/ft:Qwen%2FQwen2.5-VL:a%20b").error(404);
    assert_eq!(error["message"], "no such file: ft:Qwen/Qwen2.5-VL:a b");
    let error = server.get("/v1/files/ft:Qwen/Qwen2.5-VL").error(404);
    assert_eq!(error["message"], "no such route: /v1/files/ft:Qwen/Qwen2.5-VL");
}

#[test]
fn lines_that_are_no_http_do_no_harm() {
    let server = Server::new();
    for bytes in [&b"\x16\x03\x01\x02\x00"[..], b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""] {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let mut stream = server.connect();
    let head = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx: {}\r\n\r\n",
        "y".repeat(1_000_000)
    );
    let _ = stream.write_all(head.as_bytes());
    assert_eq!(answer(stream).status, 431);
    let mut stream = server.connect();
    stream
        .write_all(b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert_eq!(answer(stream).status, 403, "an absolute address counts too");
    server.get("/health").ok();
}

#[test]
fn a_second_server_of_a_folder_is_refused() {
    let server = Server::new();
    assert!(matches!(start(config(server.data())).err(), Some(ServeError::DataDir(_))));
    let mut taken = config(&server.data().join("other"));
    taken.port = server.address.port();
    assert!(matches!(start(taken).err(), Some(ServeError::Bind { .. })));
}

#[test]
fn a_body_of_countless_values_is_refused_before_it_is_read() {
    let server = Server::new();
    let body = format!("{{\"model\": \"m\", \"x\": [{}]}}", "[],".repeat(600_000));
    for path in ["/v1/fine_tuning/jobs", "/v1/garden/plan", "/v1/garden/storage/clean"] {
        let kind = [("Content-Type", "application/json")];
        let error = server.send("POST", path, &kind, body.as_bytes()).error(400);
        assert_eq!(error["message"], "the body has more than 10000 values", "{path}");
    }
}
