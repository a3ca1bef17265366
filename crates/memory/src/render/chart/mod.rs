//! What a chart shows: lines over steps or seconds, levels across it, epochs down it.
//!
//! A [`Chart`] is data. [`Chart::svg`] draws it as a picture, and the script of our pages draws the same
//! value on a canvas, so a picture, the memory report and a run's report look alike and say the same.

pub(crate) mod palette;
mod svg;
mod thin;

use super::scale;
use crate::verdict::Axis;
use serde::{Serialize, Serializer, ser::SerializeSeq};
pub(crate) use thin::MOST_POINTS;

/// What the values of a chart are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes, written with their unit.
    Bytes,
    /// Parts of one, written in percent.
    Share,
    /// Plain numbers.
    Number,
}

impl Unit {
    /// A value as it is written.
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Self::Bytes => scale::bytes(value),
            Self::Share => format!("{} %", scale::number(100.0 * value)),
            Self::Number => scale::number(value),
        }
    }

    /// The label of an axis that goes to `top`: all of them have the same unit, and no more digits than they
    /// need.
    pub(crate) fn label(self, value: f64, top: f64) -> String {
        match self {
            Self::Bytes => scale::bytes_label(value, top),
            Self::Share | Self::Number => self.write(value),
        }
    }
}

/// Which colour a line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colour {
    /// The colour at this place of the palette; beyond its end the colours come again, dashed.
    Nth(usize),
    /// Something that stands in the background.
    Quiet,
}

/// A named line. Columns have one entry a point; `low` and `high`, between which the values of a point lie,
/// may be empty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// What the legend says.
    pub(crate) name: String,
    /// Its colour.
    pub(crate) colour: Colour,
    /// Places on the chart's axis, ascending; NaN for points that have none, such as a start before the first
    /// step.
    #[serde(serialize_with = "numbers")]
    pub(crate) x: Vec<f64>,
    /// Seconds of each point, where they are known: the axis can then be switched to time.
    #[serde(serialize_with = "numbers")]
    pub(crate) seconds: Vec<f64>,
    /// The values.
    #[serde(serialize_with = "numbers")]
    pub(crate) y: Vec<f64>,
    /// The lowest values.
    #[serde(serialize_with = "numbers")]
    pub(crate) low: Vec<f64>,
    /// The highest values.
    #[serde(serialize_with = "numbers")]
    pub(crate) high: Vec<f64>,
}

impl Line {
    /// A line through points; those that are no numbers are left out, and a long line is thinned.
    pub fn through(name: &str, colour: Colour, points: &[(f64, f64)]) -> Self {
        let (x, y) = thin::extremes(points).into_iter().unzip();
        let (seconds, low, high) = (Vec::new(), Vec::new(), Vec::new());
        Self { name: name.to_owned(), colour, x, seconds, y, low, high }
    }

    /// The points that have a place on the axis.
    pub(super) fn points(&self) -> impl DoubleEndedIterator<Item = (f64, f64)> {
        self.x.iter().copied().zip(self.y.iter().copied()).filter(|(x, _)| !x.is_nan())
    }

    /// The lowest and the highest value of each point that has a place, where they are known.
    pub(super) fn band(&self) -> impl DoubleEndedIterator<Item = (f64, f64, f64)> {
        let ends = self.low.iter().copied().zip(self.high.iter().copied());
        self.x.iter().copied().zip(ends).filter(|(x, _)| !x.is_nan()).map(|(x, (low, high))| (x, low, high))
    }
}

/// What a line across the chart means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meaning {
    /// Where growth ends.
    Plateau,
    /// What was planned.
    Plan,
    /// What must not be exceeded.
    Limit,
}

/// A line across the chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Level {
    /// Where it lies.
    pub(crate) value: f64,
    /// What stands beside it.
    pub(crate) text: String,
    /// What it means.
    pub(crate) meaning: Meaning,
}

impl Level {
    /// A level of memory with its name and size.
    pub fn bytes(name: &str, bytes: u64, meaning: Meaning) -> Self {
        Self { value: bytes as f64, text: format!("{name} {}", scale::bytes(bytes as f64)), meaning }
    }
}

/// Where epochs end, on an axis of steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Epochs {
    /// The end of the first one.
    pub first_end: f64,
    /// Steps of each.
    pub steps: f64,
}

impl Epochs {
    /// Numbers and ends of the epochs that end between two steps, at most `most` of them, evenly chosen.
    pub(crate) fn within(&self, (from, to): (f64, f64), most: usize) -> Vec<(u64, f64)> {
        // An epoch that ends with the run is told by the run's end.
        let to = to - 0.01 * (to - from);
        let last = ((to - self.first_end) / self.steps).floor() + 1.0;
        if !(last.is_finite() && last >= 1.0 && most > 0) {
            return Vec::new();
        }
        let stride = (last / most as f64).ceil() as u64;
        let numbers = (1..).map(|count| count * stride).take_while(|number| *number as f64 <= last);
        let ends = numbers.map(|number| (number, self.first_end + (number - 1) as f64 * self.steps));
        ends.filter(|(_, end)| *end >= from).collect()
    }
}

/// Where growth turns into a level.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Knee {
    /// Place on the axis.
    pub at: f64,
    /// What stands before it, such as `grows`.
    pub before: &'static str,
    /// What stands after it, such as `level`.
    pub after: &'static str,
}

/// One or more lines over the same axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// The heading.
    pub(crate) title: String,
    /// What stands below the heading; what a reader who does not see the curve is told.
    pub summary: String,
    /// What the axis counts.
    #[serde(serialize_with = "axis")]
    pub(crate) axis: Axis,
    /// What the values are.
    pub(crate) unit: Unit,
    /// Whether the vertical axis starts at nothing: for amounts, so that a tenth looks like a tenth.
    pub from_zero: bool,
    /// The lines.
    pub(crate) lines: Vec<Line>,
    /// Lines across.
    pub(crate) levels: Vec<Level>,
    /// Where epochs end.
    pub epochs: Option<Epochs>,
    /// Where growth ends.
    pub(crate) knee: Option<Knee>,
}

/// A level that is further above the curve than this would flatten it, and is told in words only.
const IN_SIGHT: f64 = 2.0;

impl Chart {
    /// A chart without lines across it.
    pub fn new(title: &str, axis: Axis, unit: Unit, lines: Vec<Line>) -> Self {
        Self {
            title: title.to_owned(),
            summary: String::new(),
            axis,
            unit,
            from_zero: false,
            lines,
            levels: Vec::new(),
            epochs: None,
            knee: None,
        }
    }

    /// Whether there is a point to draw.
    pub fn has_points(&self) -> bool {
        self.lines.iter().any(|line| line.points().next().is_some())
    }

    /// Adds a level unless it lies far above the curve.
    pub fn add_level(&mut self, level: Level) {
        let highest = self.lines.iter().flat_map(|line| line.y.iter().chain(&line.high));
        let highest = highest.copied().fold(0.0, f64::max);
        if level.value <= IN_SIGHT * highest {
            self.levels.push(level);
        }
    }
}

fn axis<S: Serializer>(axis: &Axis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *axis == Axis::Steps { "steps" } else { "seconds" })
}

/// Numbers in as few characters as a curve needs: six significant digits, none behind the point where it is
/// whole.
fn numbers<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    const WHOLE: f64 = 1e15;
    let mut sequence = serializer.serialize_seq(Some(values.len()))?;
    for &value in values {
        if !value.is_finite() {
            sequence.serialize_element(&None::<f64>)?;
        } else if value.abs() >= 1e5 && value.abs() < WHOLE || value.fract() == 0.0 {
            sequence.serialize_element(&(value.round() as i64))?;
        } else {
            let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
            sequence.serialize_element(&rounded)?;
        }
    }
    sequence.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_briefly() {
        let line = Line {
            seconds: vec![1.0, f64::NAN, 1.0 / 3.0],
            ..Line::through("a", Colour::Nth(0), &[(1.0, 17_400_000_123.4), (2.0, 5e8 + 0.1)])
        };
        let json = serde_json::to_value(&line).unwrap();
        assert_eq!(json["y"].to_string(), "[17400000123,500000000]");
        assert_eq!(json["seconds"].to_string(), "[1,null,0.333333]");
    }

    #[test]
    fn epochs_that_end_in_sight_are_counted_and_never_too_many() {
        let epochs = Epochs { first_end: 83.0, steps: 83.0 };
        assert_eq!(epochs.within((0.0, 300.0), 10), [(1, 83.0), (2, 166.0), (3, 249.0)]);
        assert_eq!(epochs.within((0.0, 250.0), 10), [(1, 83.0), (2, 166.0)], "the last ends with the run");
        assert_eq!(epochs.within((0.0, 50.0), 10), []);
        let many = epochs.within((0.0, 83_000.0), 10);
        assert!(many.len() <= 10 && many.len() >= 5, "{many:?}");
        assert_eq!(epochs.within((100.0, 200.0), 10), [(2, 166.0)]);
        assert_eq!(Epochs { first_end: 1.0, steps: 0.0 }.within((0.0, 10.0), 3), []);
    }

    #[test]
    fn a_level_far_above_the_curve_is_left_to_the_words() {
        let line = Line::through("a", Colour::Nth(0), &[(0.0, 1e9), (1.0, 2e9)]);
        let mut chart = Chart::new("m", Axis::Steps, Unit::Bytes, vec![line]);
        chart.add_level(Level::bytes("limit", 32_000_000_000, Meaning::Limit));
        assert!(chart.levels.is_empty());
        chart.add_level(Level::bytes("limit", 3_000_000_000, Meaning::Limit));
        assert_eq!(chart.levels[0].text, "limit 3.00 GB");
    }
}
