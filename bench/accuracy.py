"""Does it learn as well? Our trainer beside Hugging Face's Trainer with PEFT: same model, rows, steps and settings.

    python bench/accuracy.py --work DIR [--seeds 1 2]

Needs a Python with peers/requirements.txt and `cargo build --release -p model-garden`. The task is the demo's: name the colour of a picture,
from random weights, LoRA only. Both adapters are asked by the same judge, transformers' own greedy decoding, about pictures that neither saw.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from hf_trainer import conversation, read_rows

ROOT = Path(__file__).resolve().parent.parent
GARDEN = os.environ.get("MODEL_GARDEN_BIN", ROOT / "target/release/model-garden")
TRAINING_ROWS, HELD_OUT_ROWS, SIZE = 480, 400, "56x56"
# Both have learned the task by then; before, chance decides who sees the colours a few steps sooner.
STEPS = 400
# Names are those of both trainers.
SETTINGS = {
    "--batch-size": 16,
    "--gradient-accumulation-steps": 1,
    "--learning-rate": 1e-3,
    "--lr-scheduler-type": "cosine",
    "--warmup-steps": 20,
    "--weight-decay": 0.0,
    "--lora-r": 64,
    "--lora-alpha": 64,
}


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr}")


def share_right(model, adapter, rows):
    """Answers that are right to the letter."""
    processor = AutoProcessor.from_pretrained(model)
    network = Qwen2_5_VLForConditionalGeneration.from_pretrained(model)
    if adapter:
        network = PeftModel.from_pretrained(network, adapter)
    network.eval()
    right = 0
    for row in rows:
        text = processor.apply_chat_template(conversation(row, with_answer=False), add_generation_prompt=True)
        batch = processor(text=[text], images=[row["image"]], return_tensors="pt")
        with torch.no_grad():
            ids = network.generate(**batch, max_new_tokens=8, do_sample=False)
        given = processor.tokenizer.decode(ids[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        right += given.strip() == row["answer"]
    return right / len(rows)


def compare(folder, seed):
    model, training, held_out = folder / "model", folder / "training", folder / "held-out"
    run(GARDEN, "init", "--preset", "tiny", "--seed", seed, "--output", model)
    for path, rows, its_seed in ((training, TRAINING_ROWS, seed), (held_out, HELD_OUT_ROWS, seed + 1)):
        run(GARDEN, "dataset", "create", "--kind", "colours", "--rows", rows, "--size", SIZE, "--seed", its_seed, "--output", path)
    settings = [word for pair in SETTINGS.items() for word in pair]
    names = ["--base-model", model, "--dataset", training, "--output-dir", folder / "ours"]
    run(GARDEN, "train-vision", *names, "--optim", "adamw", "--epochs", 1000, "--max-steps", STEPS, "--seed", seed, *settings)
    names = ["--model", model, "--dataset", training / "train.jsonl", "--output", folder / "theirs"]
    run(sys.executable, ROOT / "bench/hf_trainer.py", *names, "--steps", STEPS, "--seed", seed, *settings)
    rows = read_rows(held_out / "train.jsonl")
    return {
        "before": share_right(model, None, rows[:100]),
        "Model Garden": share_right(model, folder / "ours", rows),
        "HF Trainer + PEFT": share_right(model, folder / "theirs", rows),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)  # a tiny model's products are too small to share
    for seed in options.seeds:
        shares = compare(options.work / str(seed), seed)
        print(f"seed {seed}:", ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items()), flush=True)


if __name__ == "__main__":
    main()
