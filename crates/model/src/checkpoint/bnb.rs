//! bitsandbytes' 4-bit matrices inside a checkpoint.
//!
//! Takes the name of a matrix and gives its [`Nf4`], its bytes still in the mapped file. The parts beside it
//! (scales, maps and a small JSON) must agree with each other and with the shape that the configuration
//! gives.

use super::{Checkpoint, Located};
use crate::tensor_file::{Dtype, TensorFileError, finite_as_f32};
use garden_engine::{Elements, Weight};
use garden_engine::{NF4_BLOCK, NF4_CODES, NF4_NESTED_BLOCK, Nf4, Nf4Scales};
use serde::Deserialize;

/// What stands beside a 4-bit matrix, after its name and a dot; plain scales lack the nested parts.
pub const NF4_PARTS: [&str; 5] = ["absmax", "quant_map", "nested_absmax", "nested_quant_map", STATE];
const STATE: &str = "quant_state.bitsandbytes__nf4";
/// The JSON in the state is some 200 bytes.
const LARGEST_STATE: usize = 4096;

#[derive(Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

pub(super) fn is_quantized(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.find(&format!("{name}.{STATE}")).is_some()
}

/// Checks every part of the 4-bit matrix `name` but the values of its codes and scales.
pub(super) fn check(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<(), TensorFileError> {
    parts(checkpoint, name, shape).map(drop)
}

/// The 4-bit matrix `name`, codes and scales borrowed from the mapped file.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    name: &str,
    shape: [usize; 2],
) -> Result<Weight, TensorFileError> {
    let Parts { codes, scales } = parts(checkpoint, name, &shape)?;
    let [rows, cols] = shape;
    let fault = |error: garden_engine::WeightError| codes.fault(error.to_string());
    let nf4 = Nf4::from_parts(rows * cols, codes.shared::<u8>()?, scales.read()?).map_err(fault)?;
    Weight::new(rows, cols, Elements::Nf4(nf4)).map_err(fault)
}

/// The tensors of one 4-bit matrix, each of the type and the length that it must have.
struct Parts<'a> {
    codes: Located<'a>,
    scales: ScaleParts<'a>,
}

enum ScaleParts<'a> {
    Plain(Located<'a>),
    Nested { absmax: Located<'a>, scales: Located<'a>, map: Located<'a>, offset: f32 },
}

fn parts<'a>(checkpoint: &'a Checkpoint, name: &str, shape: &[usize]) -> Result<Parts<'a>, TensorFileError> {
    let state = state(checkpoint, name, shape)?;
    let elements: usize = shape.iter().product();
    let codes = sized(checkpoint.require(name)?, Dtype::U8, elements.div_ceil(2))?;
    quant_map(checkpoint, name)?;
    let scales = scale_parts(checkpoint, name, &state, elements.div_ceil(NF4_BLOCK))?;
    Ok(Parts { codes, scales })
}

fn state(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<State, TensorFileError> {
    let found = checkpoint.require(&format!("{name}.{STATE}"))?;
    let bytes = (found.entry.bytes.end - found.entry.bytes.start) as usize;
    if bytes > LARGEST_STATE {
        return Err(found.fault(format!("{bytes} bytes is no quantisation state")));
    }
    let mut text = vec![0; bytes];
    found.file.read_at(found.entry.bytes.start, &mut text)?;
    let state: State = serde_json::from_slice(&text).map_err(|error| found.fault(error.to_string()))?;
    if state.quant_type != "nf4" || state.blocksize != NF4_BLOCK {
        let (kind, block) = (&state.quant_type, state.blocksize);
        return Err(
            found.fault(format!("{kind} in blocks of {block}; only nf4 in blocks of {NF4_BLOCK} is read"))
        );
    }
    if state.shape != shape {
        return Err(found.fault(format!("its shape is {:?}, config.json makes it {shape:?}", state.shape)));
    }
    Ok(state)
}

/// The codes' values must be the ones the engine computes with.
fn quant_map(checkpoint: &Checkpoint, name: &str) -> Result<(), TensorFileError> {
    let found = checkpoint.require(&format!("{name}.quant_map"))?;
    match floats(sized(found, Dtype::F32, NF4_CODES.len())?)? == NF4_CODES {
        true => Ok(()),
        false => Err(found.fault("it is not the NF4 map")),
    }
}

fn scale_parts<'a>(
    checkpoint: &'a Checkpoint,
    name: &str,
    state: &State,
    blocks: usize,
) -> Result<ScaleParts<'a>, TensorFileError> {
    let part = |part: &str| checkpoint.require(&format!("{name}.{part}"));
    let absmax = part("absmax")?;
    if state.nested_blocksize.is_none() && state.nested_offset.is_none() {
        return Ok(ScaleParts::Plain(sized(absmax, Dtype::F32, blocks)?));
    }
    let (Some(NF4_NESTED_BLOCK), Some(offset)) = (state.nested_blocksize, state.nested_offset) else {
        return Err(absmax.fault(format!("its scales are not nested in blocks of {NF4_NESTED_BLOCK}")));
    };
    if !offset.is_finite() {
        return Err(absmax.fault(format!("the offset of its scales is {offset}")));
    }
    Ok(ScaleParts::Nested {
        absmax: sized(absmax, Dtype::U8, blocks)?,
        scales: sized(part("nested_absmax")?, Dtype::F32, blocks.div_ceil(NF4_NESTED_BLOCK))?,
        map: sized(part("nested_quant_map")?, Dtype::F32, 256)?,
        offset,
    })
}

impl ScaleParts<'_> {
    fn read(self) -> Result<Nf4Scales, TensorFileError> {
        match self {
            Self::Plain(absmax) => Ok(Nf4Scales::Plain(floats(absmax)?.into())),
            Self::Nested { absmax, scales, map, offset } => {
                let values = floats(map)?.into_boxed_slice();
                let map = values.try_into().map_err(|_| map.fault("it must have 256 values"))?;
                let (codes, scales) = (absmax.shared::<u8>()?, floats(scales)?.into());
                Ok(Nf4Scales::Nested { codes, scales, map, offset })
            }
        }
    }
}

/// The tensor itself, if it holds so many elements of this type.
fn sized(found: Located<'_>, dtype: Dtype, elements: usize) -> Result<Located<'_>, TensorFileError> {
    let entry = found.entry;
    match entry.dtype == dtype && entry.elements() == elements {
        true => Ok(found),
        false => Err(found.fault(format!(
            "it holds {} values of {:?} where {elements} of {dtype:?} belong",
            entry.elements(),
            entry.dtype
        ))),
    }
}

/// A small f32 tensor, owned and finite.
fn floats(found: Located<'_>) -> Result<Vec<f32>, TensorFileError> {
    let elements = found.entry.elements();
    let mut bytes = vec![0; 4 * elements];
    found.file.read_at(found.entry.bytes.start, &mut bytes)?;
    let mut values = Vec::with_capacity(elements);
    finite_as_f32(Dtype::F32, &bytes, &mut values)
        .map_err(|(index, value)| found.fault(format!("element {index} is {value}")))?;
    Ok(values)
}
