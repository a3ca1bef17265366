//! Frames of pages, rendered from templates in the program.
//!
//! Takes the name of a page and gives its HTML. Everything that a template is given is escaped; the guard adds the
//! policy that keeps a browser to this server.

use super::assets;
use axum::{
    http::{StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use minijinja::{AutoEscape, Environment, Value, context};
use std::sync::LazyLock;

/// The pages that the navigation names.
const ENTRIES: [Entry; 6] = [
    Entry { page: "jobs", path: "/", name: "Jobs" },
    Entry { page: "datasets", path: "/datasets", name: "Datasets" },
    Entry { page: "models", path: "/models", name: "Models" },
    Entry { page: "compare", path: "/compare", name: "Compare" },
    Entry { page: "memory", path: "/memory", name: "Memory" },
    Entry { page: "machine", path: "/machine", name: "Machine" },
];

struct Entry {
    page: &'static str,
    path: &'static str,
    name: &'static str,
}

/// What a template is given.
pub(super) struct Frame {
    /// The page's name: that of its template and of its script.
    pub page: &'static str,
    pub title: &'static str,
    /// The page that the navigation marks.
    pub section: &'static str,
    /// The job that a page is about.
    pub id: String,
    /// Whether there is somebody to leave as.
    pub keys: bool,
    /// Why a key was not taken.
    pub wrong: Option<&'static str>,
    /// Where to go after the login.
    pub next: String,
}

impl Frame {
    pub(super) fn of(page: &'static str) -> Self {
        let (title, section) = match page {
            "new_job" => ("New job", "jobs"),
            "job" => ("Job", "jobs"),
            "login" => ("Log in", ""),
            "missing" => ("No such page", ""),
            other => {
                ENTRIES.iter().find(|entry| entry.page == other).map_or(("", ""), |entry| (entry.name, other))
            }
        };
        Self { page, title, section, id: String::new(), keys: false, wrong: None, next: String::new() }
    }

    fn context(&self) -> Value {
        let Self { page, title, section, id, keys, wrong, next } = self;
        let entry =
            |Entry { page, path, name }: &Entry| context! { page => *page, path => *path, name => *name };
        let entries: Vec<Value> = ENTRIES.iter().map(entry).collect();
        let version = env!("CARGO_PKG_VERSION");
        context! {
            page => *page, title => *title, section => *section, id => id.as_str(), keys => *keys,
            wrong => *wrong, next => next.as_str(), entries, version,
        }
    }
}

/// The templates, read once.
static TEMPLATES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_loader(|name| Ok(assets::template(name)));
    environment
});

/// A page as an answer.
pub(super) fn render(status: StatusCode, frame: &Frame) -> Response {
    let name = format!("{}.html", frame.page);
    let html = TEMPLATES.get_template(&name).and_then(|template| template.render(frame.context()));
    match html {
        // With the guard's own policy a browser would not say which site a form of ours comes from.
        Ok(html) => (status, [(header::REFERRER_POLICY, "same-origin")], Html(html)).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the page {name} is broken: {error}")).into_response()
        }
    }
}
