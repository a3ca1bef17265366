//! The panels of the live screen, each a function of a reading.
//!
//! Takes a frame and what to show, and draws. The only thing remembered is how far a person has scrolled, so
//! a frame can be drawn to a test's buffer as well as to a terminal.

use super::{
    history::{History, Phase},
    screen::clock,
    scroll::{Panel, Scroll},
    summary,
};
use garden_memory::{
    ByteSize, Reading, Verdict, counted,
    probe::{Kinds, ProcessRow},
    report::wrap,
};
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    symbols::Marker,
    text::{Line, Span},
    widgets::{Axis, Block, BorderType, Cell, Chart, Dataset, GraphType, Paragraph, Row, Table},
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

/// Lines of the command's output that are shown.
pub const OUTPUT_LINES: u16 = 6;
/// From this width on curve and verdict stand side by side.
const SIDE_BY_SIDE: u16 = 100;
/// A screen with fewer lines has no table of processes.
const LOW: u16 = 24;
/// Below this many lines a tree of one process is not shown: title and verdict say the same about it.
const LOW_FOR_ONE: u16 = 30;
/// Widths from which the table of processes has all of its columns, and most of them.
const ALL_COLUMNS: u16 = 100;
const MOST_COLUMNS: u16 = 72;

/// What a frame shows.
pub struct Shown<'a> {
    /// The tree at this moment.
    pub reading: &'a Reading,
    /// The tree until now.
    pub history: &'a History,
    /// The last lines of the command, where we have started it.
    pub printed: Option<&'a [String]>,
    /// The last note.
    pub note: Option<&'a str>,
}

/// Draws the whole screen.
pub fn draw(frame: &mut Frame, shown: &Shown<'_>, scroll: &mut Scroll) {
    let area = frame.area();
    let Shown { reading, history, printed, note } = shown;
    let rows = u16::try_from(reading.snapshot.processes.len()).unwrap_or(u16::MAX).saturating_add(3);
    // On a low screen curve and verdict matter more than the processes, and than what the command prints.
    let is_alone = reading.snapshot.processes.len() == 1;
    let has_tree = area.height >= if is_alone { LOW_FOR_ONE } else { LOW };
    let tree_height = if has_tree { rows.clamp(4, (area.height / 4).max(4)) } else { 0 };
    let most_printed = area.height.saturating_sub(tree_height + 21).clamp(3, OUTPUT_LINES + 2);
    let printed_height = if printed.is_some() { most_printed } else { 0 };
    let [head, upper, tree_area, printed_area, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(8),
        Constraint::Length(tree_height),
        Constraint::Length(printed_height),
        Constraint::Length(2),
    ])
    .areas(area);
    let [chart_area, verdict_area] = if area.width >= SIDE_BY_SIDE {
        Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(upper)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(upper)
    };
    title(frame, head, reading);
    chart(frame, chart_area, history, reading);
    verdict(frame, verdict_area, reading, scroll);
    tree(frame, tree_area, reading, scroll);
    if let Some(lines) = printed {
        let room = usize::from(printed_height.saturating_sub(2));
        output(frame, printed_area, &lines[lines.len().saturating_sub(room)..]);
    }
    footer(frame, foot, reading, *note);
}

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

/// A panel that can be scrolled: its border is bright while keys move it, and says what is out of sight.
fn scrolled_panel(
    title: &str,
    scroll: &Scroll,
    panel_of: Panel,
    above: usize,
    below: usize,
) -> Block<'static> {
    let style = if scroll.focus == panel_of { Style::new() } else { QUIET };
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(style)
        .title(format!(" {title} ").bold());
    let more = match (above, below) {
        (0, 0) => return block,
        (above, 0) => format!(" {above} above "),
        (0, below) => format!(" {below} below "),
        (above, below) => format!(" {above} above, {below} below "),
    };
    block.title_bottom(Line::from(more).right_aligned())
}

/// The command, and where it stands.
fn title(frame: &mut Frame, area: Rect, reading: &Reading) {
    let sample = &reading.snapshot.sample;
    let root = reading.snapshot.processes.first();
    let name = root.map(|root| format!(" {} {}", root.pid, root.command)).unwrap_or_default();
    let mut place = vec![clock(sample.t)];
    place.extend(sample.step.map(|step| format!("step {step}")));
    place.extend(sample.epoch.map(|epoch| format!("epoch {epoch:.2}")));
    let place = format!(" {} ", place.join(" · "));
    let width = u16::try_from(place.chars().count()).unwrap_or(u16::MAX);
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let heading = Line::from(vec![" model-garden ".bold().black().on_green(), name.into()]);
    frame.render_widget(Paragraph::new(heading), left);
    frame.render_widget(Paragraph::new(place.bold()).alignment(Alignment::Right), right);
}

/// The curve, with its phases above it, its limit and plateau across it.
fn chart(frame: &mut Frame, area: Rect, history: &History, reading: &Reading) {
    let legend =
        Line::from(vec![" its own ".fg(colour(reading.assessment.verdict)), "file-backed ".fg(FILE)]);
    let block = panel("memory of the tree").title_top(legend.right_aligned());
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
    // A level that is far above would flatten the curve: its line shows once the curve comes near.
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
    let time = |at: f64| place(history, at, plot.width).fg(Color::DarkGray);
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
    // At different ends, so that two levels close to each other keep their names.
    name_level(frame, plot, Alignment::Left, (top, plateau), ("plateau", Color::Blue));
    name_level(frame, plot, Alignment::Right, (top, limit), ("limit", Color::Red));
    let [_, ribbon_area] =
        Layout::horizontal([Constraint::Length(SIZES), Constraint::Min(0)]).areas(ribbon_area);
    frame.render_widget(Paragraph::new(ribbon(history.phases(), start, end, ribbon_area.width)), ribbon_area);
}

/// A place on the axis: its time, and its step where steps are told. A narrow screen has room for one of
/// them.
fn place(history: &History, at: f64, width: u16) -> String {
    const ROOM_FOR_BOTH: u16 = 56;
    match history.step_at(at) {
        Some(step) if width >= ROOM_FOR_BOTH => format!("{}, step {step}", clock(at)),
        Some(step) => format!("step {step}"),
        None => clock(at),
    }
}

/// Writes the name and size of a level at one end of its line, one row above it.
fn name_level(
    frame: &mut Frame,
    plot: Rect,
    end: Alignment,
    (top, level): (f64, Option<f64>),
    (name, colour): (&str, Color),
) {
    /// The axis and its labels.
    const BELOW: u16 = 2;
    let Some(level) = level else { return };
    let text = format!(" {name} {} ", ByteSize(level as u64));
    let width = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let rows = plot.height.saturating_sub(BELOW);
    if rows < 2 || plot.width < SIZES + width {
        return;
    }
    let row = ((1.0 - level / top) * f64::from(rows - 1)).round().clamp(0.0, f64::from(rows - 1)) as u16;
    // A line at the very top is named below it.
    let row = if row == 0 { 1 } else { row - 1 };
    let x = if end == Alignment::Left { plot.x + SIZES } else { plot.right() - width };
    let area = Rect::new(x, plot.y + row, width, 1);
    frame.render_widget(Paragraph::new(text.fg(colour)), area);
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

/// The verdict, what lies ahead, what to do, and why.
fn verdict(frame: &mut Frame, area: Rect, reading: &Reading, scroll: &mut Scroll) {
    let lines = verdict_lines(reading, usize::from(area.width.saturating_sub(2)));
    let room = usize::from(area.height.saturating_sub(2));
    let above = scroll.offset(Panel::Verdict, lines.len(), room);
    let below = lines.len().saturating_sub(above + room);
    let block = scrolled_panel("verdict", scroll, Panel::Verdict, above, below);
    let seen: Vec<Line> = lines.into_iter().skip(above).take(room).collect();
    frame.render_widget(Paragraph::new(seen).block(block), area);
}

fn verdict_lines(reading: &Reading, width: usize) -> Vec<Line<'static>> {
    let assessment = &reading.assessment;
    let colour = colour(assessment.verdict);
    let mut lines = Vec::new();
    let mut add = |text: &str, first: Span<'static>, style: Style| {
        let indent = first.width();
        for (index, part) in wrap(text, width.saturating_sub(indent).max(1)).into_iter().enumerate() {
            let start = if index == 0 { first.clone() } else { Span::raw(" ".repeat(indent)) };
            lines.push(Line::from(vec![start, Span::styled(part, style)]));
        }
    };
    let (plain, bold) = (Style::new(), Style::new().bold());
    add(&summary::headline(assessment).to_uppercase(), Span::raw(""), bold.fg(colour));
    add(&memory_now(reading), Span::raw(""), plain);
    for line in summary::forecast(assessment) {
        add(&line, Span::raw(""), bold);
    }
    // What to do matters more than why: it comes first.
    for line in &assessment.advice {
        add(line.as_str(), "→ ".fg(colour), plain);
    }
    for line in &assessment.evidence {
        add(line.as_str(), "· ".fg(Color::DarkGray), plain);
    }
    lines
}

fn memory_now(reading: &Reading) -> String {
    let owned = reading.snapshot.sample.owned();
    let now = format!("{} now, {} at the most", ByteSize(owned), ByteSize(reading.snapshot.peak));
    match (reading.facts.leave_free, reading.facts.limit) {
        (Some(free), _) => format!("{now}, {} to leave free", ByteSize(free)),
        (None, Some(limit)) => format!("{now}, of {}", ByteSize(limit)),
        (None, None) => now,
    }
}

/// A row per process.
fn tree(frame: &mut Frame, area: Rect, reading: &Reading, scroll: &mut Scroll) {
    let processes = &reading.snapshot.processes;
    let has_gpu = processes.iter().any(|row| row.gpu.is_some());
    let largest = processes.iter().map(|row| row.share.resident() + row.share.swap).max().unwrap_or(0).max(1);
    let legend =
        Line::from(vec![" anonymous ".fg(ANON), "shared ".fg(SHARED), "file ".fg(FILE), "swap ".fg(SWAP)]);
    let columns = Columns { width: area.width, has_gpu };
    let head =
        Row::new(columns.chosen(|column| heading(column.name))).style(QUIET.add_modifier(Modifier::BOLD));
    let room = usize::from(area.height.saturating_sub(3));
    let above = scroll.offset(Panel::Processes, processes.len(), room);
    let below = processes.len().saturating_sub(above + room);
    let rows = processes.iter().skip(above).take(room);
    let rows = rows.map(|row| Row::new(columns.chosen(|column| (column.cell)(row, largest))));
    let title = counted(processes.len() as u64, "process");
    let block = scrolled_panel(&title, scroll, Panel::Processes, above, below);
    let block = block.title_top(legend.right_aligned());
    let widths = columns.chosen(|column| column.width);
    frame.render_widget(Table::new(rows, widths).header(head).block(block), area);
}

/// A column of the table of processes.
struct Column {
    name: &'static str,
    width: Constraint,
    /// The screen must be this wide for it.
    from: u16,
    cell: fn(&ProcessRow, u64) -> Cell<'static>,
}

const COLUMNS: [Column; 9] = [
    Column { name: "pid", width: Constraint::Length(8), from: 0, cell: |row, _| row.pid.to_string().into() },
    Column { name: "command", width: Constraint::Fill(1), from: 0, cell: |row, _| command(row) },
    Column {
        name: "",
        width: Constraint::Length(BAR as u16),
        from: ALL_COLUMNS,
        cell: |row, largest| bar(&row.share, largest).into(),
    },
    Column { name: "anonymous", width: Constraint::Length(9), from: 0, cell: |row, _| size(row.share.anon) },
    Column { name: "shared", width: Constraint::Length(9), from: 0, cell: |row, _| size(row.share.shmem) },
    Column {
        name: "file",
        width: Constraint::Length(9),
        from: MOST_COLUMNS,
        cell: |row, _| size(row.share.file),
    },
    Column {
        name: "swap",
        width: Constraint::Length(9),
        from: ALL_COLUMNS,
        cell: |row, _| size(row.share.swap),
    },
    Column {
        name: "threads",
        width: Constraint::Length(7),
        from: MOST_COLUMNS,
        cell: |row, _| right(row.threads.to_string()),
    },
    Column { name: "gpu", width: Constraint::Length(9), from: 0, cell: |row, _| size(row.gpu.unwrap_or(0)) },
];

/// The columns that a screen has room for.
struct Columns {
    width: u16,
    has_gpu: bool,
}

impl Columns {
    fn chosen<T>(&self, take: impl Fn(&Column) -> T) -> Vec<T> {
        let fits = |column: &&Column| self.width >= column.from && (column.name != "gpu" || self.has_gpu);
        COLUMNS.iter().filter(fits).map(take).collect()
    }
}

/// Columns of numbers are headed on the right.
fn heading(name: &str) -> Cell<'static> {
    let text = Line::from(name.to_owned());
    Cell::from(if ["pid", "command", ""].contains(&name) { text } else { text.right_aligned() })
}

fn command(row: &ProcessRow) -> Cell<'static> {
    let branch = if row.depth == 0 { String::new() } else { format!("{}└ ", "  ".repeat(row.depth - 1)) };
    format!("{branch}{}", row.command).into()
}

fn size(bytes: u64) -> Cell<'static> {
    right(if bytes == 0 { "·".to_owned() } else { ByteSize(bytes).to_string() })
}

fn right(text: String) -> Cell<'static> {
    Line::from(text).right_aligned().into()
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
fn output(frame: &mut Frame, area: Rect, lines: &[String]) {
    let lines: Vec<Line> = lines.iter().map(|line| Line::from(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines).block(panel("output")), area);
}

/// The machine, the last note, and the keys.
fn footer(frame: &mut Frame, area: Rect, reading: &Reading, note: Option<&str>) {
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
    facts.extend(snapshot.sample.threads.map(|threads| counted(threads.into(), "thread")));
    facts.extend(snapshot.sample.major_faults.map(|faults| counted(faults, "major fault")));
    let mut keys = Vec::new();
    for (key, does) in [("↑↓", "scroll"), ("tab", "panel"), ("q", "quit")] {
        keys.extend([format!(" {key} ").black().on_dark_gray(), format!(" {does} ").into()]);
    }
    let keys = Line::from(keys);
    let width = u16::try_from(keys.width()).unwrap_or(u16::MAX);
    let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(second);
    frame.render_widget(
        Paragraph::new(format!(" {}", fitting(&facts, area.width)).fg(Color::DarkGray)),
        first,
    );
    frame.render_widget(Paragraph::new(format!(" {}", note.unwrap_or("")).yellow()), left);
    frame.render_widget(Paragraph::new(keys), right);
}

/// As many facts as a line has room for, whole.
fn fitting(facts: &[String], width: u16) -> String {
    let mut line = String::new();
    for fact in facts {
        let more = if line.is_empty() { fact.clone() } else { format!("{line} · {fact}") };
        if Line::from(more.as_str()).width() + 1 > usize::from(width) {
            break;
        }
        line = more;
    }
    line
}

#[cfg(test)]
mod tests;
