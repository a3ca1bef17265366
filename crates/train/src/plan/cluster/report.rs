//! Steps on several nodes for people and for programs.
//!
//! Takes a [`Cluster`] and gives a table that fits a terminal, with all that it assumes, or JSON with the same figures.

use super::{ASSUMED_RATE, Cluster, Speed, StepTime};
use crate::{numbers::grouped, plan::Setting};
use garden_memory::{ByteSize, counted, report::Style};
use std::fmt::Write;

/// The columns between the number of nodes and the efficiency, in seconds: heading and width.
const SECONDS: [(&str, usize); 5] =
    [("compute", 8), ("exchange", 9), ("hidden", 8), ("idle", 7), ("step", 8)];

impl Cluster {
    /// The figures for programs.
    pub fn json(&self) -> serde_json::Value {
        let measured = matches!(self.nodes.speed, Speed::Measured { .. });
        serde_json::json!({
            "trained_values": self.work.trained_values,
            "micro_batches": self.work.micro_batches,
            "micro_batch_seconds": self.work.batch_seconds,
            "micro_batch_seconds_measured": measured,
            "micro_batch_operations": self.operations,
            "operations_per_second": self.rate(),
            "network_bits_per_second": self.nodes.network.bandwidth.bits_per_second(),
            "latency_seconds": self.nodes.network.latency.as_secs_f64(),
            "nodes": self.steps.iter().map(|step| self.json_of(step)).collect::<Vec<_>>(),
        })
    }

    fn json_of(&self, step: &StepTime) -> serde_json::Value {
        serde_json::json!({
            "nodes": step.nodes,
            "enough_micro_batches": self.is_enough(step),
            "micro_batches": step.micro_batches,
            "rows_per_step": step.micro_batches * self.batch_size,
            "rounds": step.rounds,
            "compute_seconds": step.compute_seconds,
            "exposed_seconds": step.exposed_seconds,
            "hidden_seconds": step.hidden_seconds,
            "idle_seconds": step.idle_seconds,
            "step_seconds": step.step_seconds(),
            "efficiency": step.efficiency(),
            "rows_per_second": self.rows_per_second(step),
            "gradient_bytes": step.gradient_bytes,
            "process_bytes": self.process_bytes(step),
        })
    }

    /// The figures for people.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        self.write_head(&mut out);
        self.write_table(&mut out, style);
        self.write_speed(&mut out);
        self.write_missing(&mut out);
        out
    }

    fn write_head(&self, out: &mut String) {
        let network = &self.nodes.network;
        let gradient = ByteSize(4 * self.work.trained_values);
        let latency = network.latency.as_secs_f64() * 1e6;
        let _ = writeln!(
            out,
            "estimate: {} a step, one process a node, gradients of {gradient}\nnetwork: {} each way, {latency} us a message\n",
            counted(self.work.micro_batches, "micro-batch"),
            network.bandwidth
        );
    }

    fn write_table(&self, out: &mut String, style: Style) {
        let width: usize = SECONDS.iter().map(|(_, width)| width).sum();
        let title = format!("{:─^1$}", " seconds of a step ", width - 2);
        let _ = writeln!(out, "{:15}{title}", "");
        let _ = write!(out, "{:>6} {:>6}", "nodes", "rounds");
        for (heading, width) in SECONDS {
            let _ = write!(out, "{heading:>width$}");
        }
        let _ = writeln!(out, "{:>11}{:>7}{:>9}", "efficiency", "rows/s", "process");
        for step in &self.steps {
            self.write_step(out, step, style);
        }
    }

    fn write_step(&self, out: &mut String, step: &StepTime, style: Style) {
        let star = if self.is_enough(step) { ' ' } else { '*' };
        let _ = write!(out, "{:>6}{star}{:>6}", grouped(step.nodes), grouped(step.rounds));
        let exchange = (step.exposed_seconds, step.hidden_seconds);
        let seconds = [step.compute_seconds, exchange.0, exchange.1, step.idle_seconds, step.step_seconds()];
        for ((_, width), seconds) in SECONDS.iter().zip(seconds) {
            let _ = write!(out, "{:>width$}", figure(seconds));
        }
        let percent = format!("{:>9.1} %", 100.0 * step.efficiency());
        let percent = painted(&percent, step.efficiency(), style);
        let rows = figure(self.rows_per_second(step));
        let process = ByteSize(self.process_bytes(step)).to_string();
        let _ = writeln!(out, "{percent}{rows:>7}{process:>9}");
    }

    /// How long a micro-batch takes, and how that is known.
    fn write_speed(&self, out: &mut String) {
        let seconds = figure(self.work.batch_seconds);
        let tera = figure(self.operations / 1e12);
        let counted = |rate: f64| format!("{seconds} s: {tera} TFLOP at {} GFLOP/s", figure(rate / 1e9));
        let said = match self.nodes.speed {
            Speed::Measured { .. } => format!("{seconds} s, as given"),
            Speed::Rated { rate } => format!("{}, as given", counted(rate)),
            Speed::Unknown => format!(
                "about {},\nwhich two threads of a Xeon with AVX-512 reach\n{} says what your nodes take",
                counted(ASSUMED_RATE),
                self.setting("micro-batch-seconds", "S")
            ),
        };
        let _ = writeln!(out, "\na micro-batch takes {said}");
    }

    /// What a step needs so that every node has something to compute.
    fn write_missing(&self, out: &mut String) {
        let mut star = "*";
        for step in self.steps.iter().filter(|step| !self.is_enough(step)) {
            let _ = writeln!(
                out,
                "{star} {} nodes need {}: {} rows a step, not {}",
                grouped(step.nodes),
                self.setting("gradient-accumulation-steps", &step.micro_batches.to_string()),
                grouped(step.micro_batches * self.batch_size),
                grouped(self.work.micro_batches * self.batch_size),
            );
            star = " ";
        }
    }

    fn setting(&self, name: &'static str, value: &str) -> String {
        (self.written)(&Setting { name, value: value.to_owned() })
    }

    /// Whether a step has a micro-batch for each node, as it was asked for.
    fn is_enough(&self, step: &StepTime) -> bool {
        step.nodes <= self.work.micro_batches
    }

    /// Operations a second that the time of a micro-batch stands for.
    fn rate(&self) -> f64 {
        self.operations / self.work.batch_seconds
    }
}

/// Three digits at least, fewer of small numbers, and a dash for nothing.
fn figure(number: f64) -> String {
    match number {
        0.0..1e-9 => "-".to_owned(),
        ..0.995 => format!("{number:.3}"),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => grouped(number.round() as u64),
    }
}

/// Green where hardly anything is lost, yellow where some is, red where much is.
fn painted(text: &str, efficiency: f64, style: Style) -> String {
    let code = match efficiency {
        0.9.. => "32",
        0.7.. => "33",
        _ => "31",
    };
    if style.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        let cases = [
            (0.0, "-"),
            (1e-12, "-"),
            (0.0448, "0.045"),
            (0.9949, "0.995"),
            (0.997, "1.00"),
            (4.4, "4.40"),
            (35.72, "35.7"),
            (2284.6, "2,285"),
        ];
        for (number, text) in cases {
            assert_eq!(figure(number), text, "{number}");
        }
    }

    #[test]
    fn colours_tell_what_is_lost_and_only_on_a_terminal() {
        let style = |color| Style { color, width: 80 };
        let codes = [0.95, 0.8, 0.2].map(|efficiency| painted("x", efficiency, style(true)));
        assert_eq!(codes, ["\x1b[32mx\x1b[0m", "\x1b[33mx\x1b[0m", "\x1b[31mx\x1b[0m"]);
        assert_eq!(painted("x", 0.2, style(false)), "x");
    }
}
