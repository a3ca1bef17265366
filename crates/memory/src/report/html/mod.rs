//! One self-contained page that compares runs: charts to hover and zoom, numbers, evidence, advice.
//!
//! Runs come in, a page goes out that opens offline: script, style and data are inside. The script of the charts is
//! plotly.js, as the `plotly` crate carries it.

use super::{
    Run,
    scale::{bytes, duration},
    svg::escape,
};
use crate::{
    Assessment, Ending, Verdict,
    verdict::{Axis, Bin},
};
use serde_json::{Value, json};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page.
pub fn html(runs: &[Run]) -> String {
    let title = match runs {
        [run] => format!("Memory of {}", run.name),
        _ => format!("Memory of {} runs", runs.len()),
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n{}\n</head>\n<body>\n<header><h1>{title}</h1><button id=\"theme\" type=\"button\">dark / light</button></header>\n<main>\n",
        plotly_script(),
        title = escape(&title),
    );
    if runs.len() > 1 {
        comparison(&mut out, runs);
    }
    for (index, run) in runs.iter().enumerate() {
        section(&mut out, index, run);
    }
    let data = Value::Array(runs.iter().map(data).collect()).to_string().replace("</", "<\\/");
    let _ = write!(
        out,
        "</main>\n<footer>Sizes are decimal: 1 GB is 10<sup>9</sup> bytes. Made by Model Garden.</footer>\n\
         <script id=\"runs\" type=\"application/json\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    );
    out
}

/// The charting script alone; the crate also hands out one for formulas, which would double the page.
fn plotly_script() -> String {
    const END: &str = "</script>";
    let scripts = plotly::Plot::offline_js_sources();
    let end = scripts.find(END).map_or(scripts.len(), |at| at + END.len());
    scripts[..end].to_owned()
}

fn comparison(out: &mut String, runs: &[Run]) {
    out.push_str(
        "<section><h2>Side by side</h2>\n<div class=\"switch\" id=\"axis\"><button type=\"button\" data-axis=\"x\" class=\"on\">steps</button>\
         <button type=\"button\" data-axis=\"minutes\">minutes</button></div>\n<div class=\"chart tall\" id=\"together\"></div>\n<div class=\"wide\"><table>\n\
         <thead><tr><th>run<th>verdict<th>sure<th>per step<th>per sample<th>per minute<th>plateau<th>limit reached</tr></thead>\n<tbody>\n",
    );
    for (index, run) in runs.iter().enumerate() {
        let found = &run.assessment;
        let size = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("+{}", bytes(value)));
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#run{index}\">{}</a><td>{}<td>{:.0} %<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escape(&run.name),
            badge(found.verdict),
            found.confidence * 100.0,
            size(found.growth_per_step),
            size(found.growth_per_sample),
            size(found.growth_per_minute),
            found.plateau.map_or("-".to_owned(), |plateau| bytes(plateau.bytes as f64)),
            limit_reached(found),
        );
    }
    out.push_str("</tbody></table></div></section>\n");
}

fn badge(verdict: Verdict) -> String {
    format!("<span class=\"badge {name}\">{name}</span>", name = verdict.name())
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

fn section(out: &mut String, index: usize, run: &Run) {
    let found = &run.assessment;
    let _ = write!(
        out,
        "<section id=\"run{index}\"><h2>{} {}</h2>\n<p class=\"lead\">{}.</p>\n<div class=\"facts\">",
        escape(&run.name),
        badge(found.verdict),
        capitalised(found.verdict.meaning()),
    );
    for (name, value) in figures(run) {
        let _ = write!(out, "<div><b>{}</b><span>{name}</span></div>", escape(&value));
    }
    let _ = write!(out, "</div>\n<div class=\"chart\" id=\"chart{index}\"></div>\n<div class=\"columns\">");
    sentences(out, "Evidence", &found.evidence);
    if !found.endings.is_empty() {
        sentences(out, "How it may end", &found.endings.iter().map(ending).collect::<Vec<_>>());
    }
    sentences(out, "What to do", &found.advice);
    out.push_str("</div></section>\n");
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn figures(run: &Run) -> Vec<(&'static str, String)> {
    let found = &run.assessment;
    let mut figures = Vec::new();
    let mut add = |name, value: Option<String>| figures.extend(value.map(|value| (name, value)));
    let rate = |rate: Option<f64>| rate.map(|rate| format!("+{}", bytes(rate)));
    add("per step", rate(found.growth_per_step));
    add("per sample", rate(found.growth_per_sample));
    add("per minute", rate(found.growth_per_minute));
    add("plateau", found.plateau.map(|plateau| bytes(plateau.bytes as f64)));
    add("limit reached", found.exhaustion.map(|_| limit_reached(found)));
    add("can be told from step", found.decidable_at_step.map(|step| step.to_string()));
    let sure = (found.verdict != Verdict::Undecided).then(|| format!("{:.0} %", found.confidence * 100.0));
    add("sure", sure);
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

fn sentences(out: &mut String, title: &str, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    let _ = write!(out, "<div><h3>{title}</h3><ul>");
    for sentence in sentences {
        let _ = write!(out, "<li>{}</li>", escape(sentence));
    }
    out.push_str("</ul></div>");
}

/// What the page's script draws.
fn data(run: &Run) -> Value {
    let trail = run.analyst.trail();
    let column = |value: fn(&Bin) -> f64| trail.run.iter().map(value).collect::<Vec<f64>>();
    let whole = |value: fn(&Bin) -> f64| trail.run.iter().map(|bin| value(bin).round()).collect::<Vec<f64>>();
    json!({
        "name": run.name,
        "steps": trail.axis == Axis::Steps,
        "x": column(Bin::mid_x),
        "minutes": column(|bin| bin.seconds.0 / 60.0),
        "owned": whole(|bin| bin.mean().owned),
        "low": whole(|bin| bin.low),
        "high": whole(|bin| bin.high),
        "anon": whole(|bin| bin.mean().anon),
        "shmem": whole(|bin| bin.mean().shmem),
        "swap": whole(|bin| bin.mean().swap),
        "file": whole(|bin| bin.mean().file),
        "epochEnd": trail.epoch_end,
        "plateau": run.assessment.plateau,
        "limit": run.analyst.facts().limit,
    })
}
