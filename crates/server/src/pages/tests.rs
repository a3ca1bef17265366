//! What holds for every page, without a browser.

use super::{frame::Frame, *};
use axum::{body::to_bytes, http::header};

const PAGES: [&str; 10] =
    ["jobs", "new_job", "job", "compare", "datasets", "models", "memory", "machine", "login", "missing"];

async fn html(page: &'static str) -> String {
    let frame = Frame { id: "ftjob-<b>".into(), next: "\"><script>".into(), ..Frame::of(page) };
    let response = render(StatusCode::OK, &frame);
    assert_eq!(response.status(), StatusCode::OK, "{page}");
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn pages_have_landmarks_and_nothing_that_their_policy_refuses() {
    for page in PAGES {
        let html = html(page).await;
        for part in ["<main id=\"main\"", "class=\"skip\"", "<h1", "aria-live", "lang=\"en\""] {
            assert!(html.contains(part), "{page} has no {part}");
        }
        for refused in [" style=", "<style", " onclick=", "http://", "https://", "<b>", "\"><script>"] {
            assert!(!html.contains(refused), "{page} has {refused}");
        }
        for script in html.split("<script").skip(1) {
            assert!(script.contains("src=\"/assets/"), "{page}: {script}");
        }
    }
}

#[tokio::test]
async fn every_file_that_a_page_names_is_there() {
    for page in PAGES {
        let html = html(page).await;
        let named = html.split(['"']).filter_map(|part| part.strip_prefix("/assets/"));
        for path in named {
            let response = assets::asset(Path(path.to_owned()), Default::default()).await;
            assert_eq!(response.status(), StatusCode::OK, "{page}: {path}");
            let mut asked = axum::http::HeaderMap::new();
            asked.insert(header::IF_NONE_MATCH, response.headers()[header::ETAG].clone());
            let again = assets::asset(Path(path.to_owned()), asked).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        }
    }
}

#[tokio::test]
async fn templates_and_paths_outside_are_no_assets() {
    for path in ["templates/base.html", "../src/lib.rs", "uplot/README.md", "js", ""] {
        let response = assets::asset(Path(path.to_owned()), Default::default()).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
}
