//! The model card of a finished run, with a picture of its loss.
//!
//! Takes the settings, the history and the memory verdict and writes `README.md`, `training_curve.svg` and,
//! beside them, the report (see `report`). All of them are complete in themselves and open without a network.

use super::report::REPORT;
use crate::{
    config::{Method, RunConfig},
    monitor::MemorySummary,
    numbers::grouped,
    trainer::TrainerState,
};
use garden_memory::{
    Axis, ByteSize, counted,
    report::{Chart, Colour, Line, Unit},
};
use std::{fmt::Write, io, path::Path};

/// The picture that the model card shows.
const CURVE: &str = "training_curve.svg";

/// A run that is over.
pub struct FinishedRun<'a> {
    /// Its settings.
    pub config: &'a RunConfig,
    /// Its history.
    pub state: &'a TrainerState,
    /// Its memory.
    pub memory: &'a MemorySummary,
    /// Parameters that were trained, and all of them.
    pub parameters: (u64, u64),
    /// Rows that were trained on.
    pub rows: u64,
    /// Rows that were left out, with the reason.
    pub dropped: &'a [(String, u64)],
    /// The step whose weights are the result: the last one, or the best one after early stopping.
    pub delivered: u64,
}

impl FinishedRun<'_> {
    /// Writes the model card and the report into a folder.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let chart = self.loss_chart();
        if chart.has_points() {
            garden_files::write(&dir.join(CURVE), chart.svg().as_bytes())?;
        }
        garden_files::write(&dir.join("README.md"), self.model_card(chart.has_points()).as_bytes())?;
        garden_files::write(&dir.join(REPORT), self.report().as_bytes())
    }

    /// The loss over steps, with the evaluation's loss beside it.
    pub(super) fn loss_chart(&self) -> Chart {
        let names = [("training", "loss"), ("evaluation", "eval_loss")];
        let lines = names.into_iter().enumerate().filter_map(|(index, (name, key))| {
            let points = self.state.series(key);
            (!points.is_empty()).then(|| Line::through(name, Colour::Nth(index), &points))
        });
        let mut chart = Chart::new("Loss", Axis::Steps, Unit::Number, lines.collect());
        "Mean over the labelled tokens".clone_into(&mut chart.summary);
        chart.epochs = self.epochs();
        chart
    }

    fn model_card(&self, has_curve: bool) -> String {
        let config = self.config;
        let (library, title) = match config.method {
            Method::Lora => ("peft", "Adapter for"),
            Method::Full => ("transformers", "Fine-tuned"),
        };
        let mut out = format!(
            "---\nbase_model: {}\nlibrary_name: {library}\npipeline_tag: image-text-to-text\ntags:\n- model-garden\n---\n\n# {title} {}\n\nFine-tuned with Model Garden on `{}`.\n\n| | |\n|---|---|\n",
            yaml(&config.base_model),
            config.base_model,
            config.dataset_names()
        );
        for (name, value) in self.results() {
            let _ = writeln!(out, "| {name} | {} |", value.replace('|', "\\|"));
        }
        if has_curve {
            let _ = writeln!(out, "\n![Loss over steps]({CURVE})");
        }
        let _ = writeln!(out, "\n## Memory\n\n`{}`\n", self.memory.verdict);
        for reason in &self.memory.assessment.evidence {
            let _ = writeln!(out, "- {reason}");
        }
        let _ = writeln!(out, "\n## Settings\n\n```json\n{}\n```", self.settings());
        out
    }

    pub(super) fn settings(&self) -> String {
        serde_json::to_string_pretty(self.config).unwrap_or_default()
    }

    pub(super) fn results(&self) -> Vec<(&'static str, String)> {
        let state = self.state;
        let (trained, all) = self.parameters;
        let share = 100.0 * trained as f64 / all.max(1) as f64;
        let mut rows = vec![
            ("Base model", self.config.base_model.clone()),
            ("Data", format!("{} ({})", self.config.dataset_names(), counted(self.rows, "row"))),
            ("Trained parameters", format!("{} of {} ({share:.2} %)", grouped(trained), grouped(all))),
            ("Steps", format!("{} ({:.2} epochs)", state.global_step, state.epoch)),
        ];
        if self.delivered != state.global_step {
            rows.push((
                "Result",
                format!("step {}, the best evaluation; the figures are its own", self.delivered),
            ));
        }
        let number = |name: &str| state.at_step(self.delivered, name);
        rows.extend(number("loss").map(|loss| ("Training loss", format!("{loss:.4}"))));
        rows.extend(number("eval_loss").map(|loss| ("Evaluation loss", format!("{loss:.4}"))));
        rows.extend(
            number("eval_token_accuracy").map(|share| ("Token accuracy", format!("{:.1} %", 100.0 * share))),
        );
        // If the result is the best one, its row says so.
        let best = state.best_global_step.filter(|step| *step != self.delivered);
        rows.extend(best.map(|step| ("Best evaluation", format!("step {step}"))));
        let processes = match self.memory.processes {
            0 | 1 => String::new(),
            count => format!(", in {count} processes"),
        };
        let seconds = self.memory.seconds;
        let digits = if seconds < 10.0 { 1 } else { 0 };
        rows.push(("Time", format!("{seconds:.digits$} s{processes}")));
        rows.push(("Peak memory", ByteSize(self.memory.peak).to_string()));
        for (reason, count) in self.dropped {
            rows.push(("Rows left out", format!("{count}: {reason}")));
        }
        rows
    }
}

/// A YAML scalar that is text whatever it contains.
fn yaml(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::MemoryVerdict;
    use crate::{config::TrainOptions, trainer::LogEntry};
    use garden_memory::{Analyst, RunFacts, Verdict};
    use std::collections::BTreeMap;

    /// Three steps, of which the second evaluates best.
    fn state() -> TrainerState {
        let entry = |step: u64| {
            let values = [("loss", 3.0 / step as f64), ("learning_rate", 1e-4), ("tokens_per_second", 100.0)];
            let evaluation = ("eval_loss", if step == 2 { 0.25 } else { 0.75 });
            let values = values.into_iter().chain([evaluation]).map(|(name, value)| (name.to_owned(), value));
            LogEntry { epoch: 0.1, step, values: BTreeMap::from_iter(values) }
        };
        TrainerState {
            global_step: 3,
            best_global_step: Some(2),
            log_history: (1..4).map(entry).collect(),
            ..TrainerState::default()
        }
    }

    fn memory() -> MemorySummary {
        MemorySummary {
            assessment: Analyst::new(RunFacts::default()).assessment(),
            verdict: MemoryVerdict {
                verdict: Verdict::Steady,
                resident_bytes: 1_210_000_000,
                peak_bytes: 1_210_000_000,
                plan_bytes: Some(1_300_000_000),
                level_since_step: Some(1),
                growth_bytes_per_step: None,
                decidable_at_step: None,
            },
            curve: vec![(1.0, 1.21e9), (2.0, 1.21e9)],
            limit: None,
            peak: 1_210_000_000,
            seconds: 12.0,
            processes: 1,
            cost_seconds: 0.0,
        }
    }

    fn config(method: Method) -> RunConfig {
        RunConfig::resolve(TrainOptions {
            base_model: Some("models/tiny <x>".into()),
            dataset: Some("rows.jsonl".into()),
            output_dir: Some("out".into()),
            method: Some(method),
            ..TrainOptions::default()
        })
        .unwrap()
    }

    /// The card of a run that ended like this.
    fn card(method: Method, delivered: u64, memory: &MemorySummary) -> String {
        let (config, state) = (config(method), state());
        let run = FinishedRun {
            config: &config,
            state: &state,
            memory,
            parameters: (100, 1000),
            rows: 663,
            dropped: &[],
            delivered,
        };
        run.model_card(true)
    }

    #[test]
    fn after_early_stopping_the_figures_are_those_of_the_step_that_is_delivered() {
        let last = card(Method::Lora, 3, &memory());
        assert!(last.contains("| Evaluation loss | 0.7500 |") && last.contains("| Training loss | 1.0000 |"));
        let best = card(Method::Lora, 2, &memory());
        assert!(best.contains("| Evaluation loss | 0.2500 |"), "{best}");
        assert!(
            best.contains("| Training loss | 1.5000 |") && best.contains("| Result | step 2, "),
            "{best}"
        );
        assert!(last.contains("| Best evaluation | step 2 |") && !best.contains("Best evaluation"), "{best}");
    }

    #[test]
    fn all_weights_are_not_called_an_adapter() {
        let adapter = card(Method::Lora, 3, &memory());
        assert!(adapter.contains("library_name: peft") && adapter.contains("# Adapter for models/tiny"));
        let whole = card(Method::Full, 3, &memory());
        assert!(whole.contains("library_name: transformers") && whole.contains("# Fine-tuned models/tiny"));
        assert!(!whole.contains("peft") && !whole.contains("# Adapter"), "{whole}");
    }

    #[test]
    fn time_and_peak_are_those_of_all_processes() {
        let several = MemorySummary { seconds: 340.0, processes: 3, ..memory() };
        let card = card(Method::Lora, 3, &several);
        assert!(card.contains("| Time | 340 s, in 3 processes |"), "{card}");
        assert!(card.contains("| Peak memory | 1.21 GB |"), "{card}");
        let short = MemorySummary { seconds: 0.44, ..memory() };
        assert!(self::card(Method::Lora, 3, &short).contains("| Time | 0.4 s |"), "not 0 s");
    }

    #[test]
    fn card_and_report_tell_the_data_the_curve_and_the_verdict() {
        let (config, state, memory) = (config(Method::Lora), state(), memory());
        let run = FinishedRun {
            config: &config,
            state: &state,
            memory: &memory,
            parameters: (100, 1000),
            rows: 663,
            dropped: &[("longer than 2048 tokens".into(), 2)],
            delivered: 3,
        };
        let dir = tempfile::tempdir().unwrap();
        run.write(dir.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let (card, report) = (read("README.md"), read("report.html"));
        for text in [
            "base_model: \"models/tiny <x>\"",
            "rows.jsonl (663 rows)",
            CURVE,
            &memory.verdict.to_string(),
            "\"r\": 16",
        ] {
            assert!(card.contains(text), "{text}\n{card}");
        }
        for chart in ["Loss", "Learning rate", "Throughput", "Memory"] {
            assert!(report.contains(&format!(">{chart}</h3>")), "{chart}");
        }
        assert!(report.contains("plan 1.30 GB"), "the plan lies across the memory");
        assert!(report.contains("models/tiny &lt;x&gt;") && !report.contains("<x>"));
        assert!(report.contains("2: longer than 2048 tokens"));
        assert!(read(CURVE).contains("<polyline"));
    }
}
