//! Trains an adapter from a program: `cargo run --release --example train -- MODEL ROWS OUTPUT`.

use garden_train::{Cancel, Event, RunConfig, RunError, TrainOptions, train};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, rows, output] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "three names")?;
    let config = RunConfig::resolve(TrainOptions {
        base_model: Some(model),
        dataset: Some(rows),
        output_dir: Some(output.into()),
        max_steps: Some(20),
        ..TrainOptions::default()
    })?;
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let mut observer = |event: &Event| match event {
        Event::Step(step) => {
            println!("step {}: loss {:.4}", step.step, step.loss);
            // The loss is good enough: a checkpoint is written, and the same settings would continue from it.
            if step.loss < 0.01 {
                stop.cancel()
            }
        }
        Event::Memory(memory) => println!("memory: {} bytes, {:?}", memory.resident_bytes, memory.verdict),
        _ => {}
    };
    let report =
        train(&config, &mut observer, &cancel).inspect_err(|error: &RunError| eprintln!("{error}"))?;
    println!("{:?} after {} steps: {}", report.reason, report.state.global_step, report.output_dir.display());
    Ok(())
}
