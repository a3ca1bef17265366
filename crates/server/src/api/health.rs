//! `GET /health`: whether the server is well, for people, load balancers and scripts.

use super::extract::Json;
use crate::{app::App, guard::Client};
use axum::{Extension, extract::State};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(health))
}

/// How the server is.
#[derive(Serialize, ToSchema)]
struct Health {
    status: Status,
    /// The program's version.
    version: &'static str,
    /// Seconds since the start.
    uptime_seconds: u64,
    /// Bytes that jobs and models in use may take together; only for those who may ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    memory_budget: Option<Memory>,
    /// How many jobs are in each state; only for those who may ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    jobs: Option<BTreeMap<String, u32>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = HealthStatus)]
enum Status {
    Ok,
    /// The server answers, but its index or whoever looks after the jobs does not.
    Degraded,
}

#[derive(Serialize, ToSchema)]
struct Memory {
    total_bytes: u64,
    free_bytes: u64,
}

/// Whether the server is well.
#[utoipa::path(get, path = "/health", tag = "Server", responses((status = 200, body = Health)))]
async fn health(State(app): State<App>, client: Option<Extension<Client>>) -> Json<Health> {
    let (status, jobs) = match app.store.jobs_by_state().await {
        Ok(jobs) if app.jobs.is_alive() => (Status::Ok, jobs),
        Ok(jobs) => (Status::Degraded, jobs),
        Err(_) => (Status::Degraded, Vec::new()),
    };
    let memory = Memory { total_bytes: app.budget.total(), free_bytes: app.budget.free() };
    let may_ask = client.is_some();
    Json(Health {
        status,
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: app.started.elapsed().as_secs(),
        memory_budget: may_ask.then_some(memory),
        jobs: may_ask.then(|| jobs.into_iter().collect()),
    })
}
