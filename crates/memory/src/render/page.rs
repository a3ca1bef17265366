//! A page of words and charts that stands on its own.
//!
//! Script, style and data are inside, so a page opens from a disk without a network, and its policy forbids
//! the browser to ask for anything. Charts are drawn by uPlot (`assets/uplot`) through one script
//! (`assets/page.js`), which serves the memory report and the report of a training run alike.

use super::{
    chart::{Chart, Line, palette},
    scale::{duration, number},
    svg::escape,
};
use crate::{sentence::Sentence, verdict::Axis};
use std::fmt::Write;

const UPLOT_SCRIPT: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../../assets/uplot/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("../../assets/uplot/LICENSE");
const STYLE: &str = include_str!("../../assets/page.css");
const SCRIPT: &str = include_str!("../../assets/page.js");
/// Nothing is fetched, and only the script inside runs.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
/// Rows of the table that stands behind a chart.
const TABLE_ROWS: usize = 9;

/// A page that is being written, from top to bottom.
pub struct Page {
    title: String,
    body: String,
    charts: Vec<Chart>,
}

impl Page {
    /// A page with this heading.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), body: String::new(), charts: Vec::new() }
    }

    /// Begins a section; `badge` is a word beside its heading, with the colour class it has.
    pub fn section(&mut self, id: &str, heading: &str, badge: Option<&str>) {
        let badge = badge.map(|word| format!(" {}", self::badge(word))).unwrap_or_default();
        let heading = escape(heading);
        let _ = writeln!(self.body, "<section id=\"{id}\"><h2>{heading}{badge}</h2>");
    }

    /// Ends the section.
    pub fn end_section(&mut self) {
        self.body.push_str("</section>\n");
    }

    /// The sentence that matters most.
    pub fn lead(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"lead\">{}</p>", escape(text));
    }

    /// Figures with their names.
    pub fn facts(&mut self, facts: &[(&str, String)]) {
        self.body.push_str("<dl class=\"facts\">");
        for (name, value) in facts {
            let _ = write!(self.body, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
        }
        self.body.push_str("</dl>\n");
    }

    /// Lists of sentences side by side; empty ones are left out.
    pub fn lists(&mut self, lists: &[(&str, &[Sentence])]) {
        self.body.push_str("<div class=\"columns\">");
        for (title, sentences) in lists.iter().filter(|(_, sentences)| !sentences.is_empty()) {
            let _ = write!(self.body, "<div><h3>{title}</h3><ul>");
            for sentence in *sentences {
                let _ = write!(self.body, "<li>{}</li>", escape(sentence.as_str()));
            }
            self.body.push_str("</ul></div>");
        }
        self.body.push_str("</div>\n");
    }

    /// A table, with or without a head; its cells are markup.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.body.push_str("<div class=\"wide\" tabindex=\"0\"><table>\n");
        if !head.is_empty() {
            let _ = writeln!(
                self.body,
                "<thead><tr><th scope=\"col\">{}</th></tr></thead>",
                head.join("</th><th scope=\"col\">")
            );
        }
        self.body.push_str("<tbody>\n");
        for row in rows {
            let _ = writeln!(self.body, "<tr><td>{}</td></tr>", row.join("</td><td>"));
        }
        self.body.push_str("</tbody></table></div>\n");
    }

    /// Text as it is, behind a line that opens it.
    pub fn folded(&mut self, title: &str, text: &str) {
        let (title, text) = (escape(title), escape(text));
        let _ = writeln!(self.body, "<details><summary>{title}</summary><pre>{text}</pre></details>");
    }

    /// Markup of the caller's own.
    pub fn markup(&mut self, markup: &str) {
        self.body.push_str(markup);
    }

    /// A chart; nothing where it has no point.
    pub fn chart(&mut self, chart: Chart) {
        if !chart.has_points() {
            return;
        }
        let index = self.charts.len();
        let (title, summary) = (escape(&chart.title), escape(&chart.summary));
        let _ = writeln!(
            self.body,
            "<figure class=\"chart\" data-chart=\"{index}\"><figcaption><h3 id=\"chart{index}\">{title}</h3>\
             <p>{summary}</p></figcaption><noscript>The curve needs scripts; its values stand below.</noscript>"
        );
        self.values(&chart);
        self.body.push_str("</figure>\n");
        self.charts.push(chart);
    }

    /// Some values of a chart as a table, for those who do not see the curve, and for paper.
    fn values(&mut self, chart: &Chart) {
        let mut places: Vec<f64> =
            chart.lines.iter().flat_map(|line| line.points().map(|(x, _)| x)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let last = places.len().saturating_sub(1);
        let rows = TABLE_ROWS.min(places.len());
        let chosen = (0..rows).map(|row| places[row * last / rows.saturating_sub(1).max(1)]);
        let steps = chart.axis == Axis::Steps;
        let mut head = vec![if steps { "step".to_owned() } else { "time".to_owned() }];
        head.extend(chart.lines.iter().map(|line| escape(&line.name)));
        let body: Vec<Vec<String>> = chosen
            .map(|place| {
                let mut row = vec![if steps { number(place.round()) } else { duration(place) }];
                row.extend(chart.lines.iter().map(|line| {
                    value_at(line, place).map_or("-".to_owned(), |value| escape(&chart.unit.write(value)))
                }));
                row
            })
            .collect();
        self.body.push_str("<details class=\"values\"><summary>Values</summary>");
        self.table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &body);
        self.body.push_str("</details>\n");
    }

    /// The whole page.
    pub fn finish(self) -> String {
        // Markup cannot end the element that holds the data, whatever a run is called.
        let data = serde_json::to_string(&self.charts).unwrap_or_default().replace('<', "\\u003c");
        let licence = UPLOT_LICENCE.replace("--", "- -");
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>{UPLOT_STYLE}{variables}{STYLE}</style>\n</head>\n<body>\n\
             <header><h1>{title}</h1><button id=\"theme\" type=\"button\" hidden>Dark</button></header>\n\
             <main>\n{body}</main>\n\
             <footer>Sizes are decimal: 1 GB is 10<sup>9</sup> bytes. Made by Model Garden; curves by uPlot.</footer>\n\
             <p id=\"spoken\" class=\"unseen\" aria-live=\"polite\"></p>\n\
             <script id=\"charts\" type=\"application/json\">{data}</script>\n\
             <!-- uPlot\n{licence}-->\n<script>{UPLOT_SCRIPT}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
            title = escape(&self.title),
            variables = palette::variables(":root"),
            body = self.body,
        )
    }
}

/// The height of a line's curve at a place: straight between two points, nothing before the first and after
/// the last.
fn value_at(line: &Line, place: f64) -> Option<f64> {
    let (x0, y0) = line.points().rfind(|(x, _)| *x <= place)?;
    let (x1, y1) = line.points().find(|(x, _)| *x >= place)?;
    Some(if x1 > x0 { y0 + (y1 - y0) * (place - x0) / (x1 - x0) } else { y0 })
}

/// A word in the colour of the class with its name.
pub(crate) fn badge(word: &str) -> String {
    format!("<span class=\"badge {word}\">{word}</span>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::chart::{Colour, Unit};

    #[test]
    fn a_name_cannot_end_the_script_that_holds_it() {
        let mut page = Page::new("</title><b>");
        let line = Line::through("</script><b>", Colour::Nth(0), &[(0.0, 1.0), (1.0, 2.0)]);
        page.chart(Chart::new("<!--", Axis::Steps, Unit::Number, vec![line]));
        let html = page.finish();
        assert!(!html.contains("<b>") && !html.contains("<title><"), "{}", &html[html.len() - 400..]);
        assert_eq!(html.matches("</script>").count(), 3);
        assert_eq!(html.matches("<!--").count(), 1, "only the licence's own");
    }

    #[test]
    fn lines_with_points_at_different_places_are_told_at_all_of_them() {
        let mut page = Page::new("a");
        let training = Line::through("training", Colour::Nth(0), &[(5.0, 8.0), (15.0, 4.0)]);
        let evaluation = Line::through("evaluation", Colour::Nth(1), &[(4.0, 9.0), (10.0, 6.0)]);
        page.chart(Chart::new("m", Axis::Steps, Unit::Number, vec![training, evaluation]));
        let html = page.finish();
        for row in [["4", "-", "9"], ["5", "8", "8.5"], ["10", "6", "6"], ["15", "4", "-"]] {
            let row = row.map(|cell| format!("<td>{cell}</td>")).concat();
            assert!(html.contains(&row), "{row}");
        }
    }

    #[test]
    fn values_are_told_in_a_table_too() {
        let mut page = Page::new("a");
        let points: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i), f64::from(i) * 1e9)).collect();
        let line = Line::through("memory", Colour::Nth(0), &points);
        page.chart(Chart::new("m", Axis::Steps, Unit::Bytes, vec![line]));
        let html = page.finish();
        for text in ["<td>0</td><td>0 B</td>", "<td>99</td><td>99.0 GB</td>", ">memory</th>"] {
            assert!(html.contains(text), "{text}");
        }
    }
}
