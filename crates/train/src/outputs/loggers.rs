//! The loggers of a run as one callback: metrics.jsonl always, TensorBoard and MLflow if asked for.
//!
//! Takes log entries and writes lines, event records and requests. A file that cannot be written ends the run
//! with an error that names it. An MLflow server that stops answering is reported once and tried again after
//! one, two, four and more minutes, and at the end.

use super::{
    metrics::MetricsFile,
    mlflow::{MlflowError, MlflowRun},
    tensorboard::EventFile,
};
use crate::{
    announce::Announcer,
    config::ReportTo,
    event::Topic,
    trainer::{BoxError, Callback, Control, LogEntry, StopReason, TrainerState},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Holds the id of the run on the server, so that a resumed run continues it.
const MLFLOW_RUN: &str = "mlflow_run_id";

/// Writes the logs of a run.
pub struct Loggers<'a, 'o> {
    folder: PathBuf,
    report_to: Vec<ReportTo>,
    settings: BTreeMap<String, String>,
    announcer: &'a Announcer<'o>,
    metrics: Option<MetricsFile>,
    events: Option<EventFile>,
    mlflow: Option<MlflowRun>,
    mlflow_failed: bool,
}

impl<'a, 'o> Loggers<'a, 'o> {
    /// Loggers of a run in this folder; `settings` are shown on the MLflow server.
    pub fn new(
        folder: &Path,
        report_to: &[ReportTo],
        settings: BTreeMap<String, String>,
        announcer: &'a Announcer<'o>,
    ) -> Self {
        Self {
            folder: folder.to_owned(),
            report_to: report_to.to_vec(),
            settings,
            announcer,
            metrics: None,
            events: None,
            mlflow: None,
            mlflow_failed: false,
        }
    }

    fn start_mlflow(&self) -> Result<MlflowRun, BoxError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let uri = variable("MLFLOW_TRACKING_URI")
            .ok_or("reporting to MLflow needs MLFLOW_TRACKING_URI, such as http://localhost:5000")?;
        let experiment = variable("MLFLOW_EXPERIMENT_NAME").unwrap_or("model-garden".to_owned());
        let name = self.folder.file_name().map_or("run".into(), |name| name.to_string_lossy());
        let id_file = self.folder.join(MLFLOW_RUN);
        let known = fs::read_to_string(&id_file).ok();
        let known = known.as_deref().map(str::trim).filter(|id| !id.is_empty());
        let run = MlflowRun::start(&uri, variable("MLFLOW_TRACKING_TOKEN"), &experiment, &name, known)?;
        if known.is_none() {
            run.settings(&self.settings)?;
            garden_files::write(&id_file, run.id().as_bytes())?;
        }
        Ok(run)
    }

    fn mlflow_went(&mut self, result: Result<(), MlflowError>) {
        if let Err(error) = result
            && !std::mem::replace(&mut self.mlflow_failed, true)
        {
            self.announcer.note(
                Topic::Logging,
                format!("{error}; the numbers are kept and sent when it answers again"),
            );
        }
    }
}

impl Callback for Loggers<'_, '_> {
    /// A server that cannot be reached refuses the run.
    fn prepare(&mut self, _: &TrainerState) -> Result<(), BoxError> {
        if self.report_to.contains(&ReportTo::Mlflow) {
            self.mlflow = Some(self.start_mlflow()?);
        }
        Ok(())
    }

    fn on_start(&mut self, state: &TrainerState, _: &mut Control) -> Result<(), BoxError> {
        self.metrics = Some(MetricsFile::open(&self.folder, &state.log_history)?);
        if self.report_to.contains(&ReportTo::Tensorboard) {
            let resumed_at = (state.global_step > 0).then_some(state.global_step);
            self.events = Some(EventFile::create(&self.folder.join("runs"), resumed_at)?);
        }
        Ok(())
    }

    fn on_log(&mut self, _: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        if let Some(metrics) = &mut self.metrics {
            metrics.add(entry)?;
        }
        if let Some(events) = &mut self.events {
            events.add(entry)?;
        }
        if let Some(result) = self.mlflow.as_mut().map(|mlflow| mlflow.add(entry)) {
            self.mlflow_went(result);
        }
        Ok(())
    }

    fn on_end(&mut self, _: &TrainerState, stopped: Option<&StopReason>) -> Result<(), BoxError> {
        let finished = matches!(stopped, None | Some(StopReason::EarlyStopping));
        if let Some(Err(error)) = self.mlflow.as_mut().map(|mlflow| mlflow.end(finished)) {
            self.announcer.note(
                Topic::Logging,
                format!("{error}; metrics.jsonl has all numbers, including those not sent"),
            );
        }
        Ok(())
    }
}
