//! The panels of the live screen, each a function of a reading.
//!
//! In come a frame, a place and a reading; out goes ink. Nothing here remembers anything, so a frame can be drawn to a
//! test's buffer as well as to a terminal.

use super::{
    history::{History, Phase},
    screen::clock,
    summary,
};
use garden_memory::{ByteSize, Verdict, probe::Kinds, probe::ProcessRow, record::Reading};
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    symbols::Marker,
    text::{Line, Span},
    widgets::{Axis, Block, BorderType, Cell, Chart, Dataset, GraphType, Paragraph, Row, Table, Wrap},
};

const ANON: Color = Color::Cyan;
const SHARED: Color = Color::Magenta;
const FILE: Color = Color::DarkGray;
const SWAP: Color = Color::Red;
const QUIET: Style = Style::new().fg(Color::DarkGray);
/// Width of the bar that shows a process's memory by kind.
const BAR: usize = 20;
/// The curve's column of sizes on the left.
const SIZES: u16 = 9;

/// The colour of a verdict: green is well, yellow is open, red is bad.
fn colour(verdict: Verdict) -> Color {
    match verdict {
        Verdict::Steady | Verdict::WarmUp => Color::Green,
        Verdict::Fill => Color::Blue,
        Verdict::Undecided => Color::Yellow,
        Verdict::Leak => Color::Red,
    }
}

fn panel(title: &str) -> Block<'_> {
    Block::bordered().border_type(BorderType::Rounded).border_style(QUIET).title(format!(" {title} ").bold())
}

/// The command, and where it stands.
pub fn title(frame: &mut Frame, area: Rect, reading: &Reading) {
    let sample = &reading.snapshot.sample;
    let root = reading.snapshot.processes.first();
    let name = root.map(|root| format!(" {} {}", root.pid, root.command)).unwrap_or_default();
    let mut place = vec![clock(sample.t)];
    place.extend(sample.step.map(|step| format!("step {step}")));
    place.extend(sample.epoch.map(|epoch| format!("epoch {epoch:.2}")));
    let place = place.join(" · ") + " ";
    let width = u16::try_from(place.chars().count()).unwrap_or(u16::MAX);
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let heading = Line::from(vec![" model-garden ".bold().black().on_green(), name.into()]);
    frame.render_widget(Paragraph::new(heading), left);
    frame.render_widget(Paragraph::new(place.bold()).alignment(Alignment::Right), right);
}

/// The curve, with its phases above it, its limit and plateau across it.
pub fn chart(frame: &mut Frame, area: Rect, history: &History, reading: &Reading) {
    let block = panel("memory of the tree");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [ribbon_area, plot] = Layout::vertical([Constraint::Length(1), Constraint::Min(3)]).areas(inside);
    let points = history.points();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    let start = first.t;
    let end = last.t.max(start + 1.0);
    let owned: Vec<(f64, f64)> = points.iter().map(|point| (point.t, point.owned)).collect();
    let file: Vec<(f64, f64)> = points.iter().map(|point| (point.t, point.file)).collect();
    let highest = points.iter().map(|point| point.owned.max(point.file)).fold(0.0, f64::max);
    let plateau = reading.assessment.plateau.map(|plateau| plateau.bytes as f64);
    let limit = reading.facts.limit.map(|limit| limit as f64);
    // A line that is far above would flatten the curve: it shows once the curve comes near.
    let near = |level: &f64| *level <= 2.5 * highest;
    let (plateau, limit) = (plateau.filter(near), limit.filter(near));
    let top = nice_top(
        [Some(highest * 1.05), plateau.map(|p| p * 1.03), limit.map(|l| l * 1.03)]
            .into_iter()
            .flatten()
            .fold(1e6, f64::max),
    );

    let across =
        |level: Option<f64>| level.map(|level| vec![(start, level), (end, level)]).unwrap_or_default();
    let (plateau_line, limit_line) = (across(plateau), across(limit));
    let marks: Vec<Vec<(f64, f64)>> =
        history.phases().iter().skip(1).map(|phase| vec![(phase.since, 0.0), (phase.since, top)]).collect();
    let line = |data, colour: Color| {
        Dataset::default()
            .data(data)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(colour))
    };
    let mut datasets: Vec<Dataset> = marks.iter().map(|mark| line(mark, Color::DarkGray)).collect();
    datasets.extend([
        line(&file, FILE),
        line(&limit_line, Color::Red),
        line(&plateau_line, Color::Blue),
        line(&owned, colour(reading.assessment.verdict)),
    ]);
    let size = |bytes: f64| {
        format!("{:>width$}", ByteSize(bytes as u64).to_string(), width = usize::from(SIZES) - 1)
    };
    let time = |at: f64| clock(at).fg(Color::DarkGray);
    let widget = Chart::new(datasets)
        .x_axis(Axis::default().bounds([start, end]).style(QUIET).labels([
            time(start),
            time((start + end) / 2.0),
            time(end),
        ]))
        .y_axis(Axis::default().bounds([0.0, top]).style(QUIET).labels([
            size(0.0),
            size(top / 2.0),
            size(top),
        ]))
        .legend_position(None);
    frame.render_widget(widget, plot);
    let [_, ribbon_area] =
        Layout::horizontal([Constraint::Length(SIZES), Constraint::Min(0)]).areas(ribbon_area);
    frame.render_widget(Paragraph::new(ribbon(history.phases(), start, end, ribbon_area.width)), ribbon_area);
}

/// The next round number above `bytes`: 1, 2, 2.5 or 5 of a power of ten.
fn nice_top(bytes: f64) -> f64 {
    let power = 10f64.powf(bytes.log10().floor());
    [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|top| *top >= bytes)
        .unwrap_or(bytes)
}

/// The phases as one line over the curve, each as wide as it took.
fn ribbon(phases: &[Phase], start: f64, end: f64, width: u16) -> Line<'static> {
    let column = |t: f64| {
        ((t - start) / (end - start) * f64::from(width)).round().clamp(0.0, f64::from(width)) as usize
    };
    let shades = [Color::Green, Color::Blue];
    let mut spans = Vec::new();
    for (index, phase) in phases.iter().enumerate() {
        let until = phases.get(index + 1).map_or(end, |next| next.since);
        let room = column(until).saturating_sub(column(phase.since));
        let name = if phase.name.len() < room { phase.name.as_str() } else { "" };
        let style = if phase.name == "start-up" {
            Style::new().black().bg(Color::DarkGray)
        } else {
            Style::new().black().bg(shades[index % 2])
        };
        spans.push(Span::styled(format!("{name:^room$}"), style));
    }
    Line::from(spans)
}

/// The verdict, what lies ahead, and why.
pub fn verdict(frame: &mut Frame, area: Rect, reading: &Reading) {
    let assessment = &reading.assessment;
    let colour = colour(assessment.verdict);
    let mut lines = vec![
        Line::from(summary::headline(assessment).to_uppercase().fg(colour).bold()),
        Line::from(memory_now(reading)),
        Line::default(),
    ];
    lines.extend(summary::forecast(assessment).into_iter().map(|line| Line::from(line.bold())));
    lines.extend(assessment.evidence.iter().map(|line| Line::from(line.clone())));
    lines.extend(assessment.advice.iter().map(|line| Line::from(vec!["→ ".fg(colour), line.clone().into()])));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(panel("verdict")), area);
}

fn memory_now(reading: &Reading) -> String {
    let owned = reading.snapshot.sample.owned();
    let now = format!("{} now, {} at the most", ByteSize(owned), ByteSize(reading.snapshot.peak));
    match reading.facts.limit {
        Some(limit) => format!("{now}, of {}", ByteSize(limit)),
        None => now,
    }
}

/// A row per process.
pub fn tree(frame: &mut Frame, area: Rect, reading: &Reading) {
    let processes = &reading.snapshot.processes;
    let has_gpu = processes.iter().any(|row| row.gpu.is_some());
    let largest = processes.iter().map(|row| row.share.resident() + row.share.swap).max().unwrap_or(0).max(1);
    let legend =
        Line::from(vec![" anonymous ".fg(ANON), "shared ".fg(SHARED), "file ".fg(FILE), "swap ".fg(SWAP)]);
    let head = ["pid", "command", "", "anonymous", "shared", "file", "swap", "threads", "gpu"];
    let head = Row::new(head.iter().take(if has_gpu { 9 } else { 8 }).map(|name| heading(name)))
        .style(QUIET.add_modifier(Modifier::BOLD));
    let room = usize::from(area.height.saturating_sub(3));
    let hidden = processes.len().saturating_sub(room);
    let rows = processes.iter().take(room).map(|row| process_row(row, largest, has_gpu));
    let mut widths = vec![Constraint::Length(8), Constraint::Fill(1), Constraint::Length(BAR as u16)];
    widths.extend([Constraint::Length(9); 4]);
    widths.push(Constraint::Length(7));
    if has_gpu {
        widths.push(Constraint::Length(9));
    }
    let count = processes.len();
    let title = match (count, hidden) {
        (1, _) => "1 process".to_owned(),
        (_, 0) => format!("{count} processes"),
        _ => format!("{count} processes, {hidden} not shown"),
    };
    let block = panel(&title).title_top(legend.right_aligned());
    frame.render_widget(Table::new(rows, widths).header(head).block(block), area);
}

/// Columns of numbers are headed on the right.
fn heading(name: &str) -> Cell<'static> {
    let text = Line::from(name.to_owned());
    Cell::from(if ["pid", "command", ""].contains(&name) { text } else { text.right_aligned() })
}

fn process_row(row: &ProcessRow, largest: u64, has_gpu: bool) -> Row<'static> {
    let branch = if row.depth == 0 { String::new() } else { format!("{}└ ", "  ".repeat(row.depth - 1)) };
    let number = |text: String| Cell::from(Line::from(text).right_aligned());
    let size = |bytes: u64| number(if bytes == 0 { "·".to_owned() } else { ByteSize(bytes).to_string() });
    let mut cells = vec![
        Cell::from(row.pid.to_string()),
        Cell::from(format!("{branch}{}", row.command)),
        Cell::from(bar(&row.share, largest)),
        size(row.share.anon),
        size(row.share.shmem),
        size(row.share.file),
        size(row.share.swap),
        number(row.threads.to_string()),
    ];
    if has_gpu {
        cells.push(size(row.gpu.unwrap_or(0)));
    }
    Row::new(cells)
}

/// A bar as long as the process is large, in the colours of its kinds.
fn bar(share: &Kinds, largest: u64) -> Line<'static> {
    let cells = |bytes: u64| (bytes as f64 / largest as f64 * BAR as f64).round() as usize;
    let parts = [(share.anon, ANON), (share.shmem, SHARED), (share.file, FILE), (share.swap, SWAP)];
    Line::from(
        parts.map(|(bytes, colour)| Span::styled("█".repeat(cells(bytes)), Style::new().fg(colour))).to_vec(),
    )
}

/// The last lines of the command.
pub fn output(frame: &mut Frame, area: Rect, lines: Vec<String>) {
    let lines: Vec<Line> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(panel("output")), area);
}

/// The machine, and the last note.
pub fn footer(frame: &mut Frame, area: Rect, reading: &Reading, note: Option<&str>) {
    let snapshot = &reading.snapshot;
    let mut facts = Vec::new();
    if let Some(available) = snapshot.machine.available {
        facts.push(format!(
            "machine: {} of {} available",
            ByteSize(available),
            ByteSize(snapshot.machine.total)
        ));
    }
    if let Some(limit) = snapshot.cgroup.and_then(|group| group.limit) {
        let usage = snapshot.cgroup.map_or(0, |group| group.usage);
        facts.push(format!("control group: {} of {}", ByteSize(usage), ByteSize(limit)));
    }
    if let Some(pressure) = snapshot.machine.pressure_some {
        facts.push(format!("pressure {pressure:.1} %"));
    }
    facts.extend(snapshot.sample.gpu.map(|gpu| format!("gpu {}", ByteSize(gpu))));
    facts.push(format!("{} threads", snapshot.sample.threads.unwrap_or(0)));
    facts.extend(snapshot.sample.major_faults.map(|faults| format!("{faults} major faults")));
    let keys = Line::from(vec![" q ".black().on_dark_gray(), " quit with the summary ".into()]);
    let lines = vec![
        Line::from(format!(" {}", facts.join(" · "))).fg(Color::DarkGray),
        Line::from(format!(" {}", note.unwrap_or(""))).yellow(),
    ];
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(26)]).areas(area);
    frame.render_widget(Paragraph::new(lines), left);
    frame.render_widget(Paragraph::new(keys).alignment(Alignment::Right), right);
}
