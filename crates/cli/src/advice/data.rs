//! Advice about the errors of `garden-data`.

use super::Advice;
use garden_data::{BadRow, DataError, ImageError, LeftOut, RowError, SurveyLine, SurveyTopic, TextError};
use std::error::Error;

/// What the command line adds to an error of `garden-data`.
pub fn advice(error: &(dyn Error + 'static)) -> Option<Advice> {
    if let Some(DataError::ImageRoot(path)) = error.downcast_ref() {
        let text = format!("{}: --image-root needs a folder, and this is not one", path.display());
        return Some(Advice::Instead(text));
    }
    let also = error
        .downcast_ref()
        .map(about)
        .or_else(|| error.downcast_ref().map(|RowError { reason, .. }| about_row(reason)))
        .or_else(|| error.downcast_ref().map(about_row))
        .or_else(|| error.downcast_ref().map(about_image))
        .or_else(|| error.downcast_ref().map(about_text));
    also.flatten().map(Advice::Also)
}

/// What helps about an error of a dataset, or about the row inside it.
pub fn about(error: &DataError) -> Option<String> {
    let own = match error {
        DataError::Split { .. } => "choose with --split",
        DataError::Config { .. } => "name it with --split NAME/train",
        DataError::TooManyBadRows { .. } => "--max-bad-rows sets how many may be skipped",
        _ => return error.bad_row().and_then(|(_, reason)| about_row(reason)),
    };
    let inside = error.bad_row().and_then(|(_, reason)| about_row(reason));
    Some(inside.into_iter().fold(own.to_owned(), |own, inside| format!("{inside}; {own}")))
}

/// What helps about a bad row.
pub fn about_row(reason: &BadRow) -> Option<String> {
    Some(match reason {
        BadRow::Shape { .. } => "name other columns with --columns".into(),
        BadRow::Twice { .. } => "or say which is meant with --columns".into(),
        BadRow::UnreadImage { field } => {
            format!("say --columns image={}, or remove the field", printable(field))
        }
        BadRow::NoAnswer { .. } => "or name the column that has it with --columns response=...".into(),
        BadRow::NoColumn { .. } => "--columns names it, and the row must have it".into(),
        BadRow::LearnedTurn { .. } => "or learn everything with --train-on all".into(),
        BadRow::NoSuchImage { .. } => "--image-root names another folder to look in".into(),
        BadRow::OutsideRoot { .. } => "if the rows may read it, name its folder with --image-root".into(),
        BadRow::RemoteNotAllowed(_) => "allow such images with --allow-remote-images".into(),
        BadRow::LeftOut(LeftOut::TooLong { .. }) => "--max-seq-length sets the limit".into(),
        BadRow::Refused { field, .. } => return about_refused(field),
        BadRow::Image { source, .. } => return about_image(source),
        BadRow::Text(error) => return about_text(error),
        _ => return None,
    })
}

/// A row's own words without what would steer the terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// What helps about a line of a survey's report.
pub fn about_line(line: &SurveyLine<'_>) -> Option<String> {
    match line.topic? {
        SurveyTopic::NoTokenizer => Some("name a model folder with --base-model".into()),
        SurveyTopic::TokenLimit => Some("--max-seq-length sets the limit".into()),
        SurveyTopic::IgnoredFields => Some("--columns gives a field a meaning".into()),
        SurveyTopic::BadRow(reason) => about_row(reason),
    }
}

fn about_refused(field: &str) -> Option<String> {
    match field {
        "system_prompt" => Some("or say --columns system=system_prompt".into()),
        "min_pixels" | "max_pixels" | "total_pixels" | "resized_height" | "resized_width" => {
            Some("--min-pixels and --max-pixels set the limits".into())
        }
        _ => None,
    }
}

fn about_image(error: &ImageError) -> Option<String> {
    matches!(error, ImageError::VanishingSide { .. }).then(|| "--min-pixels sets it".into())
}

fn about_text(error: &TextError) -> Option<String> {
    matches!(error, TextError::Rewritten).then(|| "--train-on all learns every token".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_data::RowId;
    use std::path::Path;

    fn row() -> RowId {
        RowId { file: Path::new("train.jsonl").into(), number: 7 }
    }

    #[test]
    fn the_row_inside_an_error_is_advised_about() {
        let remote = || BadRow::RemoteNotAllowed("http://example.org/a.png".into());
        let one = about(&DataError::Row { row: row(), reason: remote() });
        assert_eq!(one.as_deref(), Some("allow such images with --allow-remote-images"));
        let last = Box::new(RowError { row: row(), reason: remote() });
        let many = about(&DataError::TooManyBadRows { bad: 2, rows: 3, max_share: 0.1, last });
        let said = many.expect("two flags");
        assert!(said.contains("--allow-remote-images") && said.contains("--max-bad-rows"), "{said}");
        assert_eq!(about(&DataError::NoRows), None);
    }

    #[test]
    fn an_error_is_found_whatever_layer_it_comes_from() {
        let vanishing = ImageError::VanishingSide { width: 100, height: 2 };
        let flag = Some(Advice::Also("--min-pixels sets it".into()));
        assert_eq!(advice(&vanishing), flag);
        let reason = BadRow::Image { number: 1, source: vanishing };
        assert_eq!(advice(&reason), flag);
        assert_eq!(advice(&DataError::Row { row: row(), reason }), flag);
        let root = DataError::ImageRoot("photos".into());
        let said = "photos: --image-root needs a folder, and this is not one";
        assert_eq!(advice(&root), Some(Advice::Instead(said.into())));
    }
}
