//! A plan for people and for programs.
//!
//! Takes a [`MemoryPlan`] with what it was made for. Gives a drawing of its parts that fits a terminal, or
//! JSON with the same figures, and says whether it fits.

use super::{Least, Load, Setting, usable};
use crate::{
    config::{Method, RunConfig},
    numbers::grouped,
};
use garden_memory::{ByteSize, counted, report::Style};
use garden_model::{MemoryPlan, ModelConfig, parameters};
use std::fmt::Write;

/// A plan that prints itself.
pub struct PlanReport<'a> {
    /// What the model is called.
    pub name: &'a str,
    /// The run.
    pub config: &'a RunConfig,
    /// The model's sizes.
    pub model: &'a ModelConfig,
    /// The most that its rows ask for.
    pub load: &'a Load,
    /// What is planned.
    pub plan: &'a MemoryPlan,
    /// What the machine has left.
    pub room: Option<u64>,
    /// Ways to do with less.
    pub least: &'a [Least],
    /// How the reader writes a setting.
    pub written: fn(&Setting) -> String,
}

impl PlanReport<'_> {
    /// The bound that decides, and whose it is: the budget's, the limit's or the machine's, whichever is
    /// smallest.
    fn limit(&self) -> Option<(u64, &'static str)> {
        let limit = usable(&self.config.memory).map(|bytes| (bytes, "usable below the memory limit"));
        let budget = self.config.memory.budget.map(|bytes| (bytes, "budget"));
        let room = self.room.map(|bytes| (bytes, "available on this machine"));
        budget.into_iter().chain(limit).chain(room).min_by_key(|(bytes, _)| *bytes)
    }

    /// Whether it fits the budget, the limit and the machine.
    pub fn fits(&self) -> bool {
        self.limit().is_none_or(|(limit, _)| self.plan.total() as u64 <= limit)
    }

    /// The figures for programs.
    pub fn json(&self) -> serde_json::Value {
        let shapes = self.load.shapes;
        let parts: serde_json::Map<_, _> =
            self.plan.parts().into_iter().map(|(name, bytes)| (name.to_owned(), bytes.into())).collect();
        serde_json::json!({
            "parts": parts,
            "total": self.plan.total(),
            "available": self.room,
            "budget": self.config.memory.budget,
            "memory_limit": self.config.memory.limit,
            "fits": self.fits(),
            "longest_batch": {
                "rows": self.config.batch_size, "tokens": shapes.tokens, "patches": shapes.patches,
                "labels": shapes.labels
            },
            "least": self.least.iter().map(|way| {
                serde_json::json!({ "total": way.plan.total(), "flags": self.settings_of(way) })
            }).collect::<Vec<_>>(),
            "blocks": self.plan.blocks,
            "recomputed_blocks": self.plan.recomputed_blocks,
        })
    }

    /// The figures for people.
    pub fn text(&self, style: Style) -> String {
        let PlanReport { name, config, model, load, plan, .. } = self;
        let all: usize = parameters(model).iter().map(|parameter| parameter.elements()).sum();
        let what = match config.method {
            Method::Full => "all weights trained".to_owned(),
            Method::Lora => format!("LoRA r {}: {} trained", config.lora.r, count(plan.adapters / 4)),
        };
        let mut out = format!("{name}, {} parameters, {what}\n", count(all));
        out.push_str(&format!(
            "longest batch: {}, {}, {}, {}\n",
            counted(config.batch_size, "row"),
            counted(load.shapes.tokens as u64, "token"),
            counted(load.shapes.patches as u64, "patch"),
            counted(load.shapes.labels as u64, "label")
        ));
        out.push_str(&format!("recomputed: {} of {} blocks\n\n", plan.recomputed_blocks, plan.blocks));
        self.draw(&mut out, style);
        out.push_str(&self.verdict(style));
        let smaller = self.least.iter().filter(|way| way.plan.total() < plan.total());
        for way in smaller {
            let total = ByteSize(way.plan.total() as u64);
            let _ = writeln!(out, "less would do: {total} with {}", self.settings_of(way).join(" "));
        }
        out
    }

    fn settings_of(&self, way: &Least) -> Vec<String> {
        way.settings.iter().map(self.written).collect()
    }

    /// Draws a bar for each part, from where it begins to where it ends in the whole, and the line of the
    /// limit below.
    fn draw(&self, out: &mut String, style: Style) {
        const LABELS: usize = 24;
        let width = style.width.clamp(60, 110) - LABELS - 1;
        let total = self.plan.total();
        // The machine's end is shown if it is in sight of the plan.
        let end = self.limit().map_or(total, |(limit, _)| (limit as usize).min(2 * total).max(total)).max(1);
        let place = |bytes: usize| bytes as f64 * width as f64 / end as f64;
        let mut before = 0;
        for (index, (name, bytes)) in self.plan.parts().into_iter().enumerate() {
            let bar = paint(&bar(place(before), place(before + bytes)), COLOURS[index], style);
            out.push_str(&format!("{name:<12} {:>9}  {bar}\n", ByteSize(bytes as u64).to_string()));
            before += bytes;
        }
        let axis = "─".repeat(place(total).round() as usize);
        let rest = "╌".repeat(width.saturating_sub(axis.chars().count()));
        out.push_str(&format!("{:<12} {:>9}  {axis}┤{rest}\n", "total", ByteSize(total as u64).to_string()));
    }

    fn verdict(&self, style: Style) -> String {
        let Some((limit, whose)) = self.limit() else { return String::new() };
        let total = self.plan.total() as u64;
        let (word, code) = if self.fits() { ("fits", "1;32") } else { ("does not fit", "1;31") };
        let word = paint(word, code, style);
        let difference = ByteSize(limit.abs_diff(total));
        let side = if self.fits() { "left" } else { "too much" };
        format!("\n{word}: {} {whose}, {difference} {side}\n", ByteSize(limit))
    }
}

/// One colour for each part, in their order; neighbours are easy to tell apart.
const COLOURS: [&str; 9] = ["90", "34", "36", "32", "33", "35", "31", "94", "96"];

fn paint(text: &str, code: &str, style: Style) -> String {
    if style.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A bar from one place to another, in eighths of a character at its end; the thinnest is an eighth.
fn bar(from: f64, to: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let start = from.floor() as usize;
    let eighths = (((to - start as f64) * 8.0).round() as usize).max(1);
    format!("{}{}{}", " ".repeat(start), "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// `3.75 billion`, `41.1 million`.
fn count(number: usize) -> String {
    match number as f64 {
        number if number >= 1e9 => format!("{:.2} billion", number / 1e9),
        number if number >= 1e6 => format!("{:.1} million", number / 1e6),
        _ => grouped(number as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn bars_begin_where_the_last_one_ended() {
        assert_eq!(bar(0.0, 2.5), "██▌");
        assert_eq!(bar(2.5, 4.0), "  ██");
        assert_eq!(bar(3.0, 3.0), "   ▏");
    }
}
