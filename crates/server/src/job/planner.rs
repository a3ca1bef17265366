//! The memory plan of a job, made in a process of its own: it reads every row.
//!
//! [`plan_job`] runs in the child. It takes the settings of a run and the bytes that the server may give it, and gives
//! the plan as JSON. [`Planner`] runs in the server: it starts the child, waits for a bounded time, and reads a bounded
//! answer.

use super::{blame, names::Names, runner::ChildProgram};
use garden_memory::ByteSize;
use garden_model::{MemoryPlan, PlanError};
use garden_train::{
    Least, ModelFolder, NoFrontEnd, RunConfig, Setting, Source, TrainOptions, open_data, plan,
};
use serde::{Deserialize, Serialize};
use std::{path::Path, process::Stdio, sync::Arc, time::Duration};
use tokio::{io::AsyncReadExt, sync::Semaphore, time};

/// A plan is a few kilobytes, an error a few lines.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Children that plan at once.
const AT_ONCE: usize = 2;
/// Bytes that a child may ask the system for: a plan holds a tokenizer and figures of every row.
const MEMORY: u64 = 2 << 30;

/// What a job needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct JobPlan {
    /// Bytes at the peak.
    pub total_bytes: u64,
    /// Bytes that it may take: the server's budget, or its own where that is less.
    pub budget_bytes: u64,
    /// Bytes at which a run of it is stopped, on the server that planned it.
    pub limit_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
    pub parts: Vec<PlanPart>,
    /// The parts as a table for people.
    pub table: String,
    pub blocks: usize,
    /// Blocks whose activations are recomputed to fit.
    pub recomputed_blocks: usize,
    /// Bytes of one checkpoint, about.
    pub checkpoint_bytes: u64,
    /// Ways to do with less.
    pub least: Vec<LeastPlan>,
}

/// A part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct PlanPart {
    pub name: String,
    pub bytes: u64,
}

/// A smaller plan, and what leads to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct LeastPlan {
    pub total_bytes: u64,
    /// Settings to change.
    pub settings: std::collections::BTreeMap<String, String>,
}

/// What the child prints.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Printed {
    Plan(Box<JobPlan>),
    Error(Refusal),
}

/// Why a run cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub words: String,
    /// The field of the request that is at fault.
    pub param: Option<String>,
}

impl Refusal {
    /// An error in words, with its causes.
    fn of(error: &dyn std::error::Error) -> Self {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let inner_words = inner.to_string();
            if !words.contains(&inner_words) {
                words = format!("{words}: {inner_words}");
            }
            cause = inner.source();
        }
        Self { words: blame::with_keys(&words), param: None }
    }

    fn at(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanFault {
    /// The rows, the model or the settings cannot be used.
    #[error("{}", .0.words)]
    Refused(Refusal),
    /// It takes longer than the caller waits.
    #[error("reading the rows takes longer than {} s", .0.as_secs())]
    TimeOut(Duration),
    /// The settings could not be written for the child.
    #[error("the server's disk refused: {0}")]
    Disk(std::io::ErrorKind),
    /// The child failed.
    #[error("the memory plan could not be made: {0}")]
    Broken(String),
}

/// What kind of fault it is if this field is wrong.
pub(crate) fn code_of(param: Option<&str>) -> &'static str {
    match param {
        Some("model") => "invalid_model",
        None | Some("training_file" | "validation_file") => "invalid_training_file",
        Some(_) => "invalid_value",
    }
}

/// Plans the run of a configuration file for so many bytes, and gives JSON to print: the plan, or why there is none.
pub fn plan_job(settings: &Path, room: u64) -> String {
    let printed = match planned(settings, room) {
        Ok(plan) => Printed::Plan(Box::new(plan)),
        Err(error) => Printed::Error(error),
    };
    serde_json::to_string(&printed).unwrap_or_default()
}

fn planned(settings: &Path, room: u64) -> Result<JobPlan, Refusal> {
    let of_model = |error: &dyn std::error::Error| Refusal::of(error).at("model");
    let (options, NoFrontEnd {}) = TrainOptions::from_file(settings).map_err(|error| Refusal::of(&error))?;
    let mut config =
        RunConfig::resolve(options).map_err(|error| Refusal::of(&error).at(blame::of_config(&error)))?;
    // The run keeps the same budget, so it makes the same plan. What is free at this moment does not matter: the job
    // may wait for hours.
    let asked = if config.engine.is_python() { config.memory.limit } else { config.memory.budget };
    let room = asked.map_or(room, |asked| asked.min(room));
    config.memory.budget = Some(room);
    let place = garden_data::model_folder(&config.base_model, &()).map_err(|error| of_model(&error))?;
    let folder = ModelFolder::open(&place).map_err(|error| of_model(&error))?;
    let data = open_data(&config, &folder, &())
        .map_err(|error| Refusal::of(&error).at(blame::of_run(&error, &config)))?;
    let source = Source::in_folder(folder.config(), folder.path()).map_err(|error| of_model(&error))?;
    let of_plan = |error: PlanError| Refusal::of(&error).at(blame::of_plan(&error));
    let least = Least::of(&config, folder.config(), &source, &data.one_row).map_err(of_plan)?;
    let plan = plan(&config, folder.config(), source, &data.load, None).map_err(of_plan)?;
    let described = described(&plan, &least, room);
    Ok(if config.engine.is_python() { described.reserved(&config, room) } else { described })
}

fn described(plan: &MemoryPlan, least: &[Least], room: u64) -> JobPlan {
    let total = plan.total() as u64;
    let parts: Vec<PlanPart> = plan
        .parts()
        .into_iter()
        .map(|(name, bytes)| PlanPart { name: name.to_owned(), bytes: bytes as u64 })
        .collect();
    let line = |name: &str, bytes: u64| format!("{name:<12} {:>10}\n", ByteSize(bytes).to_string());
    let mut table: String = parts.iter().map(|part| line(&part.name, part.bytes)).collect();
    table.push_str(&line("total", total));
    let setting = |setting: &Setting| (setting.name.replace('-', "_"), setting.value.clone());
    JobPlan {
        total_bytes: total,
        budget_bytes: room,
        limit_bytes: limit(total, room),
        fits: total <= room,
        parts,
        table,
        blocks: plan.blocks,
        recomputed_blocks: plan.recomputed_blocks,
        checkpoint_bytes: (plan.adapters + plan.optimizer) as u64,
        least: least
            .iter()
            .filter(|way| (way.plan.total() as u64) < total)
            .map(|way| LeastPlan {
                total_bytes: way.plan.total() as u64,
                settings: way.settings.iter().map(setting).collect(),
            })
            .collect(),
    }
}

impl JobPlan {
    /// For an engine in Python, whose memory is PyTorch's affair: what the job asked for instead of a plan. The
    /// rows and the model were looked at, and a checkpoint holds the same values.
    fn reserved(self, config: &RunConfig, room: u64) -> Self {
        let engine = config.engine;
        Self {
            total_bytes: room,
            limit_bytes: room,
            fits: true,
            parts: vec![PlanPart { name: "reserved".to_owned(), bytes: room }],
            table: format!(
                "reserved     {:>10}\nEngine {engine} makes no plan: the job may take this much, and is stopped before it takes more.\n",
                ByteSize(room).to_string()
            ),
            recomputed_blocks: 0,
            least: Vec::new(),
            ..self
        }
    }

    /// Why the job can never run here, with the table and what would do.
    pub(crate) fn refusal(&self) -> String {
        let mut words = format!(
            "this job needs {}, and its memory budget is {}\n{}",
            ByteSize(self.total_bytes),
            ByteSize(self.budget_bytes),
            self.table
        );
        for way in &self.least {
            let settings: Vec<String> =
                way.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let total = ByteSize(way.total_bytes);
            words.push_str(&format!("less would do: {total} with {}\n", settings.join(", ")));
        }
        words
    }

    /// The bytes at which a run of this plan is stopped on a server with this budget, which are reserved for it.
    pub(crate) fn limit(&self, budget: u64) -> u64 {
        limit(self.total_bytes, budget)
    }
}

/// Plans are exact to a twentieth, and a small process varies by some megabytes. What is planned to fit the budget gets
/// no more than that.
fn limit(planned: u64, budget: u64) -> u64 {
    planned.saturating_add(planned / 10).saturating_add(16 << 20).min(budget).max(planned)
}

/// Makes plans in children.
#[derive(Debug, Clone)]
pub(crate) struct Planner {
    program: ChildProgram,
    places: Arc<Semaphore>,
}

impl Planner {
    pub(crate) fn new(program: ChildProgram) -> Self {
        Self { program, places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The plan of a configuration file, waited for no longer than `patience`, its turn included. What it
    /// refuses, it calls by these names.
    pub(crate) async fn plan(
        &self,
        settings: &Path,
        room: u64,
        patience: Duration,
        names: &Names,
    ) -> Result<JobPlan, PlanFault> {
        let planned = time::timeout(patience, async {
            // The semaphore is never closed.
            let _place = self.places.acquire().await.ok();
            self.run(settings, room).await
        });
        match planned.await.map_err(|_| PlanFault::TimeOut(patience))? {
            Err(PlanFault::Refused(refusal)) => {
                let words = self.program.without_folders(&names.clean(&refusal.words));
                Err(PlanFault::Refused(Refusal { words, ..refusal }))
            }
            planned => planned,
        }
    }

    async fn run(&self, settings: &Path, room: u64) -> Result<JobPlan, PlanFault> {
        let broken = |error: std::io::Error| PlanFault::Broken(error.to_string());
        let mut command = self.program.helper_command();
        command.arg("serve-plan").arg(settings).arg("--room").arg(room.to_string());
        command.arg("--limit").arg(MEMORY.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(broken)?;
        self.program.bound_files(child.id());
        let _line = child.stdin.take();
        let mut answer = Vec::new();
        let output = child.stdout.take();
        if let Some(output) = output {
            output.take(LONGEST_ANSWER).read_to_end(&mut answer).await.map_err(broken)?;
        }
        let status = child.wait().await.map_err(broken)?;
        match serde_json::from_slice(&answer) {
            Ok(Printed::Plan(plan)) => Ok(*plan),
            Ok(Printed::Error(refusal)) => Err(PlanFault::Refused(refusal)),
            Err(_) => Err(match self.program.wrote_too_much(status) {
                Some(words) => PlanFault::Refused(Refusal { words, param: Some("training_file".to_owned()) }),
                None => PlanFault::Broken(format!("its process ended with {status}")),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(total_bytes: u64) -> JobPlan {
        JobPlan {
            total_bytes,
            budget_bytes: 0,
            limit_bytes: 0,
            fits: true,
            parts: Vec::new(),
            table: String::new(),
            blocks: 1,
            recomputed_blocks: 0,
            checkpoint_bytes: 0,
            least: Vec::new(),
        }
    }

    #[test]
    fn a_run_may_take_a_little_more_than_planned_and_never_more_than_the_budget() {
        let small = plan(36_000_000);
        assert!(small.limit(1 << 30) > 41_000_000, "what such a run was seen to take");
        assert!(small.limit(1 << 30) < 60_000_000);
        assert_eq!(plan(1 << 30).limit((1 << 30) + 5), (1 << 30) + 5);
    }

    #[tokio::test]
    async fn no_more_than_two_plans_are_made_at_once() {
        let folder = tempfile::tempdir().unwrap();
        // It says that it runs, and runs until it is killed.
        let script = folder.path().join("program");
        let words = format!("#!/bin/sh\ntouch {}/ran-$$\nexec sleep 1000\n", folder.path().display());
        std::fs::write(&script, words).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let planner = Planner::new(ChildProgram {
            program: script,
            cache: folder.path().to_owned(),
            empty: folder.path().to_owned(),
            ..ChildProgram::default()
        });
        let ran = || std::fs::read_dir(folder.path()).unwrap().flatten().count() - 1;
        let names = Names::default();
        let plan = |patience| planner.plan(Path::new("settings.toml"), 1, patience, &names);
        let long = Duration::from_secs(600);
        let third = async {
            while ran() < 2 {
                time::sleep(Duration::from_millis(5)).await;
            }
            plan(Duration::from_millis(50)).await
        };
        let third = tokio::select! {
            _ = plan(long) => panic!("it never ends"),
            _ = plan(long) => panic!("it never ends"),
            third = third => third,
        };
        assert!(matches!(third, Err(PlanFault::TimeOut(_))), "{third:?}");
        assert_eq!(ran(), 2);
    }
}
