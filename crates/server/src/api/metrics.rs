//! `GET /metrics`: the server's figures, as Prometheus reads them.

use crate::app::App;
use axum::{
    extract::State,
    http::{HeaderName, header},
};
use std::fmt::{Display, Write};
use utoipa_axum::{router::OpenApiRouter, routes};

const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(metrics))
}

/// Gives the server's figures to Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "Server",
    responses((status = 200, description = "Figures, a line each.", body = String, content_type = "text/plain")),
)]
async fn metrics(State(app): State<App>) -> ([(HeaderName, &'static str); 1], String) {
    let jobs = app.store.jobs_by_state().await;
    let mut page = Page::default();
    page.gauge(
        "model_garden_info",
        "The program.",
        [(labels(&[("version", &env!("CARGO_PKG_VERSION"))]), 1)],
    );
    page.gauge(
        "model_garden_uptime_seconds",
        "Time since the start.",
        plain(app.started.elapsed().as_secs()),
    );
    let budget = &app.budget;
    page.gauge("model_garden_memory_budget_bytes", "What jobs and models share.", plain(budget.total()));
    page.gauge("model_garden_memory_free_bytes", "What of it nobody has reserved.", plain(budget.free()));
    page.gauge("model_garden_index_up", "Whether the index answers.", plain(u8::from(jobs.is_ok())));
    let jobs = jobs.unwrap_or_default();
    let by_state = jobs.into_iter().map(|(state, count)| (labels(&[("state", &state)]), count));
    page.gauge("model_garden_jobs", "Jobs by their state.", by_state);
    page.gauge("model_garden_streams", "Answers that stream now.", plain(app.streams.count()));
    let under_way = app.counters.under_way();
    page.gauge("model_garden_requests_under_way", "Requests whose answer has not begun.", plain(under_way));
    let requests: Vec<_> = app
        .counters
        .requests()
        .into_iter()
        .map(|(route, answers)| {
            let status = route.status;
            (labels(&[("method", &route.method), ("route", &route.path), ("status", &status)]), answers)
        })
        .collect();
    let counts = requests.iter().map(|(labels, answers)| (labels.clone(), answers.count));
    page.counter("model_garden_requests_total", "Requests that were answered.", counts);
    let times = requests.iter().map(|(labels, answers)| (labels.clone(), answers.time.as_secs_f64()));
    page.counter("model_garden_request_seconds_total", "Time until these answers began.", times);
    process(&mut page);
    ([(header::CONTENT_TYPE, KIND)], page.0)
}

/// The figures that every program gives under the same names.
fn process(page: &mut Page) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let bytes = |name| field(name).map(|kilobytes| (String::new(), kilobytes * 1024));
    page.gauge("process_resident_memory_bytes", "Memory of the server itself.", bytes("VmRSS"));
    page.gauge("process_resident_memory_peak_bytes", "The most it has had.", bytes("VmHWM"));
    page.gauge("process_threads", "Threads.", field("Threads").map(|count| (String::new(), count)));
    let open = std::fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
    page.gauge("process_open_fds", "Open files and connections.", open.map(|count| (String::new(), count)));
}

fn plain<V>(value: V) -> [(String, V); 1] {
    [(String::new(), value)]
}

/// Labels, escaped as the format wants it.
fn labels(pairs: &[(&str, &dyn Display)]) -> String {
    let escape = |value: &dyn Display| {
        value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    };
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(*value))).collect();
    format!("{{{}}}", pairs.join(","))
}

/// The page in the making.
#[derive(Default)]
struct Page(String);

impl Page {
    fn gauge<V: Display>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, V)>) {
        self.family(name, "gauge", help, values);
    }

    fn counter<V: Display>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, V)>) {
        self.family(name, "counter", help, values);
    }

    fn family<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        // Writing to a string never fails.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(labels(&[("a", &"x\"y\\z\n"), ("b", &1)]), "{a=\"x\\\"y\\\\z\\n\",b=\"1\"}");
    }
}
