//! `GET /v1/garden/energy` and `/energy.csv`: what the jobs have taken from the wall, and the carbon of it.
//!
//! A job's energy is what its keeper read from the processor's counters; a machine without counters tells none. Carbon
//! is energy times a factor, which the answer states.

use crate::{
    api::{
        error::ApiError,
        extract::{Json, Query},
        jobs::JobObject,
    },
    app::App,
    job::{keeper::seconds_now, manager::Indexed},
    store::JobQuery,
};
use axum::{extract::State, http::header, response::IntoResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Grams of CO2 for a kilowatt-hour: the world's mean of 2024, as Ember has it.
const FACTOR: f64 = 473.0;
const SOURCE: &str = "mean of the world's electricity in 2024 (Ember, Global Electricity Review 2025)";
const JOULES_OF_A_KILOWATT_HOUR: f64 = 3.6e6;
/// Jobs that are read at once.
const PAGE: usize = 500;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(energy)).routes(routes!(csv))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Factor {
    /// Grams of CO2 for a kilowatt-hour where the machine stands, from 0 to 5000.
    #[param(minimum = 0, maximum = 5000)]
    grams_per_kwh: Option<f64>,
}

impl Factor {
    fn grams(&self) -> Result<f64, ApiError> {
        let grams = self.grams_per_kwh.unwrap_or(FACTOR);
        let fits = (0.0..=5000.0).contains(&grams);
        fits.then_some(grams)
            .ok_or_else(|| ApiError::bad_request("grams_per_kwh: from 0 to 5000").param("grams_per_kwh"))
    }
}

/// Energy and carbon of the jobs.
#[derive(Serialize, ToSchema)]
struct Energy {
    grams_per_kwh: f64,
    /// Where the factor comes from.
    factor_source: &'static str,
    /// Jobs whose energy is known, newest first.
    data: Vec<EnergyRow>,
    /// Jobs whose energy is not known.
    unknown: usize,
    joules: f64,
    carbon_grams: f64,
}

#[derive(Serialize, ToSchema)]
struct EnergyRow {
    id: String,
    name: String,
    model: String,
    created_at: u64,
    joules: f64,
    carbon_grams: f64,
}

/// Shows the energy that each job took, where the machine counts it, and its carbon.
#[utoipa::path(get, path = "/v1/garden/energy", tag = "Garden", params(Factor), responses((status = 200, body = Energy)))]
async fn energy(State(app): State<App>, Query(factor): Query<Factor>) -> Result<Json<Energy>, ApiError> {
    collected(&app, &factor).await.map(Json)
}

/// The same as a table.
#[utoipa::path(get, path = "/v1/garden/energy.csv", tag = "Garden", params(Factor),
    responses((status = 200, content_type = "text/csv", body = String)))]
async fn csv(State(app): State<App>, Query(factor): Query<Factor>) -> Result<impl IntoResponse, ApiError> {
    let energy = collected(&app, &factor).await?;
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"energy.csv\""),
    ];
    Ok((headers, table(&energy)))
}

fn table(energy: &Energy) -> String {
    let mut text =
        String::from("job,name,model,created_at,joules,kilowatt_hours,carbon_grams,grams_per_kwh\r\n");
    for row in &energy.data {
        let hours = row.joules / JOULES_OF_A_KILOWATT_HOUR;
        let words = [&row.id, &row.name, &row.model].map(|word| cell(word)).join(",");
        let (joules, carbon, factor) = (row.joules, row.carbon_grams, energy.grams_per_kwh);
        let _ = write!(text, "{words},{},{joules:.1},{hours:.6},{carbon:.3},{factor}\r\n", row.created_at);
    }
    text
}

/// A cell that no spreadsheet takes for a formula.
fn cell(text: &str) -> String {
    let guarded =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    match guarded.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", guarded.replace('"', "\"\"")),
        false => guarded,
    }
}

async fn collected(app: &App, factor: &Factor) -> Result<Energy, ApiError> {
    let grams_per_kwh = factor.grams()?;
    let factor_source = if factor.grams_per_kwh.is_some() { "given with the question" } else { SOURCE };
    let mut energy =
        Energy { grams_per_kwh, factor_source, data: Vec::new(), unknown: 0, joules: 0.0, carbon_grams: 0.0 };
    let mut after = None;
    loop {
        let page = app.store.list_jobs(JobQuery { after, limit: PAGE, ..JobQuery::default() }).await?;
        after = page.data.last().map(|row| row.id.clone());
        for row in page.data {
            energy.add(row.record);
        }
        if !page.has_more {
            return Ok(energy);
        }
    }
}

impl Energy {
    fn add(&mut self, record: Value) {
        let Ok(indexed) = serde_json::from_value::<Indexed>(record) else { return };
        let name = indexed.record.suffix.clone().unwrap_or_default();
        let job = serde_json::to_value(JobObject::new(indexed, None, seconds_now())).unwrap_or_default();
        let Some(joules) = job["garden"]["energy_joules"].as_f64() else {
            self.unknown += 1;
            return;
        };
        let carbon_grams = joules / JOULES_OF_A_KILOWATT_HOUR * self.grams_per_kwh;
        self.joules += joules;
        self.carbon_grams += carbon_grams;
        let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
        self.data.push(EnergyRow {
            id: text("id"),
            name,
            model: text("model"),
            created_at: job["created_at"].as_u64().unwrap_or_default(),
            joules,
            carbon_grams,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_formulas_and_keeps_its_columns() {
        let row = EnergyRow {
            id: "ftjob-a".into(),
            name: "=1+1".into(),
            model: "a,\"b\"".into(),
            created_at: 7,
            joules: 3.6e6,
            carbon_grams: 473.0,
        };
        let energy = Energy {
            grams_per_kwh: 473.0,
            factor_source: SOURCE,
            data: vec![row],
            unknown: 0,
            joules: 0.0,
            carbon_grams: 0.0,
        };
        let text = table(&energy);
        assert!(
            text.ends_with("ftjob-a,'=1+1,\"a,\"\"b\"\"\",7,3600000.0,1.000000,473.000,473\r\n"),
            "{text}"
        );
    }
}
