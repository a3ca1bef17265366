//! Rows as Parquet columns: `messages`, a list of turns whose content is a list of parts with text or an
//! image, and `tools`. Tools and calls of them are JSON as text: each has fields of its own, which columns
//! cannot have.

use super::Rows;
use crate::{
    error::DataError,
    row::{Conversation, ImageSource, Json, Part},
};
use arrow_array::{
    ArrayRef, RecordBatch, StringArray,
    builder::{ArrayBuilder, BinaryBuilder, Int64Builder, ListBuilder, StringBuilder, StructBuilder},
};
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::{EnabledStatistics, WriterProperties},
};
use std::{fs::File, path::Path, sync::Arc};

/// Bytes of a row group: few enough to be written from memory, enough to be read in one go.
const GROUP_BYTES: usize = 32 << 20;

/// Writes all rows.
pub(super) fn write(file: &mut File, path: &Path, rows: &mut Rows<'_>) -> Result<(), DataError> {
    let broken =
        |error: &dyn std::fmt::Display| DataError::File { path: path.to_owned(), reason: error.to_string() };
    // Dictionaries and statistics would only store the images again.
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let schema = Arc::new(Schema::new(vec![
        Field::new("messages", list(turn_fields()), false),
        Field::new("tools", DataType::Utf8, true),
    ]));
    let mut writer =
        ArrowWriter::try_new(&mut *file, schema.clone(), Some(properties)).map_err(|error| broken(&error))?;
    for row in rows {
        let batch = batch(&schema, &row?).map_err(|error| broken(&error))?;
        writer.write(&batch).map_err(|error| broken(&error))?;
        if writer.in_progress_size() > GROUP_BYTES {
            writer.flush().map_err(|error| broken(&error))?;
        }
    }
    writer.close().map(drop).map_err(|error| broken(&error))
}

fn list(fields: Fields) -> DataType {
    DataType::List(Arc::new(Field::new("item", DataType::Struct(fields), true)))
}

fn turn_fields() -> Fields {
    vec![
        Field::new("role", DataType::Utf8, true),
        Field::new("content", list(part_fields()), true),
        Field::new("weight", DataType::Int64, true),
        Field::new("tool_calls", DataType::Utf8, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("tool_call_id", DataType::Utf8, true),
    ]
    .into()
}

fn part_fields() -> Fields {
    vec![
        Field::new("type", DataType::Utf8, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("image", DataType::Struct(image_fields()), true),
    ]
    .into()
}

/// What the `datasets` library stores for an image.
fn image_fields() -> Fields {
    vec![Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)].into()
}

/// One row as a batch of one.
fn batch(schema: &Arc<Schema>, row: &Conversation) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let texts = || Box::new(StringBuilder::new()) as Box<dyn ArrayBuilder>;
    let image = StructBuilder::new(image_fields(), vec![Box::new(BinaryBuilder::new()), texts()]);
    let part = StructBuilder::new(part_fields(), vec![texts(), texts(), Box::new(image)]);
    let weight = Box::new(Int64Builder::new());
    let content = Box::new(ListBuilder::new(part));
    let turn = StructBuilder::new(turn_fields(), vec![texts(), content, weight, texts(), texts(), texts()]);
    let mut turns = ListBuilder::new(turn);
    for turn in &row.turns {
        let builder = turns.values();
        append_text(builder, 0, Some(turn.role.name()));
        if let Some(parts) = builder.field_builder::<ListBuilder<StructBuilder>>(1) {
            turn.parts.iter().for_each(|part| append_part(parts.values(), part));
            parts.append(true);
        }
        if let Some(weights) = builder.field_builder::<Int64Builder>(2) {
            weights.append_option(super::weight(turn));
        }
        append_text(builder, 3, json(&turn.tool_calls)?.as_deref());
        append_text(builder, 4, turn.name.as_deref());
        append_text(builder, 5, turn.tool_call_id.as_deref());
        builder.append(true);
    }
    turns.append(true);
    let tools: ArrayRef = Arc::new(StringArray::from(vec![json(&row.tools)?]));
    RecordBatch::try_new(schema.clone(), vec![Arc::new(turns.finish()), tools])
}

/// Values as one text; nothing where there are none.
fn json(values: &[Json]) -> Result<Option<String>, arrow_schema::ArrowError> {
    let text = (!values.is_empty()).then(|| serde_json::to_string(values)).transpose();
    text.map_err(|error| arrow_schema::ArrowError::JsonError(error.to_string()))
}

fn append_part(builder: &mut StructBuilder, part: &Part) {
    let (kind, text, source) = match part {
        Part::Text(text) => ("text", Some(text.as_str()), None),
        Part::Image(source) => ("image", None, Some(source)),
    };
    append_text(builder, 0, Some(kind));
    append_text(builder, 1, text);
    if let Some(image) = builder.field_builder::<StructBuilder>(2) {
        let (bytes, path) = match source {
            Some(ImageSource::Bytes(bytes)) => (Some(bytes), None),
            Some(ImageSource::Url(url)) => (None, Some(url.clone())),
            Some(ImageSource::Held(_)) => (None, None),
            Some(ImageSource::Path(path)) => (None, Some(path.display().to_string())),
            None => (None, None),
        };
        if let Some(builder) = image.field_builder::<BinaryBuilder>(0) {
            builder.append_option(bytes);
        }
        append_text(image, 1, path.as_deref());
        image.append(source.is_some());
    }
    builder.append(true);
}

/// Appends to a text field of a struct; the fields above are built with these builders.
fn append_text(builder: &mut StructBuilder, field: usize, text: Option<&str>) {
    if let Some(builder) = builder.field_builder::<StringBuilder>(field) {
        builder.append_option(text);
    }
}
