//! The report of a run: one page with its curves, its memory verdict, and what it answers.
//!
//! The page is built of the same parts as the memory report (`garden_memory::report::page`) and opens without
//! a network.

use super::summary::FinishedRun;
use base64::{Engine, prelude::BASE64_STANDARD};
use garden_memory::{
    Axis,
    report::{Chart, Colour, Epochs, Level, Line, Meaning, Page, Unit, escape},
};
use std::{
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
};

/// The report's name in the run's folder.
pub const REPORT: &str = "report.html";
/// The longest figure that is shown large, in characters.
const LONGEST_FIGURE: usize = 20;
/// Marks where examples go: they are added after the run.
const EXAMPLES_HERE: &str = "<!-- examples -->";

/// An image, the right answer, and what the model said.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Example {
    /// The image's file.
    pub image: PathBuf,
    /// The right answer.
    pub right: String,
    /// The model's answer.
    pub given: String,
}

impl FinishedRun<'_> {
    /// The page.
    pub(super) fn report(&self) -> String {
        let assessment = &self.memory.assessment;
        let mut page = Page::new("Training report");
        page.section("results", "Results", None);
        page.lead(&self.memory.verdict.to_string());
        // Short figures are shown large, longer ones in a table.
        let (figures, longer): (Vec<_>, Vec<_>) =
            self.results().into_iter().partition(|(_, value)| value.chars().count() <= LONGEST_FIGURE);
        page.facts(&figures);
        let rows = longer.iter().map(|(name, value)| vec![escape(name), escape(value)]);
        let rows: Vec<Vec<String>> = rows.collect();
        page.markup("<div class=\"charts\">\n");
        for chart in self.charts() {
            page.chart(chart);
        }
        page.markup("</div>\n");
        page.table(&[], &rows);
        page.end_section();
        page.markup(EXAMPLES_HERE);
        page.section("memory", "Memory", Some(assessment.verdict.name()));
        page.lists(&[("What to do", &assessment.advice), ("Evidence", &assessment.evidence)]);
        page.end_section();
        page.section("settings", "Settings", None);
        page.folded("All settings of the run", &self.settings());
        page.end_section();
        page.finish()
    }

    fn charts(&self) -> Vec<Chart> {
        let one = |title: &str, summary: &str, key: &str, unit| {
            let line = Line::through(title, Colour::Nth(0), &self.state.series(key));
            let mut chart = Chart::new(title, Axis::Steps, unit, vec![line]);
            summary.clone_into(&mut chart.summary);
            chart.from_zero = true;
            chart.epochs = self.epochs();
            chart
        };
        vec![
            self.loss_chart(),
            self.memory_chart(),
            one(
                "Evaluation accuracy",
                "Labelled tokens that are the likeliest one",
                "eval_token_accuracy",
                Unit::Share,
            ),
            one("Learning rate", "As scheduled", "learning_rate", Unit::Number),
            one("Throughput", "Tokens per second", "tokens_per_second", Unit::Number),
        ]
    }

    fn memory_chart(&self) -> Chart {
        let line = Line::through("resident", Colour::Nth(0), &self.memory.curve);
        let mut chart = Chart::new("Memory", Axis::Steps, Unit::Bytes, vec![line]);
        let whose = if self.memory.processes > 1 { "run's last process" } else { "run" };
        chart.summary = format!("Resident memory of the {whose}");
        chart.from_zero = true;
        chart.epochs = self.epochs();
        let levels = [
            ("plan", self.memory.verdict.plan_bytes, Meaning::Plan),
            ("limit", self.memory.limit, Meaning::Limit),
        ];
        for (name, bytes, meaning) in levels {
            if let Some(bytes) = bytes {
                chart.add_level(Level::bytes(name, bytes, meaning));
            }
        }
        chart
    }

    /// Where epochs end, as far as the run has come.
    pub(super) fn epochs(&self) -> Option<Epochs> {
        let steps = self.state.global_step as f64 / self.state.epoch;
        (steps.is_finite() && steps > 0.0).then_some(Epochs { first_end: steps, steps })
    }
}

/// Adds what the model answers to the report in a run's folder; images are inside the page.
pub fn add_examples(folder: &Path, examples: &[Example]) -> io::Result<()> {
    let path = folder.join(REPORT);
    let page = fs::read_to_string(&path)?;
    let mut section = String::from(
        "<section id=\"examples\"><h2>Example answers</h2>\n<p>Images that were not trained on.</p>\n<ul class=\"answers\">\n",
    );
    for example in examples {
        let image = BASE64_STANDARD.encode(fs::read(&example.image)?);
        let kind = if example.image.extension().is_some_and(|kind| kind == "png") { "png" } else { "jpeg" };
        let (right, given) = (escape(&example.right), escape(&example.given));
        let verdict = if example.right == example.given { "right" } else { "wrong" };
        let _ = write!(
            section,
            "<li><img alt=\"an image whose right answer is {right}\" src=\"data:image/{kind};base64,{image}\">\
             <p>{given} <span class=\"{verdict}\">{verdict}</span></p>"
        );
        if verdict == "wrong" {
            let _ = write!(section, "<p>the right answer is {right}</p>");
        }
        section.push_str("</li>\n");
    }
    section.push_str("</ul></section>\n");
    garden_files::write(&path, page.replacen(EXAMPLES_HERE, &section, 1).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stand_in_the_page_with_their_images() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("000001.png");
        fs::write(&image, b"not really a png").unwrap();
        fs::write(folder.path().join(REPORT), format!("<main>{EXAMPLES_HERE}</main>")).unwrap();
        let example = |right: &str, given: &str| Example {
            image: image.clone(),
            right: right.into(),
            given: given.into(),
        };
        add_examples(folder.path(), &[example("red", "red"), example("green", "<b>")]).unwrap();
        let page = fs::read_to_string(folder.path().join(REPORT)).unwrap();
        assert_eq!(page.matches("src=\"data:image/png;base64,bm90").count(), 2, "{page}");
        assert!(page.contains("<p>red <span class=\"right\">right</span></p></li>"), "{page}");
        assert!(
            page.contains(
                "<p>&lt;b&gt; <span class=\"wrong\">wrong</span></p><p>the right answer is green</p>"
            )
        );
    }
}
