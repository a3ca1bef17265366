"""The founding case in full: 663 photos of 6 MP, batch 2 x 4, 250 steps, Hugging Face's Trainer beside ours.

    python bench/production_run.py --work DIR [--svg docs/pictures/production-run.svg]

Needs a Python with peers/requirements.txt and `cargo build --release -p model-garden`. Both train the same LoRA on the same tiny
model with the same rows, each under `model-garden memory run`, so that what is measured is what the data path keeps. Hugging Face's side
takes about 19 GB of RAM (`--rows` takes it down). DIR keeps model, photos and traces; what is there already is not made again.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GARDEN = os.environ.get("MODEL_GARDEN_BIN", ROOT / "target/release/model-garden")
# What a picture costs the model is no part of the question: few patches make steps cheap.
MAX_PIXELS = 112 * 112
BATCH, ACCUMULATION = 2, 4


def garden(*arguments):
    subprocess.run([GARDEN, *map(str, arguments)], check=True)


def prepare(options):
    model, photos = options.work / "model", options.work / "photos"
    if not model.exists():
        garden("init", "--preset", "tiny", "--output", model)
    if not (photos / "train.jsonl").exists():
        garden("dataset", "create", "--kind", "photos", "--rows", options.rows, "--size", "3000x2048", "--output", photos)
    return model, photos / "train.jsonl"


def commands(options, model, rows):
    """The runs by name: file stem, command."""
    hf = [sys.executable, ROOT / "bench/hf_trainer.py", "--model", model, "--dataset", rows, "--steps", options.steps]
    hf += ["--max-pixels", MAX_PIXELS, "--batch-size", BATCH, "--gradient-accumulation-steps", ACCUMULATION]
    ours = [GARDEN, "train-vision", "--base-model", model, "--dataset", rows, "--max-steps", options.steps]
    ours += ["--epochs", 1000, "--max-pixels", MAX_PIXELS, "--batch-size", BATCH, "--gradient-accumulation-steps", ACCUMULATION]
    ours += ["--resume", "never"]
    return {
        "HF Trainer": ("hf", [*hf, "--output"]),
        "HF Trainer, private copies": ("hf-fixed", [*hf, "--private-copies", "--output"]),
        "Model Garden": ("ours", [*ours, "--output-dir"]),
    }


def watched(options, name, stem, command):
    """Runs a command under watch; what was measured is in STEM.jsonl."""
    trace, output = options.work / f"{stem}.jsonl", options.work / f"{stem}-output"
    subprocess.run(["rm", "-rf", output])
    facts = ["--dataset-size", options.rows, "--samples-per-step", BATCH * ACCUMULATION]
    watch = [GARDEN, "memory", "run", "--interval", "250ms", "--name", name, "--out", trace, *facts, "--", *command, output]
    # The products of a tiny model are too small to share: torch's threads would only wait for one another.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(options.work / f"{stem}.log", "w") as log:
        done = subprocess.run(list(map(str, watch)), stdout=log, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}: see {log.name}")
    return trace


def owned(sample):
    return sample["anon"] + sample["shmem"] + sample["swap"]


def while_training(trace, steps):
    """The trace without the seconds in which the finished process gives its memory back."""
    cut = trace.with_suffix(".steps.jsonl")
    with open(trace) as lines, open(cut, "w") as out:
        out.writelines(line for line in lines if json.loads(line).get("step") != steps)
    return cut


def figures(trace):
    """Peak, growth and variation after the second step."""
    with open(trace) as lines:
        samples = [json.loads(line) for line in lines]
    run = [owned(sample) for sample in samples if (sample.get("step") or 0) > 2]
    return {"peak": max(run), "growth": run[-1] - run[0], "variation": max(run) - min(run)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=663)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--only", choices=["hf", "hf-fixed", "ours"], action="append")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model, rows = prepare(options)
    runs = commands(options, model, rows)
    traces = []
    for name, (stem, command) in runs.items():
        trace = options.work / f"{stem}.jsonl"
        if stem in (options.only or ["hf", "ours"]):
            watched(options, name, stem, command)
        if trace.exists():
            # Our trainer traces itself, with exact steps; HF's is what the watcher saw and read from its progress bar.
            own = options.work / f"{stem}-output/memory.jsonl"
            trace = own if own.exists() else while_training(trace, options.steps)
            traces.append(trace)
            told = subprocess.run([GARDEN, "memory", "analyze", trace, "--format", "json"], capture_output=True, text=True)
            verdict = json.loads(told.stdout)["verdict"]
            measured = {key: f"{value / 1e6:.1f} MB" for key, value in figures(trace).items()}
            print(f"{name}: {verdict}, {measured}", flush=True)
    if options.svg:
        title = f"{options.rows} photos of 6 MP, batch {BATCH} x {ACCUMULATION}"
        garden("memory", "report", *traces, "--svg", options.svg, "--title", title)


if __name__ == "__main__":
    main()
