//! Rows that lie a stride apart, perhaps inside wider rows.

/// Rows to read: row `i` starts at `i * stride`.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Values, from the first of the first row.
    pub data: &'a [f32],
    /// From the start of a row to that of the next.
    pub stride: usize,
}

/// Rows to write.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Values, from the first of the first row.
    pub data: &'a mut [f32],
    /// From the start of a row to that of the next.
    pub stride: usize,
}
