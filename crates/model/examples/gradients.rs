//! One training step for the peers' comparison: `gradients MODEL ADAPTER BATCH OUT [NOISE]`.
//!
//! `BATCH` is a safetensors file with ids, labels, segments and grids (i32) and patches (u8); `OUT` gets the
//! gradient of every trained tensor under PEFT's name. Prints the sums of the batch as one line of JSON.

use garden_model::{
    Adapter, Checkpoint, Dtype, Model, ModelConfig, ModelWeights, PackedBatch, Precision, Recompute, Session,
    Shapes, TensorSpec, TensorWriter,
};
use safetensors::SafeTensors;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, adapter, batch, out, noise @ ..] = arguments.as_slice() else {
        return Err("gradients MODEL ADAPTER BATCH OUT [NOISE]".into());
    };
    let noise = noise.first().map_or(Ok(0), |noise| noise.parse())?;
    let folder = Path::new(model);
    let config = ModelConfig::read(folder)?;
    let adapter = Adapter::read(Path::new(adapter), &config)?;
    let weights = ModelWeights::load(&Checkpoint::open(folder)?, &config, Precision::AsStored, |_| {})?;
    let mut model = Model::with_adapter(config, weights, adapter);

    let bytes = std::fs::read(batch)?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let integers = |name: &str| -> Result<Vec<i32>, Box<dyn Error>> {
        let data = tensors.tensor(name)?.data();
        Ok(data
            .chunks_exact(4)
            .map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    };
    let sizes = |name: &str| -> Result<Vec<usize>, Box<dyn Error>> {
        Ok(integers(name)?.into_iter().map(usize::try_from).collect::<Result<_, _>>()?)
    };
    let ids: Vec<u32> = sizes("ids")?.into_iter().map(|id| id as u32).collect();
    let (labels, segments, grids) = (integers("labels")?, sizes("segments")?, sizes("grids")?);
    let grids: Vec<[usize; 3]> = grids.chunks_exact(3).map(|grid| [grid[0], grid[1], grid[2]]).collect();
    let patches = tensors.tensor("patches")?.data();
    let batch = PackedBatch { ids: &ids, labels: &labels, segments: &segments, patches, grids: &grids };
    let count: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
    let shapes = Shapes { tokens: ids.len(), patches: count, labels: ids.len() };
    let mut session = Session::new(&model, shapes, Recompute::Always)?;
    let sums = session.step(&model, &batch, 1.0, noise)?;

    let mut specs = Vec::new();
    session.visit(&mut model, &mut |tensor| {
        let shape = vec![tensor.gradient.len()];
        specs.push(TensorSpec { name: tensor.name.to_owned(), dtype: Dtype::F32, shape });
    });
    let mut writer = TensorWriter::create(Path::new(out), &specs, &[])?;
    let mut written = Ok(());
    session.visit(&mut model, &mut |tensor| {
        if written.is_ok() {
            written = writer.write_f32(tensor.gradient);
        }
    });
    written?;
    writer.finish()?;
    println!("{{\"loss\": {}, \"tokens\": {}, \"correct\": {}}}", sums.loss, sums.tokens, sums.correct);
    Ok(())
}
