//! Drives the image processor for comparisons with HF's: `bench/images.py` times it, `peers/test_images.py`
//! reads what it makes.
//!
//! Reads one JSON request a line from standard input and answers each with one line of JSON:
//! - `{"time": [FILE...], "rounds": N, "threads": N}`: milliseconds an image takes on all threads together: to
//!   compact patches, to HF's f32 `pixel_values`, and decoded only;
//! - `{"process": FILE, "output": FILE}`: writes `pixel_values` as raw f32, answers with grid and size;
//! - `{"encode": {"turns": [...]}, "image_tokens": [...]}`: answers with ids and which of them are
//!   trained on.
//!
//! Arguments: the checkpoint's folder, fewest pixels, most pixels.

use garden_data::{
    Conversation, DecodeLimits, Encoder, ImageDecoder, ImageError, ImageSource, ImageWorkspace, Part,
    PixelLimits, Processor, Role, TrainOn, Turn,
};
use serde_json::{Value, json};
use std::{
    error::Error,
    fs,
    io::{BufRead, Write, stdin, stdout},
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, min, max] = &arguments[..] else {
        return Err("usage: images CHECKPOINT MIN_PIXELS MAX_PIXELS".into());
    };
    let limits = PixelLimits { min: Some(min.parse()?), max: Some(max.parse()?) };
    let processor = Processor::from_dir(Path::new(folder), limits, DecodeLimits::default())?;
    let encoder = Encoder::from_dir(Path::new(folder))?;
    for line in stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = answer(&request, &processor, &encoder)
            .unwrap_or_else(|error| json!({"error": error.to_string()}));
        writeln!(stdout(), "{answer}")?;
    }
    Ok(())
}

fn answer(request: &Value, processor: &Processor, encoder: &Encoder) -> Outcome<Value> {
    if let Some(files) = request["time"].as_array() {
        let files = files
            .iter()
            .map(|file| fs::read(file.as_str().unwrap_or_default()))
            .collect::<Result<Vec<_>, _>>()?;
        let (rounds, threads) = (number(&request["rounds"])?, number(&request["threads"])?);
        let patches = milliseconds(&files, rounds, threads, |file, worker| {
            worker.patches.clear();
            processor.append_patches(file, &mut worker.workspace, &mut worker.patches)?;
            Ok(())
        })?;
        let values = milliseconds(&files, rounds, threads, |file, worker| {
            worker.patches.clear();
            worker.values.clear();
            processor.append_patches(file, &mut worker.workspace, &mut worker.patches)?;
            processor.append_pixel_values(&worker.patches, &mut worker.values);
            Ok(())
        })?;
        let decode = milliseconds(&files, rounds, threads, |file, worker| {
            worker.decoder.decode(file, DecodeLimits::default())?;
            Ok(())
        })?;
        return Ok(json!({"patches": patches, "values": values, "decode": decode}));
    }
    if let (Some(file), Some(output)) = (request["process"].as_str(), request["output"].as_str()) {
        let (mut patches, mut values) = (Vec::new(), Vec::new());
        let grid =
            processor.append_patches(&fs::read(file)?, &mut ImageWorkspace::default(), &mut patches)?;
        processor.append_pixel_values(&patches, &mut values);
        fs::write(output, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
        return Ok(json!({"grid": [1, grid.rows, grid.columns], "patch_bytes": patches.len()}));
    }
    let row = conversation(&request["encode"]["turns"])?;
    let tokens = request["image_tokens"].as_array().ok_or("image_tokens must be a list")?;
    let tokens = tokens.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let encoded = encoder.encode(&row, &tokens, TrainOn::Assistant)?;
    Ok(json!({"ids": encoded.ids, "trained": encoded.trained}))
}

fn number(value: &Value) -> Outcome<usize> {
    Ok(usize::try_from(value.as_u64().ok_or("a number is missing")?)?)
}

/// The buffers of a thread, recycled from image to image as a loader's worker does.
#[derive(Default)]
struct Worker {
    workspace: ImageWorkspace,
    decoder: ImageDecoder,
    patches: Vec<u8>,
    values: Vec<f32>,
}

/// Milliseconds an image takes when `threads` threads share `rounds` passes over the files. Each thread
/// processes one image before the clock starts, as HF's processes do.
fn milliseconds(
    files: &[Vec<u8>],
    rounds: usize,
    threads: usize,
    work: impl Fn(&[u8], &mut Worker) -> Result<(), ImageError> + Sync,
) -> Outcome<f64> {
    let count = files.len() * rounds;
    let next = AtomicUsize::new(0);
    let warm = Barrier::new(threads + 1);
    let run = || -> Result<(), ImageError> {
        let mut worker = Worker::default();
        let first = work(&files[0], &mut worker);
        warm.wait();
        first?;
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && at < count
        {
            work(&files[at % files.len()], &mut worker)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        warm.wait();
        let start = Instant::now();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(start.elapsed().as_secs_f64() * 1e3 / count as f64)
    })
}

fn conversation(turns: &Value) -> Outcome<Conversation> {
    let part = |part: &Value| match part["text"].as_str() {
        Some(text) => Part::Text(text.into()),
        None => Part::Image(ImageSource::Bytes(Vec::new())),
    };
    let turn = |turn: &Value| -> Outcome<Turn> {
        let role = turn["role"].as_str().and_then(Role::from_name).ok_or("an unknown role")?;
        Ok(Turn::new(role, turn["parts"].as_array().ok_or("no parts")?.iter().map(part).collect()))
    };
    let turns = turns.as_array().ok_or("no turns")?.iter().map(turn).collect::<Outcome<_>>()?;
    Ok(Conversation::new(turns))
}
