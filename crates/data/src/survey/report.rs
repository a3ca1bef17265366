//! A survey for people and for programs.
//!
//! In comes a [`Survey`] and the size of a batch; out goes text that fits a terminal, or JSON with the same figures.

use super::{Lengths, SizeClass, Survey};
use crate::{error::counted, text::Run};
use serde_json::{Value, json};
use std::fmt::{self, Display};

/// Sizes of images that are listed; the rest is summed up.
const LISTED_SIZES: usize = 8;
/// Bad rows that are listed in text.
const LISTED_BAD_ROWS: usize = 10;
/// Ignored fields that are listed in text.
const LISTED_NAMES: usize = 20;
const HISTOGRAM_BARS: usize = 10;
/// Characters shown of each stretch of the sample.
const SHOWN_CHARACTERS: usize = 600;
const BAR_WIDTH: u64 = 32;
/// Bytes of a patch: one a sample as the engine has it, f32 and twice as HF has it.
const COMPACT_PATCH: u64 = 588;
const HF_PATCH: u64 = 1176 * 4;

/// A survey that prints itself.
pub struct Report<'a> {
    /// What is printed.
    pub survey: &'a Survey,
    /// Rows in a batch.
    pub batch_size: u64,
    /// The limit of tokens that the survey was made with.
    pub max_tokens: Option<usize>,
}

impl Report<'_> {
    /// The same figures for programs.
    pub fn to_json(&self) -> Value {
        let Survey { rows, images, image_bytes, too_long, no_label, bad, bad_rows, bad_kinds, .. } =
            self.survey;
        let shapes: serde_json::Map<_, _> = self
            .survey
            .shapes
            .iter()
            .filter_map(|(shape, count)| {
                Some((serde_json::to_value(shape).ok()?.as_str()?.to_owned(), json!(count)))
            })
            .collect();
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
                      "patch_bytes_max": self.most_patches() * COMPACT_PATCH,
                      "pixel_values_bytes_max": self.most_patches() * HF_PATCH},
            "ignored": self.survey.ignored,
            "bad": {"count": bad, "kinds": bad_kinds, "rows": bad_rows},
            "sample": self.survey.sample.as_ref().map(|row| row.runs.0.iter().map(run_json).collect::<Vec<_>>()),
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

    fn shapes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Survey { rows, shapes, images, image_bytes, .. } = self.survey;
        writeln!(f, "Rows      {}", grouped(*rows))?;
        for (shape, count) in shapes {
            writeln!(f, "  {:>9}  {shape}", grouped(*count))?;
        }
        if *images > 0 {
            writeln!(f, "Images    {}, {} encoded", grouped(*images), bytes(*image_bytes))?;
        }
        Ok(())
    }

    fn sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = &self.survey.sizes;
        if sizes.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n  {:>11}  {:>11}  {:>7}  {:>9}", "size", "resized to", "tokens", "images")?;
        let by = |(width, height): (u32, u32)| format!("{width}x{height}");
        for SizeClass { size, resized, tokens, count } in sizes.iter().take(LISTED_SIZES) {
            writeln!(f, "  {:>11}  {:>11}  {tokens:>7}  {:>9}", by(*size), by(*resized), grouped(*count))?;
        }
        if let Some(rest @ [_, ..]) = sizes.get(LISTED_SIZES..) {
            let images: u64 = rest.iter().map(|class| class.count).sum();
            writeln!(
                f,
                "  {:>11}  {:>11}  {:>7}  {:>9}",
                format!("{} more", rest.len()),
                "",
                "",
                grouped(images)
            )?;
        }
        Ok(())
    }

    fn lengths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, lengths) = match &self.survey.tokens {
            Some(tokens) => ("Tokens", tokens),
            None => ("Image tokens", &self.survey.image_tokens),
        };
        // Without a row there is nothing to tell, and rows without an image have no image tokens.
        if lengths.total() == 0 {
            return Ok(());
        }
        let [half, most] = [0.5, 0.95].map(|share| grouped(lengths.quantile(share) as u64));
        let max = grouped(lengths.max() as u64);
        writeln!(f, "\n{name} a row: half have at most {half}, 95% at most {most}, the longest {max}")?;
        let bars = lengths.histogram(HISTOGRAM_BARS);
        let highest = bars.iter().map(|bar| bar.2).max().unwrap_or(1).max(1);
        for (from, to, count) in bars {
            let length = (count * BAR_WIDTH).div_ceil(highest) as usize;
            let range = if from == to { from.to_string() } else { format!("{from}-{to}") };
            writeln!(
                f,
                "  {range:>13}  {:<width$}  {}",
                "█".repeat(length),
                grouped(count),
                width = BAR_WIDTH as usize
            )?;
        }
        if self.survey.tokens.is_some() {
            let learned = &self.survey.label_tokens;
            writeln!(f, "  {} of them are learned: {:.1} a row", grouped(learned.total()), learned.mean())?;
        }
        Ok(())
    }

    fn left_out(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Survey { too_long, no_label, tokens, .. } = self.survey;
        if tokens.is_none() {
            return writeln!(f, "\nName a checkpoint with --base-model to count the tokens of the text too.");
        }
        let limit =
            self.max_tokens.map_or(String::new(), |limit| format!(" (over --max-seq-length {limit})"));
        writeln!(
            f,
            "\nLeft out  {} too long{limit}, {} without anything to learn",
            grouped(*too_long),
            grouped(*no_label)
        )
    }

    fn batch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "A batch   {}:", counted(self.batch_size, "row"))?;
        if let Some((mean, most)) = self.batch_tokens() {
            write!(f, " {} tokens on average, at most {};", grouped(mean.round() as u64), grouped(most))?;
        }
        let patches = self.most_patches();
        let (compact, hf) = (bytes(patches * COMPACT_PATCH), bytes(patches * HF_PATCH));
        writeln!(f, " at most {} patches ({compact}; as HF's pixel_values {hf})", grouped(patches))
    }

    fn sample(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(sample) = &self.survey.sample else { return Ok(()) };
        let [before, after] = sample.runs.marks();
        writeln!(f, "\nThe first row as the model reads it, {before}what is learned{after} in brackets:\n")?;
        sample.runs.shown(SHOWN_CHARACTERS).lines().try_for_each(|line| writeln!(f, "  {line}"))
    }

    /// Names what nothing is done with: nobody should find out after a run that a column was not read.
    fn ignored(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ignored = &self.survey.ignored;
        if ignored.is_empty() {
            return Ok(());
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
        let what = "fields that no shape reads; --columns gives a field a meaning";
        writeln!(f, "Ignored   {}{more}: {what}", names.join(", "))
    }

    fn bad_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Survey { bad, bad_rows, bad_kinds, .. } = self.survey;
        writeln!(f, "Bad rows  {}", if *bad == 0 { "none".into() } else { grouped(*bad) })?;
        for (kind, count) in bad_kinds {
            writeln!(f, "  {:>9}  {kind}", grouped(*count))?;
        }
        for row in bad_rows.iter().take(LISTED_BAD_ROWS) {
            writeln!(f, "  {row}")?;
        }
        match bad.saturating_sub(LISTED_BAD_ROWS as u64) {
            0 => Ok(()),
            more => writeln!(f, "  and {} more", grouped(more)),
        }
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shapes(f)?;
        self.sizes(f)?;
        self.lengths(f)?;
        self.left_out(f)?;
        self.batch(f)?;
        self.ignored(f)?;
        self.bad_rows(f)?;
        self.sample(f)
    }
}

fn run_json(run: &Run) -> Value {
    json!({"learned": run.trained, "tokens": run.tokens, "text": run.text})
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

/// Bytes in decimal units, as the rest of the house prints them.
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
        row::RowId,
        shape::Shape,
        survey::SampleRow,
        text::{Encoded, Runs},
    };

    fn lengths(values: &[usize]) -> Lengths {
        let mut lengths = Lengths::default();
        values.iter().for_each(|value| lengths.add(*value));
        lengths
    }

    fn survey() -> Survey {
        Survey {
            rows: 1003,
            shapes: [(Shape::OpenAiMessages, 1000), (Shape::Llava, 2)].into(),
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
            bad_rows: vec!["train.jsonl, row 17: image 1: the image is empty (0 bytes)".into()],
            bad_kinds: [("with an image that cannot be decoded".into(), 1)].into(),
            ignored: [("id".into(), 1003), ("split".into(), 7)].into(),
            sample: Some(sample(vec![
                Run {
                    trained: false,
                    tokens: 900,
                    text: format!("user\n{}\u{1b}[2J!\nassistant\n", "x".repeat(900)),
                },
                Run { trained: true, tokens: 5, text: "a cat<|im_end|>".into() },
            ])),
            ..Survey::default()
        }
    }

    fn sample(runs: Vec<Run>) -> SampleRow {
        let id = RowId { file: std::path::Path::new("train.jsonl").into(), number: 1 };
        SampleRow { id, encoded: Encoded::default(), runs: Runs(runs) }
    }

    #[test]
    fn a_row_with_brackets_of_its_own_is_shown_with_others() {
        let said = Run { trained: true, tokens: 9, text: "[[1, 2], [3, 4]]".into() };
        let survey = Survey { sample: Some(sample(vec![said])), ..survey() };
        let text = Report { survey: &survey, batch_size: 2, max_tokens: None }.to_string();
        assert!(text.contains("⟦what is learned⟧") && text.contains("⟦[[1, 2], [3, 4]]⟧"), "{text}");
    }

    #[test]
    fn rows_without_images_have_no_histogram_of_image_tokens() {
        let rows = Survey { rows: 3, image_tokens: lengths(&[0, 0, 0]), ..Survey::default() };
        let told = |survey: &Survey| Report { survey, batch_size: 2, max_tokens: None }.to_string();
        assert!(!told(&rows).contains("Image tokens"), "{}", told(&rows));
        let some = Survey { image_tokens: lengths(&[0, 0, 12]), ..rows };
        assert!(told(&some).contains("Image tokens a row: half have at most 0"), "{}", told(&some));
    }

    #[test]
    fn text_says_what_a_person_asks() {
        let survey = survey();
        let text = Report { survey: &survey, batch_size: 2, max_tokens: Some(2048) }.to_string();
        for line in [
            "Rows      1,003",
            "      1,000  OpenAI messages",
            "Images    1,002, 2.50 GB encoded",
            "    3000x2048     1204x812     1247      1,002",
            "Tokens a row: half have at most 1,290, 95% at most 1,350, the longest 1,350",
            "  15 of them are learned: 5.0 a row",
            "Left out  0 too long (over --max-seq-length 2048), 1 without anything to learn",
            "A batch   2 rows: 2,627 tokens on average, at most 2,650; at most 9,976 patches (5.9 MB; as HF's \
             pixel_values 46.9 MB)",
            "Ignored   id, split (7 of 1,003 rows): fields that no shape reads; --columns gives a field a meaning",
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
        let json = Report { survey: &survey, batch_size: 2, max_tokens: None }.to_json();
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
