//! The page about the memory of one or more runs: the verdict in words, its curve, what to do, and why.

use super::{
    Run,
    curves::{self, capitalised},
    page::{Page, badge},
    scale::{bytes, duration},
    svg::escape,
};
use crate::{Assessment, Ending, Verdict, sentence::Sentence};

/// Writes the page.
pub fn html(runs: &[Run]) -> String {
    html_with(runs, &[])
}

/// Writes the page with texts of the caller's own below the runs, each a title and lines that stay as they are.
pub fn html_with(runs: &[Run], texts: &[(&str, &str)]) -> String {
    let title = match runs {
        [run] => format!("Memory of {}", run.name),
        _ => format!("Memory of {} runs", runs.len()),
    };
    let mut page = Page::new(&title);
    if runs.len() > 1 {
        comparison(&mut page, runs);
    }
    for (index, run) in runs.iter().enumerate() {
        section(&mut page, index, run);
    }
    for (index, (title, text)) in texts.iter().enumerate() {
        page.section(&format!("text{index}"), title, None);
        page.markup(&format!("<div class=\"wide\" tabindex=\"0\"><pre>{}</pre></div>\n", escape(text)));
        page.end_section();
    }
    page.finish()
}

fn comparison(page: &mut Page, runs: &[Run]) {
    page.section("together", "Side by side", None);
    let head =
        ["run", "verdict", "ending", "per step", "per sample", "per minute", "plateau", "limit reached"];
    let rows: Vec<Vec<String>> = runs
        .iter()
        .enumerate()
        .map(|(index, run)| {
            let found = &run.assessment;
            let size = |value: Option<f64>| value.map_or("-".to_owned(), rate);
            vec![
                format!("<a href=\"#run{index}\">{}</a>", escape(&run.name)),
                badge(found.verdict.name()),
                found.ending(),
                size(found.growth_per_step),
                size(found.growth_per_sample),
                size(found.growth_per_minute),
                found.plateau.map_or("-".to_owned(), |plateau| bytes(plateau.bytes as f64)),
                limit_reached(found),
            ]
        })
        .collect();
    if let Some(chart) = curves::together(runs) {
        page.chart(chart);
    }
    page.table(&head, &rows);
    page.end_section();
}

/// A rate with its sign.
fn rate(rate: f64) -> String {
    let sign = if rate < 0.0 { "-" } else { "+" };
    format!("{sign}{}", bytes(rate.abs()))
}

fn limit_reached(found: &Assessment) -> String {
    match &found.exhaustion {
        Some(exhaustion) => match (exhaustion.step, exhaustion.seconds) {
            (Some(step), _) => format!("step {step}"),
            (None, Some(seconds)) => format!("in {}", duration(seconds)),
            _ => "-".to_owned(),
        },
        None => "-".to_owned(),
    }
}

fn section(page: &mut Page, index: usize, run: &Run) {
    let found = &run.assessment;
    page.section(&format!("run{index}"), &run.name, Some(found.verdict.name()));
    page.lead(&format!("{} ({}).", capitalised(found.meaning), found.ending()));
    page.facts(&figures(run));
    let mut chart = curves::one(run);
    "Memory".clone_into(&mut chart.title);
    "The whole process tree; the verdict is about memory of its own".clone_into(&mut chart.summary);
    page.chart(chart);
    let endings: Vec<Sentence> = found.endings.iter().map(|it| ending(it).into()).collect();
    page.lists(&[("What to do", &found.advice), ("How it may end", &endings), ("Evidence", &found.evidence)]);
    page.end_section();
}

fn figures(run: &Run) -> Vec<(&'static str, String)> {
    let found = &run.assessment;
    let mut figures = Vec::new();
    let mut add = |name, value: Option<String>| figures.extend(value.map(|value| (name, value)));
    add("per step", found.growth_per_step.map(rate));
    add("per sample", found.growth_per_sample.map(rate));
    add("per minute", found.growth_per_minute.map(rate));
    let level = if found.verdict == Verdict::Steady { "level" } else { "plateau" };
    add(level, found.plateau.map(|plateau| bytes(plateau.bytes as f64)));
    add("limit", run.analyst.facts().limit.map(|limit| bytes(limit as f64)));
    add("limit reached", found.exhaustion.map(|_| limit_reached(found)));
    add("can be told from step", found.decidable_at_step.map(|step| step.to_string()));
    add("samples", Some(run.analyst.samples().to_string()));
    figures
}

fn ending(ending: &Ending) -> String {
    let plateau = ending.plateau.map(|plateau| {
        format!(
            "{} ({} to {})",
            bytes(plateau.bytes as f64),
            bytes(plateau.low as f64),
            bytes(plateau.high as f64)
        )
    });
    let step = ending
        .exhaustion
        .and_then(|exhaustion| exhaustion.step)
        .map(|step| format!("limit reached at step {step}"));
    let parts: Vec<String> = plateau.into_iter().chain(step).collect();
    let parts = if parts.is_empty() { "no figure yet".to_owned() } else { parts.join(", ") };
    format!("{} ({:.0} %): {parts}", capitalised(ending.verdict.name()), ending.probability * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Analyst, RunFacts, Sample};

    /// A run of a million samples in which every kind of memory moves.
    fn long_run() -> Run {
        let facts =
            RunFacts { steps_per_epoch: Some(10_000.0), limit: Some(9_000_000_000), ..RunFacts::default() };
        let mut analyst = Analyst::new(facts);
        for i in 0..1_000_000_u64 {
            let noise = i.wrapping_mul(2_654_435_761) % 50_000_000;
            let (anon, file, shmem, swap) = (5_000_000_000 + noise, 700_000_000 + noise, 300_000_000 + i, i);
            let rss = anon + file + shmem;
            let (t, step) = (i as f64 / 9.7, Some(i / 7));
            analyst.push(&Sample { t, step, rss, anon, file, shmem, swap, ..Sample::default() });
        }
        Run { name: "long".into(), assessment: analyst.assessment(), analyst }
    }

    #[test]
    fn the_page_of_a_million_samples_is_less_than_a_megabyte() {
        let page = html(&[long_run()]);
        assert!(page.len() < 1_000_000, "{} bytes", page.len());
        for line in ["memory of its own", "anonymous", "shared", "swapped out", "file-backed"] {
            assert!(page.contains(&format!("\"name\":\"{line}")), "{line}");
        }
    }

    #[test]
    fn texts_of_the_caller_stand_below_the_runs_and_are_no_markup() {
        let page = html_with(&[long_run()], &[("Who holds it", "663 <lambda>\nheld by 'rows'")]);
        let text = page.find("663 &lt;lambda&gt;\nheld by 'rows'").unwrap();
        assert!(page.find("id=\"run0\"").unwrap() < text);
    }

    #[test]
    fn the_verdict_comes_first_then_the_curve_the_advice_and_the_evidence() {
        let mut run = long_run();
        (run.assessment.advice, run.assessment.evidence) =
            (vec!["Do this.".into()], vec!["For that.".into()]);
        let page = html(&[run]);
        let places =
            ["class=\"lead\"", "<figure", "Do this.", "For that."].map(|part| page.find(part).unwrap());
        assert!(places.is_sorted(), "{places:?}");
    }
}
