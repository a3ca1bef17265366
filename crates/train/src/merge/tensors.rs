//! One tensor of a merged model: base plus low-rank product, in the type it is written in.
//!
//! Takes a parameter and writes its bytes, row by row where its type allows it. Gives the number of elements
//! whose stored value differs from the base's.

use super::{MergeError, MergedAs};
use garden_engine::{NF4_BLOCK, NF4_CODES, NF4_NESTED_BLOCK, Nf4, Nf4Scales, Weight};
use garden_model::{Adapter, Checkpoint, Dtype, LoraPair, Parameter, TensorSpec, TensorWriter, read_matrix};
use half::bf16;
use rayon::prelude::*;
use serde_json::json;

/// Values handled at a time: enough work for every core, little beside a model.
const STRIPE: usize = 1 << 20;

pub(super) struct Merger<'a> {
    checkpoint: &'a Checkpoint,
    adapter: &'a Adapter,
    merged_as: MergedAs,
}

/// A stretch of the merged matrix beside the base's.
struct Stripe {
    base: Vec<f32>,
    merged: Vec<f32>,
}

impl<'a> Merger<'a> {
    pub fn new(checkpoint: &'a Checkpoint, adapter: &'a Adapter, merged_as: MergedAs) -> Self {
        Self { checkpoint, adapter, merged_as }
    }

    /// Its name as the base's files write it.
    fn name(&self, parameter: &Parameter) -> String {
        self.checkpoint.find(&parameter.name).map_or(parameter.name.clone(), |found| found.name.to_owned())
    }

    fn is_quantised(&self, parameter: &Parameter) -> bool {
        self.merged_as == MergedAs::FourBit && parameter.quantizable
    }

    /// The tensors that it is written as.
    pub fn specs(&self, parameter: &Parameter) -> Vec<TensorSpec> {
        let name = self.name(parameter);
        let spec = |suffix: &str, dtype, shape: Vec<usize>| TensorSpec {
            name: format!("{name}{suffix}"),
            dtype,
            shape,
        };
        if !self.is_quantised(parameter) {
            return vec![spec("", Dtype::BF16, parameter.shape.clone())];
        }
        let len = parameter.elements();
        let blocks = len.div_ceil(NF4_BLOCK);
        vec![
            spec("", Dtype::U8, vec![len.div_ceil(2), 1]),
            spec(".absmax", Dtype::U8, vec![blocks]),
            spec(".quant_map", Dtype::F32, vec![NF4_CODES.len()]),
            spec(".nested_absmax", Dtype::F32, vec![blocks.div_ceil(NF4_NESTED_BLOCK)]),
            spec(".nested_quant_map", Dtype::F32, vec![256]),
            spec(".quant_state.bitsandbytes__nf4", Dtype::U8, vec![STATE_BYTES]),
        ]
    }

    /// Bytes that it is written as.
    pub fn bytes(&self, parameter: &Parameter) -> usize {
        self.specs(parameter).iter().map(TensorSpec::bytes).sum()
    }

    /// Writes it; gives the number of elements that differ from the base.
    pub fn write(&self, parameter: &Parameter, writer: &mut TensorWriter) -> Result<u64, MergeError> {
        let rows = if parameter.shape.len() > 1 { parameter.shape[0] } else { 1 };
        let cols = parameter.elements() / rows.max(1);
        let weight = read_matrix(self.checkpoint, &parameter.name, [rows, cols])?;
        let module = parameter.name.strip_suffix(".weight").unwrap_or(&parameter.name);
        let pair = self.adapter.pair(module);
        if self.is_quantised(parameter) {
            return self.write_quantised(parameter, &weight, pair, writer);
        }
        let mut changed = 0;
        let rows_at_once = (STRIPE / cols.max(1)).max(1);
        for start in (0..rows).step_by(rows_at_once) {
            let stripe = self.stripe(&weight, pair, start, rows_at_once.min(rows - start));
            let as_stored =
                |values: &[f32]| values.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>();
            let (base, merged) = (as_stored(&stripe.base), as_stored(&stripe.merged));
            if let Some(at) = merged.iter().position(|value| !value.is_finite()) {
                let (name, index, value) = (parameter.name.clone(), start * cols + at, merged[at].to_f32());
                return Err(MergeError::NotFinite { name, index, value });
            }
            changed += base.iter().zip(&merged).filter(|(base, merged)| base != merged).count() as u64;
            writer.write(bytemuck::cast_slice(&merged))?;
        }
        Ok(changed)
    }

    /// Rows of the base and of base + scale * B A.
    fn stripe(&self, weight: &Weight, pair: Option<&LoraPair>, start: usize, rows: usize) -> Stripe {
        let cols = weight.cols();
        let mut base = vec![0.0; rows * cols];
        base.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, out)| weight.read(start + row, 0, out));
        let mut merged = base.clone();
        if let Some(pair) = pair {
            let (rank, scale) = (self.adapter.settings.rank, self.adapter.settings.scale());
            merged.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, out)| {
                add_row(out, &pair.b[(start + row) * rank..][..rank], &pair.a, scale);
            });
        }
        Stripe { base, merged }
    }

    fn write_quantised(
        &self,
        parameter: &Parameter,
        weight: &Weight,
        pair: Option<&LoraPair>,
        writer: &mut TensorWriter,
    ) -> Result<u64, MergeError> {
        let Stripe { base, merged } = self.stripe(weight, pair, 0, weight.rows());
        // bitsandbytes quantises values of 16 bits; the same roundings give the same codes.
        let quantise = |mut values: Vec<f32>| {
            values.par_iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
            Nf4::quantise(&values)
                .map_err(|source| MergeError::Quantise { name: parameter.name.clone(), source })
        };
        let codes = quantise(merged)?;
        let changed = match pair {
            None => 0,
            Some(_) => {
                let before = quantise(base)?;
                before.packed().iter().zip(codes.packed()).filter(|(before, after)| before != after).count()
                    as u64
            }
        };
        write_parts(&codes, &parameter.shape, writer)?;
        Ok(changed)
    }
}

/// `out += scale * sum_r b[r] * a[r, :]`, summed in f32 in the order of the ranks.
fn add_row(out: &mut [f32], b: &[f32], a: &[f32], scale: f32) {
    for (b, a) in b.iter().zip(a.chunks_exact(out.len())) {
        let factor = scale * b;
        out.iter_mut().zip(a).for_each(|(out, a)| *out += factor * a);
    }
}

/// The state's JSON is padded with spaces to one length, so that sizes are known before values are.
const STATE_BYTES: usize = 256;

fn write_parts(codes: &Nf4, shape: &[usize], writer: &mut TensorWriter) -> Result<(), MergeError> {
    let Nf4Scales::Nested { codes: absmax, scales, map, offset } = codes.scales() else {
        unreachable!("quantise makes nested scales");
    };
    let state = json!({
        "quant_type": "nf4",
        "blocksize": NF4_BLOCK,
        "dtype": "bfloat16",
        "shape": shape,
        "nested_blocksize": NF4_NESTED_BLOCK,
        "nested_dtype": "float32",
        "nested_offset": offset,
    });
    let mut state = state.to_string().into_bytes();
    state.resize(STATE_BYTES, b' ');
    writer.write(codes.packed())?;
    writer.write(absmax)?;
    writer.write_f32(&NF4_CODES)?;
    writer.write_f32(scales)?;
    writer.write_f32(map.as_slice())?;
    Ok(writer.write(&state)?)
}
