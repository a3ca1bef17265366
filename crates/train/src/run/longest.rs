//! Why rows are too long, and why none can be used.
//!
//! Takes a survey of the rows and the most tokens that a row may have. Says how long the longest row is, and
//! whether smaller images would make the rows fit.

use crate::numbers::verb;
use garden_data::{Processor, RowError, Survey};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest row of a dataset, with what makes it long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Longest {
    /// Its tokens.
    pub tokens: usize,
    /// The largest image area with which rows would fit, if images make them too long.
    pub pixels: Option<u64>,
}

impl Longest {
    /// The longest of the surveyed rows; `limit` is the most tokens that a row may have.
    pub fn of(survey: &Survey, processor: &Processor, limit: usize) -> Self {
        let tokens = survey.tokens.as_ref().map_or(0, |tokens| tokens.max());
        let per_token = u64::from(processor.config().patch_size * processor.config().merge_size).pow(2);
        Self { tokens, pixels: pixels_that_fit(survey, limit, per_token) }
    }
}

/// The largest area for each image with which a row of the usual text fits. Nothing if images take less than
/// half of a row, or if no area is small enough.
fn pixels_that_fit(survey: &Survey, limit: usize, pixels_per_token: u64) -> Option<u64> {
    let lengths = survey.tokens.as_ref()?;
    let of_images: u64 = survey.sizes.iter().map(|class| class.count * class.tokens as u64).sum();
    let (all, rows) = (lengths.total(), lengths.count().max(1));
    if survey.images == 0 || 2 * of_images < all {
        return None;
    }
    let text_of_a_row = all.saturating_sub(of_images).div_ceil(rows);
    let room = (limit as u64).checked_sub(text_of_a_row)?;
    let tokens = room / survey.images.div_ceil(rows);
    (tokens > 0).then_some(tokens * pixels_per_token)
}

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the longest {}", self.tokens)?;
        self.pixels.map_or(Ok(()), |_| write!(f, ", mostly for its images"))
    }
}

/// Why no row can be used.
#[derive(Debug, Clone)]
pub struct Unusable {
    /// All rows.
    pub rows: u64,
    /// Rows with more tokens than `limit`.
    pub too_long: u64,
    /// Rows without a token to learn.
    pub no_label: u64,
    /// Rows that cannot be read.
    pub bad: u64,
    /// The most tokens that a row may have.
    pub limit: usize,
    /// The longest row.
    pub longest: Longest,
    /// The first bad row, with what is wrong.
    pub first_bad: Option<RowError>,
}

impl Unusable {
    pub(super) fn of(survey: &Survey, longest: Longest, limit: usize) -> Self {
        let Survey { rows, too_long, no_label, bad, .. } = *survey;
        let first_bad = survey.bad_rows.first().cloned();
        Self { rows, too_long, no_label, bad, limit, longest, first_bad }
    }
}

/// An example of a bad row, as the end of a sentence.
pub(super) fn such_as(row: Option<&RowError>) -> String {
    row.map(|row| format!(", such as {row}")).unwrap_or_default()
}

/// The reasons, each with its number of rows.
impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { too_long, no_label, bad, limit, longest, first_bad, .. } = self;
        let are = |count: &u64| verb(*count, ["is", "are"]);
        let all = [
            (*too_long, format!("{too_long} {} longer than {limit} tokens, {longest}", are(too_long))),
            (*no_label, format!("{no_label} {} nothing to learn", verb(*no_label, ["has", "have"]))),
            (*bad, format!("{bad} {} bad{}", are(bad), such_as(first_bad.as_ref()))),
        ];
        let said: Vec<String> = all.into_iter().filter(|(rows, _)| *rows > 0).map(|(_, said)| said).collect();
        f.write_str(&said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_data::{Lengths, SizeClass};

    /// So many rows, each with one image of so many tokens and so many tokens of text.
    fn survey(rows: u64, image: usize, text: usize) -> Survey {
        let mut tokens = Lengths::default();
        (0..rows).for_each(|_| tokens.add(image + text));
        let class = SizeClass { size: (4000, 3000), resized: (4004, 2996), tokens: image, count: rows };
        Survey {
            rows,
            too_long: rows,
            images: rows,
            tokens: Some(tokens),
            sizes: vec![class],
            ..Survey::default()
        }
    }

    #[test]
    fn photos_are_named_as_the_reason_with_an_area_that_would_do() {
        let photos = survey(663, 15_301, 48);
        let pixels = pixels_that_fit(&photos, 2048, 784);
        assert_eq!(pixels, Some(2000 * 784));
        let said = Unusable::of(&photos, Longest { tokens: 15_349, pixels }, 2048).to_string();
        assert_eq!(said, "663 are longer than 2048 tokens, the longest 15349, mostly for its images");
    }

    #[test]
    fn long_texts_are_not_blamed_on_their_images() {
        assert_eq!(pixels_that_fit(&survey(10, 100, 5000), 2048, 784), None);
        assert_eq!(pixels_that_fit(&survey(10, 5000, 3000), 2048, 784), None, "no area would do");
        let none = Survey { images: 0, sizes: Vec::new(), ..survey(10, 0, 5000) };
        assert_eq!(pixels_that_fit(&none, 2048, 784), None);
        assert_eq!(Longest { tokens: 5000, pixels: None }.to_string(), "the longest 5000");
    }
}
