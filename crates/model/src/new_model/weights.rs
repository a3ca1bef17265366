//! Random weights, written as a stream.
//!
//! Takes a [`ModelConfig`] and a seed, and writes safetensors files, with an index where there is more than
//! one. Each value depends on the seed, the tensor's name and its place alone, so the files are the same for
//! any number of threads. Memory is one piece of a tensor, whatever the size of the model.

use super::{DEVIATION, InitError};
use crate::config::ModelConfig;
use crate::parameters::{Parameter, parameters};
use crate::random::Stream;
use crate::tensor_file::{Dtype, TensorSpec, TensorWriter};
use half::bf16;
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Hugging Face splits at 5 GB too.
const LARGEST_FILE: u64 = 5_000_000_000;
/// Elements made before they are written: large enough for threads, small beside any model.
const PIECE: usize = 1 << 22;
/// Elements one thread makes at a time.
const STRIP: usize = 1 << 14;

/// The norm before the head.
const LAST_NORM: &str = "model.language_model.norm.weight";

/// What the first values depend on.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub seed: u64,
    /// Weights of the norm before the head.
    pub last_norm: f32,
}

/// Writes all parameters of `config` into `dir`; `progress` is told the bytes written so far.
pub(super) fn write(
    dir: &Path,
    config: &ModelConfig,
    dtype: Dtype,
    start: Start,
    progress: &mut dyn FnMut(u64),
) -> Result<(), InitError> {
    let list = parameters(config);
    let files = split(&list, dtype);
    let mut done = 0;
    let mut weight_map = Map::new();
    for (index, part) in files.iter().enumerate() {
        let name = match files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        weight_map.extend(part.iter().map(|parameter| (parameter.name.clone(), json!(name))));
        let specs: Vec<TensorSpec> = part.iter().map(|parameter| spec(parameter, dtype)).collect();
        let mut writer = TensorWriter::create(&dir.join(name), &specs, &[("format", "pt")])?;
        for parameter in *part {
            write_parameter(&mut writer, parameter, dtype, start, &mut |bytes| {
                done += bytes;
                progress(done);
            })?;
        }
        writer.finish()?;
    }
    if files.len() > 1 {
        let index = json!({"metadata": {"total_size": done}, "weight_map": Value::Object(weight_map)});
        let path = dir.join("model.safetensors.index.json");
        garden_files::write(&path, index.to_string().as_bytes())
            .map_err(|source| InitError::Io { path, source })?;
    }
    Ok(())
}

fn spec(parameter: &Parameter, dtype: Dtype) -> TensorSpec {
    TensorSpec { name: parameter.name.clone(), dtype, shape: parameter.shape.clone() }
}

/// Bytes of the weights of `config`.
pub(super) fn total_bytes(config: &ModelConfig, dtype: Dtype) -> u64 {
    parameters(config).iter().map(|parameter| spec(parameter, dtype).bytes() as u64).sum()
}

/// Cuts the list into files of at most [`LARGEST_FILE`].
fn split(list: &[Parameter], dtype: Dtype) -> Vec<&[Parameter]> {
    let mut files = Vec::new();
    let (mut begin, mut size) = (0, 0);
    for (index, parameter) in list.iter().enumerate() {
        let bytes = spec(parameter, dtype).bytes() as u64;
        if index > begin && size + bytes > LARGEST_FILE {
            files.push(&list[begin..index]);
            (begin, size) = (index, 0);
        }
        size += bytes;
    }
    files.push(&list[begin..]);
    files
}

fn write_parameter(
    writer: &mut TensorWriter,
    parameter: &Parameter,
    dtype: Dtype,
    start: Start,
    written: &mut dyn FnMut(u64),
) -> Result<(), InitError> {
    let elements = parameter.elements();
    let size = dtype.bitsize() / 8;
    let mut bytes = vec![0; PIECE.min(elements) * size];
    let normal = Stream::new(start.seed, &parameter.name).normal(DEVIATION);
    let constant = constant(&parameter.name, start.last_norm);
    for start in (0..elements).step_by(PIECE) {
        let piece = &mut bytes[..PIECE.min(elements - start) * size];
        piece.par_chunks_mut(STRIP * size).enumerate().for_each(|(strip, out)| {
            let first = start + strip * STRIP;
            for (index, place) in out.chunks_exact_mut(size).enumerate() {
                let value = constant.unwrap_or_else(|| normal((first + index) as u64));
                match dtype {
                    Dtype::BF16 => place.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    _ => place.copy_from_slice(&value.to_le_bytes()),
                }
            }
        });
        writer.write(piece)?;
        written(piece.len() as u64);
    }
    Ok(())
}

/// Norms begin at one and biases at zero, as Hugging Face initialises them; the rest is drawn.
fn constant(name: &str, last_norm: f32) -> Option<f32> {
    match name {
        LAST_NORM => Some(last_norm),
        name if name.ends_with(".bias") => Some(0.0),
        name if name.contains("norm") || name.contains("ln_q") => Some(1.0),
        _ => None,
    }
}
