//! `GET /v1/garden/machine` and `/fit`: what the machine has, and which models could be trained on it.

use crate::{
    api::{error::ApiError, extract::Json},
    app::App,
    helper::{self, Bounds},
};
use axum::extract::State;
use garden_memory::probe::{GpuDevice, gpu_devices, memory_available, memory_ceiling};
use serde::Serialize;
use serde_json::Value;
use std::{ffi::OsString, fs, path::Path, thread, time::Duration};
use tokio::sync::OnceCell;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The shapes that are planned, and the bits of their frozen weights.
const SHAPES: [&str; 6] = ["small", "medium", "3b", "7b", "32b", "72b"];
const BITS: [u8; 2] = [4, 16];
/// The run that is planned: one image and a question a row, one row a batch.
const TOKENS: u64 = 1024;
const IMAGE_TOKENS: u64 = 512;
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(60), memory: 1 << 30, output: 1 << 20 };

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(machine)).routes(routes!(fit))
}

/// What the machine has.
#[derive(Serialize, ToSchema)]
struct Machine {
    cores: usize,
    /// Mean number of processes that wanted to run in the last minute.
    load: Option<f64>,
    memory: Amount,
    disk: Amount,
    /// What jobs and models in use share.
    budget: Amount,
    /// Its graphics processors. Training runs on the processor's cores.
    gpus: Vec<GpuObject>,
    /// Bytes of the server's own process.
    server_bytes: Option<u64>,
    uptime_seconds: u64,
    max_jobs: usize,
}

/// A graphics processor.
#[derive(Serialize, ToSchema)]
#[schema(as = Gpu)]
struct GpuObject {
    name: String,
    memory: Amount,
}

impl From<GpuDevice> for GpuObject {
    fn from(device: GpuDevice) -> Self {
        let memory = Amount { total_bytes: Some(device.total), free_bytes: Some(device.free) };
        Self { name: device.name, memory }
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct Amount {
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
}

/// Shows what the machine has and what is free.
#[utoipa::path(get, path = "/v1/garden/machine", tag = "Garden", responses((status = 200, body = Machine)))]
async fn machine(State(app): State<App>) -> Json<Machine> {
    let load = fs::read_to_string("/proc/loadavg").ok();
    // The driver may take a moment.
    let gpus = tokio::task::spawn_blocking(gpu_devices).await.unwrap_or_default();
    Json(Machine {
        gpus: gpus.into_iter().map(GpuObject::from).collect(),
        cores: thread::available_parallelism().map_or(1, usize::from),
        load: load.and_then(|text| text.split(' ').next()?.parse().ok()),
        memory: Amount { total_bytes: memory_ceiling(), free_bytes: memory_available() },
        disk: disk(app.data.root()),
        budget: Amount { total_bytes: Some(app.budget.total()), free_bytes: Some(app.budget.free()) },
        server_bytes: resident(),
        uptime_seconds: app.started.elapsed().as_secs(),
        max_jobs: app.config.max_jobs,
    })
}

pub(super) fn disk(folder: &Path) -> Amount {
    match rustix::fs::statvfs(folder) {
        Ok(disk) => Amount {
            total_bytes: disk.f_blocks.checked_mul(disk.f_frsize),
            free_bytes: disk.f_bavail.checked_mul(disk.f_frsize),
        },
        Err(_) => Amount { total_bytes: None, free_bytes: None },
    }
}

fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? * 1024)
}

/// The least that trainings take.
#[derive(Debug, Clone, Serialize, ToSchema)]
struct Fit {
    /// What was planned, in words.
    run: String,
    data: Vec<FitRow>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
struct FitRow {
    shape: &'static str,
    /// Bits of the frozen weights.
    bits: u8,
    total_bytes: u64,
}

/// How much memory it takes at least to train each known shape of a model.
#[utoipa::path(get, path = "/v1/garden/fit", tag = "Garden", responses((status = 200, body = Fit)))]
async fn fit(State(app): State<App>) -> Result<Json<Fit>, ApiError> {
    /// Plans of shapes depend on nothing that changes.
    static PLANNED: OnceCell<Fit> = OnceCell::const_new();
    PLANNED.get_or_try_init(|| planned(&app)).await.map(|fit| Json(fit.clone()))
}

async fn planned(app: &App) -> Result<Fit, ApiError> {
    let mut data = Vec::new();
    for shape in SHAPES {
        for bits in BITS {
            let words = format!(
                "memory plan --format=json --base-model={shape} --batch-size=1 --gradient-checkpointing=on \
                 --max-seq-length={TOKENS} --image-tokens={IMAGE_TOKENS} --load-in-{bits}bit"
            );
            let words: Vec<OsString> = words.split_ascii_whitespace().map(OsString::from).collect();
            // Exit code 4: it does not fit this machine.
            let answer = helper::ask(app, &words, BOUNDS, &[0, 4]).await?;
            let plan: Value = serde_json::from_slice(&answer).map_err(ApiError::internal)?;
            data.push(FitRow { shape, bits, total_bytes: plan["total"].as_u64().unwrap_or_default() });
        }
    }
    let run = format!(
        "LoRA of rank 16, one row of {TOKENS} tokens a batch, {IMAGE_TOKENS} of them an image's, every block recomputed"
    );
    Ok(Fit { run, data })
}
