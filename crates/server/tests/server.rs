//! Health, figures and the document of a running server.

mod support;

use serde_json::Value;
use support::Server;

#[test]
fn health_tells_version_budget_and_jobs() {
    let server = Server::with(|config| config.memory_budget = Some(5_000_000_000));
    let health = server.get("/health").ok();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(health["memory_budget"]["free_bytes"], 5_000_000_000_u64);
    assert!(health["jobs"].is_object());
}

#[test]
fn figures_are_as_prometheus_reads_them() {
    let server = Server::new();
    server.get("/v1/files/file-a").error(404);
    server.get("/nothing").error(404);
    let answer = server.get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(answer.body.clone()).unwrap();
    for line in [
        "model_garden_requests_total{method=\"GET\",route=\"/v1/files/{file_id}\",status=\"404\"} 1",
        "model_garden_requests_total{method=\"GET\",route=\"other\",status=\"404\"} 1",
        "model_garden_index_up 1",
        "model_garden_streams 0",
        "model_garden_requests_under_way 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && !name.is_empty(), "{line}");
        let family = name.split('{').next().unwrap();
        assert!(text.contains(&format!("# TYPE {family} ")), "{line}");
    }
    assert!(text.contains("process_resident_memory_bytes "));
}

#[test]
fn the_document_and_its_page_come_from_the_server() {
    let server = Server::new();
    let document = server.get("/openapi.json").ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for path in ["/v1/files", "/v1/uploads/{upload_id}/parts", "/health", "/metrics"] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let form = &document["components"]["schemas"]["FileForm"];
    assert_eq!(form["required"], serde_json::json!(["file", "purpose"]));
    assert_eq!(form["properties"]["file"]["format"], "binary");
    assert!(form["properties"]["expires_after[seconds]"].is_object(), "{form}");
    let page = server.get("/docs");
    let html = String::from_utf8(page.body.clone()).unwrap();
    assert!(page.header("content-security-policy").unwrap().contains("script-src 'self'"));
    for (path, kind) in [("/docs/docs.js", "text/javascript"), ("/docs/docs.css", "text/css")] {
        assert!(html.contains(path));
        let asset = server.get(path);
        assert!(asset.status == 200 && asset.header("content-type").unwrap().starts_with(kind));
    }
}

/// Every answer of a route must be one that the document has.
#[test]
fn a_wrong_method_is_refused_on_every_route() {
    let server = Server::new();
    let document = server.get("/openapi.json").ok();
    for (path, item) in document["paths"].as_object().unwrap() {
        let known: Vec<&String> = item.as_object().unwrap().keys().collect();
        for method in ["PUT", "PATCH", "DELETE", "POST", "TRACE"] {
            if !known.iter().any(|name| name.eq_ignore_ascii_case(method)) {
                let answer = server.send(method, &path.replace(['{', '}'], ""), &[], b"");
                answer.error(405);
                assert!(answer.header("allow").is_some(), "{method} {path}");
            }
        }
    }
    let _: Value = document;
}
