//! Rows of a Parquet file, by number.
//!
//! Takes a file and gives any of its rows as a [`Value`] that borrows from the decoded page. Rows in order
//! are read on from the last one; any other row is found by its row group and, inside it, by skipping whole
//! pages unread.

use crate::{columns::Columns, error::DataError, guarded::guarded, index, shape, value::Value};
use arrow_array::{
    Array, ArrayRef, GenericListArray, OffsetSizeTrait, RecordBatch, StructArray,
    cast::AsArray,
    types::{
        Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
        UInt32Type, UInt64Type,
    },
};
use arrow_schema::DataType;
use parquet::arrow::{
    ProjectionMask,
    arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
        RowSelection, RowSelector,
    },
};
use std::{
    borrow::Cow,
    fs::File,
    path::{Path, PathBuf},
};

/// The message if the reader panics, which only malformed files make it do.
const PANICKED: &str = "the file is damaged: its reader panicked";

/// An open Parquet file.
pub(crate) struct Table {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    columns: ProjectionMask,
    /// The names of the columns that are not read, and whether they hold images.
    unread: Vec<(String, bool)>,
    /// The first row of each row group, and the number of rows.
    starts: Vec<u64>,
    cursor: Option<Cursor>,
}

/// Reading in order: the row that comes next, and the one that came last.
struct Cursor {
    reader: ParquetRecordBatchReader,
    next: u64,
    batch: Option<RecordBatch>,
}

impl Table {
    /// Reads the footer of a file. Columns that mean something by `columns` are read like those that shapes
    /// know.
    pub fn open(path: &Path, columns: &Columns) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io(path))?;
        let broken = |reason: String| DataError::File { path: path.to_owned(), reason };
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = guarded(|| ArrowReaderMetadata::load(&file, options))
            .ok_or_else(|| broken(PANICKED.into()))?
            .map_err(|error| broken(error.to_string()))?;
        let mut starts = vec![0u64];
        for group in metadata.metadata().row_groups() {
            let rows =
                u64::try_from(group.num_rows()).map_err(|_| broken("a row group of negative size".into()))?;
            let end = starts.last().and_then(|start| start.checked_add(rows));
            starts.push(end.ok_or_else(|| broken("more rows than can be counted".into()))?);
        }
        let (columns, unread) = project(&metadata, columns);
        Ok(Self { path: path.to_owned(), file, metadata, columns, unread, starts, cursor: None })
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// A number that changes with the data: the footer says where every column of every row group is.
    pub fn fingerprint(&self) -> u64 {
        let numbers = self.metadata.metadata().row_groups().iter().flat_map(|group| {
            [
                group.num_rows(),
                group.total_byte_size(),
                group.compressed_size(),
                group.file_offset().unwrap_or(0),
            ]
        });
        index::fnv1a(&numbers.flat_map(i64::to_le_bytes).collect::<Vec<_>>())
    }

    /// Reads a row; it must be one of [`Table::rows`].
    pub fn row(&mut self, row: u64) -> Result<Value<'_>, DataError> {
        let broken = |path: &Path, reason: String| DataError::File { path: path.to_owned(), reason };
        if self.cursor.as_ref().is_none_or(|cursor| cursor.next != row) {
            let reader = guarded(|| self.reader_at(row))
                .ok_or_else(|| broken(&self.path, PANICKED.into()))?
                .map_err(|error| broken(&self.path, error.to_string()))?;
            self.cursor = Some(Cursor { reader, next: row, batch: None });
        }
        let missing = || broken(&self.path, format!("row {} is missing", row + 1));
        let cursor = self.cursor.as_mut().ok_or_else(missing)?;
        let read = guarded(|| cursor.reader.next().map(|read| read.map_err(|error| error.to_string())));
        let batch = match read.unwrap_or_else(|| Some(Err(PANICKED.into()))) {
            Some(Ok(batch)) if batch.num_rows() == 1 => batch,
            Some(Err(error)) => {
                // The reader's place is unknown now, so the next row opens a new one.
                cursor.next = u64::MAX;
                return Err(broken(&self.path, format!("row {}: {error}", row + 1)));
            }
            _ => return Err(missing()),
        };
        cursor.next += 1;
        let batch = cursor.batch.insert(batch);
        let schema = batch.schema_ref();
        let fields = schema.fields().iter().zip(batch.columns());
        let field = |(field, column): (&std::sync::Arc<arrow_schema::Field>, _)| {
            (Cow::Owned(field.name().clone()), value(column, 0))
        };
        let unread =
            self.unread.iter().map(|(name, image)| (Cow::Borrowed(&**name), Value::Unread { image: *image }));
        Ok(Value::Map(fields.map(field).chain(unread).collect()))
    }

    /// A reader whose first row is the given one.
    fn reader_at(&self, row: u64) -> Result<ParquetRecordBatchReader, parquet::errors::ParquetError> {
        let group = self.starts.partition_point(|start| *start <= row).saturating_sub(1);
        let start = self.starts.get(group).copied().unwrap_or(0);
        let (before, after) = ((row - start) as usize, (self.rows() - row) as usize);
        let file = self.file.try_clone()?;
        ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_projection(self.columns.clone())
            .with_row_groups((group..self.starts.len() - 1).collect())
            .with_row_selection(RowSelection::from(vec![
                RowSelector::skip(before),
                RowSelector::select(after),
            ]))
            .with_batch_size(1)
            .build()
    }
}

/// The columns to read, which are those that shapes know or refuse and those that the user named, and the
/// names of the others. If no column is to be read, all are, so that the rows are still counted.
fn project(metadata: &ArrowReaderMetadata, columns: &Columns) -> (ProjectionMask, Vec<(String, bool)>) {
    let fields = metadata.parquet_schema().root_schema().get_fields();
    let known = |name: &str| shape::is_known_field(name) || columns.sources().any(|source| source == name);
    let (roots, others): (Vec<_>, Vec<_>) = (0..fields.len()).partition(|i| known(fields[*i].name()));
    if roots.is_empty() {
        return (ProjectionMask::all(), Vec::new());
    }
    let unread =
        others.into_iter().map(|i| (fields[i].name().to_owned(), holds_images(&fields[i]))).collect();
    (ProjectionMask::roots(metadata.parquet_schema(), roots), unread)
}

/// Whether a column is of the type that `datasets` gives images: their bytes beside their path.
fn holds_images(column: &parquet::schema::types::Type) -> bool {
    let names = |field: &parquet::schema::types::Type| match field.is_group() {
        true => field.get_fields().iter().map(|field| field.name().to_owned()).collect(),
        false => Vec::new(),
    };
    let has = |name: &str| names(column).iter().any(|field| field == name);
    has("bytes") && has("path")
}

/// One value of a column.
fn value(array: &ArrayRef, row: usize) -> Value<'_> {
    macro_rules! integer {
        ($kind:ty) => {
            Value::Integer(array.as_primitive::<$kind>().value(row).into())
        };
    }
    if array.is_null(row) {
        return Value::Null;
    }
    match array.data_type() {
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(array.as_string_view().value(row)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(row)),
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Struct(_) => fields(array.as_struct(), row),
        DataType::List(_) => list(array.as_list::<i32>(), row),
        DataType::LargeList(_) => list(array.as_list::<i64>(), row),
        DataType::Int8 => integer!(Int8Type),
        DataType::Int16 => integer!(Int16Type),
        DataType::Int32 => integer!(Int32Type),
        DataType::Int64 => integer!(Int64Type),
        DataType::UInt8 => integer!(UInt8Type),
        DataType::UInt16 => integer!(UInt16Type),
        DataType::UInt32 => integer!(UInt32Type),
        DataType::UInt64 => large(array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float32 => Value::Number(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => Value::Number(array.as_primitive::<Float64Type>().value(row)),
        // No shape has dates, decimals or maps.
        _ => Value::Unread { image: false },
    }
}

fn large(number: u64) -> Value<'static> {
    i64::try_from(number).map_or(Value::Number(number as f64), Value::Integer)
}

fn text(text: &str) -> Value<'_> {
    Value::Text(Cow::Borrowed(text))
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(Cow::Borrowed(bytes))
}

fn fields(array: &StructArray, row: usize) -> Value<'_> {
    // Parquet has a place for every field of any row; the empty ones are not in this row.
    let columns = array.fields().iter().zip(array.columns()).filter(|(_, column)| !column.is_null(row));
    Value::Map(
        columns.map(|(field, column)| (Cow::Owned(field.name().clone()), value(column, row))).collect(),
    )
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>, row: usize) -> Value<'_> {
    let offsets = array.value_offsets();
    let span = offsets[row].as_usize()..offsets[row + 1].as_usize();
    let values = array.values();
    match values.data_type() {
        DataType::UInt8 if values.null_count() == 0 => {
            bytes(&values.as_primitive::<UInt8Type>().values()[span])
        }
        _ => Value::List(span.map(|i| value(values, i)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;

    #[test]
    fn columns_of_images_are_known_by_their_type() {
        let message = "message rows {
            optional group photo { optional binary bytes; optional binary path (UTF8); }
            optional group answer { optional binary text (UTF8); }
            optional binary note (UTF8);
        }";
        let rows = parse_message_type(message).unwrap();
        let found: Vec<bool> = rows.get_fields().iter().map(|column| holds_images(column)).collect();
        assert_eq!(found, [true, false, false]);
    }
}
