//! A survey for people and for programs.
//!
//! Takes a [`Survey`] and the size of a batch, and gives lines that fit a terminal, or JSON with the same
//! figures. A line that asks for something to be done has a [`SurveyTopic`], to which a front end adds its
//! own advice.

use super::{Lengths, SizeClass, Survey};
use crate::{
    error::{BadRow, counted},
    text::TokenRun,
};
use serde_json::{Value, json};
use std::fmt::{self, Display};

/// Sizes of images that are listed; the rest is summed up.
const LISTED_SIZES: usize = 8;
/// Bad rows that are listed in text.
const LISTED_BAD_ROWS: usize = 10;
/// Ignored fields that are listed in text.
const LISTED_NAMES: usize = 20;
const HISTOGRAM_BARS: usize = 10;
/// Characters that are shown of each run of the sample.
const SHOWN_CHARACTERS: usize = 600;
const BAR_WIDTH: u64 = 32;

/// A survey as text or JSON.
pub struct SurveyReport<'a> {
    /// What is printed.
    pub survey: &'a Survey,
    /// Rows in a batch.
    pub batch_size: u64,
    /// The limit of tokens that the survey was made with.
    pub max_tokens: Option<usize>,
}

impl SurveyReport<'_> {
    /// The same figures for programs.
    pub fn to_json(&self) -> Value {
        let Survey { rows, images, image_bytes, too_long, no_label, bad, bad_rows, bad_kinds, .. } =
            self.survey;
        let shapes: serde_json::Map<_, _> =
            self.survey.shapes.iter().map(|(shape, count)| (shape.id().to_owned(), json!(count))).collect();
        let size = |class: &SizeClass| {
            let SizeClass { size, resized, tokens, count } = class;
            json!({"width": size.0, "height": size.1, "resized_width": resized.0, "resized_height": resized.1,
                   "tokens": tokens, "count": count})
        };
        json!({
            "rows": rows,
            "shapes": shapes,
            "images": {"count": images, "encoded_bytes": image_bytes,
                       "sizes": self.survey.sizes.iter().map(size).collect::<Vec<_>>()},
            "tokens": self.survey.tokens.as_ref().map(lengths_json),
            "image_tokens": lengths_json(&self.survey.image_tokens),
            "label_tokens": self.survey.tokens.as_ref().map(|_| lengths_json(&self.survey.label_tokens)),
            "left_out": {"too_long": too_long, "no_label": no_label, "max_seq_length": self.max_tokens},
            "batch": {"rows": self.batch_size,
                      "tokens": self.batch_tokens().map(|(mean, most)| json!({"mean": mean, "max": most})),
                      "patches": {"mean": self.mean_patches(), "max": self.most_patches()},
                      "patch_bytes_max": self.most_patches() * self.survey.patch_bytes,
                      "pixel_values_bytes_max": self.most_patches() * self.survey.pixel_value_bytes},
            "ignored": self.survey.ignored,
            "bad": {"count": bad, "kinds": bad_kinds, "rows": bad_rows.iter().map(ToString::to_string).collect::<Vec<_>>()},
            "sample": self.survey.sample.as_ref().map(|row| row.runs.0.iter().map(TokenRun::to_json).collect::<Vec<_>>()),
        })
    }

    /// Tokens of a mean batch and of the heaviest.
    fn batch_tokens(&self) -> Option<(f64, u64)> {
        let tokens = &self.survey.used_tokens;
        self.survey.tokens.as_ref()?;
        Some((tokens.mean() * self.batch_size as f64, tokens.longest(self.batch_size)))
    }

    fn mean_patches(&self) -> f64 {
        self.survey.patches.mean() * self.batch_size as f64
    }

    fn most_patches(&self) -> u64 {
        self.survey.patches.longest(self.batch_size)
    }

    /// The report line by line, each with its topic, so that a front end can add what to do about it.
    pub fn lines(&self) -> Vec<SurveyLine<'_>> {
        let mut lines = Lines::default();
        self.shapes(&mut lines);
        self.sizes(&mut lines);
        self.lengths(&mut lines);
        self.left_out(&mut lines);
        self.batch(&mut lines);
        self.ignored(&mut lines);
        self.bad_rows(&mut lines);
        self.sample(&mut lines);
        lines.0
    }

    fn shapes(&self, lines: &mut Lines<'_>) {
        let Survey { rows, shapes, images, image_bytes, .. } = self.survey;
        lines.add(format!("Rows      {}", grouped(*rows)));
        for (shape, count) in shapes {
            lines.add(format!("  {:>9}  {shape}", grouped(*count)));
        }
        if *images > 0 {
            lines.add(format!("Images    {}, {} encoded", grouped(*images), bytes(*image_bytes)));
        }
    }

    fn sizes(&self, lines: &mut Lines<'_>) {
        let sizes = &self.survey.sizes;
        if sizes.is_empty() {
            return;
        }
        lines.blank();
        let mut add = |[size, resized, tokens, images]: [&str; 4]| {
            lines.add(format!("  {size:>11}  {resized:>11}  {tokens:>7}  {images:>9}"));
        };
        add(["size", "resized to", "tokens", "images"]);
        let by = |(width, height): (u32, u32)| format!("{width}x{height}");
        for SizeClass { size, resized, tokens, count } in sizes.iter().take(LISTED_SIZES) {
            add([&by(*size), &by(*resized), &tokens.to_string(), &grouped(*count)]);
        }
        if let Some(rest @ [_, ..]) = sizes.get(LISTED_SIZES..) {
            let images = rest.iter().map(|class| class.count).sum();
            add([&format!("{} more", rest.len()), "", "", &grouped(images)]);
        }
    }

    fn lengths(&self, lines: &mut Lines<'_>) {
        let (name, lengths) = match &self.survey.tokens {
            Some(tokens) => ("Tokens", tokens),
            None => ("Image tokens", &self.survey.image_tokens),
        };
        // Nothing is said where there are no rows, nor of image tokens where there are no images.
        if lengths.total() == 0 {
            return;
        }
        let [half, most] = [0.5, 0.95].map(|share| grouped(lengths.quantile(share) as u64));
        let max = grouped(lengths.max() as u64);
        lines.blank();
        lines.add(format!("{name} a row: half have at most {half}, 95% at most {most}, the longest {max}"));
        let bars = lengths.histogram(HISTOGRAM_BARS);
        let highest = bars.iter().map(|bar| bar.2).max().unwrap_or(1).max(1);
        for (from, to, count) in bars {
            let bar = "█".repeat((count * BAR_WIDTH).div_ceil(highest) as usize);
            let range = if from == to { from.to_string() } else { format!("{from}-{to}") };
            lines.add(format!(
                "  {range:>13}  {bar:<width$}  {}",
                grouped(count),
                width = BAR_WIDTH as usize
            ));
        }
        if self.survey.tokens.is_some() {
            let learned = &self.survey.label_tokens;
            lines.add(format!(
                "  {} of them are learned: {:.1} a row",
                grouped(learned.total()),
                learned.mean()
            ));
        }
    }

    fn left_out(&self, lines: &mut Lines<'_>) {
        let Survey { too_long, no_label, tokens, .. } = self.survey;
        lines.blank();
        if tokens.is_none() {
            return lines
                .add_about(SurveyTopic::NoTokenizer, "The tokens of the text are not counted".into());
        }
        let too_long = grouped(*too_long);
        let limit = self.max_tokens.map_or(String::new(), |limit| format!(" (over {limit} tokens)"));
        let text =
            format!("Left out  {too_long} too long{limit}, {} without anything to learn", grouped(*no_label));
        match self.max_tokens {
            Some(_) => lines.add_about(SurveyTopic::TokenLimit, text),
            None => lines.add(text),
        }
    }

    fn batch(&self, lines: &mut Lines<'_>) {
        let rows = counted(self.batch_size, "row");
        let tokens = self.batch_tokens().map_or(String::new(), |(mean, most)| {
            format!(" {} tokens on average, at most {};", grouped(mean.round() as u64), grouped(most))
        });
        let patches = self.most_patches();
        let [compact, hf] =
            [self.survey.patch_bytes, self.survey.pixel_value_bytes].map(|one| bytes(patches * one));
        let patches = grouped(patches);
        lines.add(format!(
            "A batch   {rows}:{tokens} at most {patches} patches ({compact}; as HF's pixel_values {hf})"
        ));
    }

    fn sample(&self, lines: &mut Lines<'_>) {
        let Some(sample) = &self.survey.sample else { return };
        let [before, after] = sample.runs.marks();
        lines.blank();
        lines
            .add(format!("The first row as the model reads it, {before}what is learned{after} in brackets:"));
        lines.blank();
        sample.runs.shown(SHOWN_CHARACTERS).lines().for_each(|line| lines.add(format!("  {line}")));
    }

    /// Names the fields that are not read, so that nobody finds out only after a run.
    fn ignored(&self, lines: &mut Lines<'_>) {
        let ignored = &self.survey.ignored;
        if ignored.is_empty() {
            return;
        }
        let name = |(name, count): (&String, &u64)| match *count == self.survey.rows {
            true => name.clone(),
            false => format!("{name} ({} of {} rows)", grouped(*count), grouped(self.survey.rows)),
        };
        let names: Vec<_> = ignored.iter().take(LISTED_NAMES).map(name).collect();
        let more = match ignored.len().saturating_sub(LISTED_NAMES) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let text = format!("Ignored   {}{more}: fields that no shape reads", names.join(", "));
        lines.add_about(SurveyTopic::IgnoredFields, text);
    }

    fn bad_rows<'s>(&'s self, lines: &mut Lines<'s>) {
        let Survey { bad, bad_rows, bad_kinds, .. } = self.survey;
        lines.add(format!("Bad rows  {}", if *bad == 0 { "none".into() } else { grouped(*bad) }));
        for (kind, count) in bad_kinds {
            lines.add(format!("  {:>9}  {kind}", grouped(*count)));
        }
        for fault in bad_rows.iter().take(LISTED_BAD_ROWS) {
            lines.add_about(SurveyTopic::BadRow(&fault.reason), format!("  {fault}"));
        }
        match bad.saturating_sub(LISTED_BAD_ROWS as u64) {
            0 => {}
            more => lines.add(format!("  and {} more", grouped(more))),
        }
    }
}

/// What a line of a report is about, where a user may want to do something about it.
#[derive(Debug, Clone, Copy)]
pub enum SurveyTopic<'a> {
    /// No tokenizer was given.
    NoTokenizer,
    /// Rows are measured against a limit of tokens.
    TokenLimit,
    /// Fields that no shape reads.
    IgnoredFields,
    /// A bad row.
    BadRow(&'a BadRow),
}

/// A line of a report.
#[derive(Debug, Clone)]
pub struct SurveyLine<'a> {
    /// Its text, without a line break.
    pub text: String,
    /// What it is about, where a user may want to do something about it.
    pub topic: Option<SurveyTopic<'a>>,
}

#[derive(Default)]
struct Lines<'a>(Vec<SurveyLine<'a>>);

impl<'a> Lines<'a> {
    fn add(&mut self, text: String) {
        self.0.push(SurveyLine { text, topic: None });
    }

    fn add_about(&mut self, topic: SurveyTopic<'a>, text: String) {
        self.0.push(SurveyLine { text, topic: Some(topic) });
    }

    fn blank(&mut self) {
        self.add(String::new());
    }
}

impl Display for SurveyReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{}", line.text))
    }
}

fn lengths_json(lengths: &Lengths) -> Value {
    let histogram: Vec<_> = lengths
        .histogram(HISTOGRAM_BARS)
        .into_iter()
        .map(|(from, to, count)| json!({"from": from, "to": to, "rows": count}))
        .collect();
    let quantile = |share| lengths.quantile(share);
    json!({"rows": lengths.count(), "total": lengths.total(), "mean": lengths.mean(), "p50": quantile(0.5),
           "p90": quantile(0.9), "p95": quantile(0.95), "p99": quantile(0.99), "max": lengths.max(),
           "histogram": histogram})
}

/// A number with its thousands apart: 12,345.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in decimal units, as the rest of the project prints them.
fn bytes(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => format!("{number} B"),
        1_000..1_000_000 => format!("{:.0} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::RowError,
        image::ImageError,
        row::RowId,
        shape::Shape,
        survey::SampleRow,
        text::{Encoded, TokenRuns},
    };

    fn lengths(values: &[usize]) -> Lengths {
        let mut lengths = Lengths::default();
        values.iter().for_each(|value| lengths.add(*value));
        lengths
    }

    fn survey() -> Survey {
        Survey {
            rows: 1003,
            shapes: [(Shape::by_id("open-ai-messages"), 1000), (Shape::by_id("llava"), 2)].into(),
            images: 1002,
            image_bytes: 2_500_000_000,
            sizes: vec![SizeClass { size: (3000, 2048), resized: (1204, 812), tokens: 1247, count: 1002 }],
            tokens: Some(lengths(&[1290, 1300, 1350, 40])),
            used_tokens: lengths(&[1290, 1300, 1350]),
            label_tokens: lengths(&[4, 5, 6]),
            image_tokens: lengths(&[1247, 1247, 1247]),
            patches: lengths(&[4988, 4988, 4988]),
            no_label: 1,
            bad: 1,
            bad_rows: vec![RowError { row: id(17), reason: BadRow::image(0, ImageError::Empty) }],
            patch_bytes: 588,
            pixel_value_bytes: 4 * 1176,
            bad_kinds: [("with an image that cannot be decoded".into(), 1)].into(),
            ignored: [("id".into(), 1003), ("split".into(), 7)].into(),
            sample: Some(sample(vec![
                TokenRun {
                    trained: false,
                    tokens: 900,
                    text: format!("user\n{}\u{1b}[2J!\nassistant\n", "x".repeat(900)),
                },
                TokenRun { trained: true, tokens: 5, text: "a cat<|im_end|>".into() },
            ])),
            ..Survey::default()
        }
    }

    fn id(number: u64) -> RowId {
        RowId { file: std::path::Path::new("train.jsonl").into(), number }
    }

    fn sample(runs: Vec<TokenRun>) -> SampleRow {
        SampleRow { id: id(1), encoded: Encoded::default(), runs: TokenRuns(runs) }
    }

    #[test]
    fn a_row_with_brackets_of_its_own_is_shown_with_others() {
        let said = TokenRun { trained: true, tokens: 9, text: "[[1, 2], [3, 4]]".into() };
        let survey = Survey { sample: Some(sample(vec![said])), ..survey() };
        let text = SurveyReport { survey: &survey, batch_size: 2, max_tokens: None }.to_string();
        assert!(text.contains("⟦what is learned⟧") && text.contains("⟦[[1, 2], [3, 4]]⟧"), "{text}");
    }

    #[test]
    fn rows_without_images_have_no_histogram_of_image_tokens() {
        let rows = Survey { rows: 3, image_tokens: lengths(&[0, 0, 0]), ..Survey::default() };
        let told = |survey: &Survey| SurveyReport { survey, batch_size: 2, max_tokens: None }.to_string();
        assert!(!told(&rows).contains("Image tokens"), "{}", told(&rows));
        let some = Survey { image_tokens: lengths(&[0, 0, 12]), ..rows };
        assert!(told(&some).contains("Image tokens a row: half have at most 0"), "{}", told(&some));
    }

    #[test]
    fn text_says_what_a_person_asks() {
        let survey = survey();
        let text = SurveyReport { survey: &survey, batch_size: 2, max_tokens: Some(2048) }.to_string();
        for line in [
            "Rows      1,003",
            "      1,000  OpenAI messages",
            "Images    1,002, 2.50 GB encoded",
            "    3000x2048     1204x812     1247      1,002",
            "Tokens a row: half have at most 1,290, 95% at most 1,350, the longest 1,350",
            "  15 of them are learned: 5.0 a row",
            "Left out  0 too long (over 2048 tokens), 1 without anything to learn",
            "A batch   2 rows: 2,627 tokens on average, at most 2,650; at most 9,976 patches (5.9 MB; as HF's \
             pixel_values 46.9 MB)",
            "Ignored   id, split (7 of 1,003 rows): fields that no shape reads",
            "Bad rows  1",
            "          1  with an image that cannot be decoded",
            "  train.jsonl, row 17: image 1: the image is empty (0 bytes)",
            "  [[a cat<|im_end|>]]",
        ] {
            assert!(text.lines().any(|found| found == line), "no line '{line}' in\n{text}");
        }
        assert!(
            text.contains(" characters … x") && text.contains("\u{FFFD}[2J!") && !text.contains('\u{1b}'),
            "{text}"
        );
    }

    #[test]
    fn json_has_the_same_figures() {
        let survey = survey();
        let json = SurveyReport { survey: &survey, batch_size: 2, max_tokens: None }.to_json();
        assert_eq!(json["shapes"], serde_json::json!({"open-ai-messages": 1000, "llava": 2}));
        assert_eq!(json["images"]["sizes"][0]["resized_width"], 1204);
        assert_eq!(json["tokens"]["max"], 1350);
        assert_eq!(json["batch"]["tokens"]["max"], 2650);
        assert_eq!(json["bad"]["count"], 1);
        assert_eq!(json["bad"]["kinds"]["with an image that cannot be decoded"], 1);
        assert_eq!(json["ignored"]["split"], 7);
        assert_eq!(
            json["sample"][1],
            serde_json::json!({"learned": true, "tokens": 5, "text": "a cat<|im_end|>"})
        );
    }
}
