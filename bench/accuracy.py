"""Does it learn as well? Our trainer beside Hugging Face's Trainer with PEFT: same model, rows, steps and settings.

    python bench/accuracy.py --work DIR [--task colours|digits] [--own-start] [--seeds 1 2 3 4 5 6]

Needs a Python with peers/requirements.txt (and scikit-learn for its 1,797 scanned digits) and `cargo build --release -p model-garden`.
A tiny model with random weights learns to name the colour of a made picture, or a handwritten digit, by LoRA alone. Both trainers begin with the same
adapter and read the rows in the same order, so that only the trainers differ; with `--own-start` each draws its own.
Both adapters are asked by the same judge, transformers' own greedy decoding, about pictures that neither saw.

The rule, settled before the first run: the trainers are equal where the mean over the seeds of the difference in accuracy is at most two points.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from peft import PeftModel
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from hf_trainer import conversation, read_rows

ROOT = Path(__file__).resolve().parent.parent
GARDEN = os.environ.get("MODEL_GARDEN_BIN", ROOT / "target/release/model-garden")
HELD_OUT_ROWS, SIDE = 400, 56
TRAINING_ROWS = {"colours": 480, "digits": 1376}  # whole batches in an epoch
BATCH = 16
EQUAL = 2.0  # points
MASK = (1 << 64) - 1


def settings(options):
    """Names are those of both trainers."""
    return {
        "--batch-size": BATCH,
        "--gradient-accumulation-steps": 1,
        "--learning-rate": options.learning_rate,
        "--lr-scheduler-type": "cosine",
        "--warmup-steps": options.warmup_steps,
        "--weight-decay": 0.0,
        "--lora-r": 64,
        "--lora-alpha": options.lora_alpha,
        "--logging-steps": 1,
    }


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr}")


def make_colours(folder, seed):
    for name, rows, its_seed in (("training", TRAINING_ROWS["colours"], seed), ("held-out", HELD_OUT_ROWS, seed + 1)):
        create = (GARDEN, "dataset", "create", "--kind", "colours", "--rows", rows, "--size", f"{SIDE}x{SIDE}")
        run(*create, "--seed", its_seed, "--output", folder / name)


def make_digits(folder, seed):
    """Scans of digits written by 43 people, 8 x 8 grey levels, enlarged; the seed decides which are held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = {"held-out": order[:HELD_OUT_ROWS], "training": order[HELD_OUT_ROWS:][: TRAINING_ROWS["digits"]]}
    for name, numbers in parts.items():
        (folder / name / "images").mkdir(parents=True)
        with open(folder / name / "train.jsonl", "w") as lines:
            for number in numbers:
                picture = Image.fromarray((digits.images[number] * 255 / 16).astype("uint8"))
                path = f"images/{number:06}.png"
                picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB").save(folder / name / path)
                content = [{"type": "image", "image": path}, {"type": "text", "text": "Which digit is it?"}]
                answer = {"role": "assistant", "content": str(digits.target[number])}
                lines.write(json.dumps({"messages": [{"role": "user", "content": content}, answer]}) + "\n")


def mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def our_order(rows, seed, epoch):
    """The order of an epoch, as crates/data/src/shuffle.rs computes it."""
    state, keys = mix(seed ^ mix(epoch)), []
    for _ in range(6):
        state = state + 0x9E3779B97F4A7C15 & MASK
        keys.append(mix(state))
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1

    def permute(value):
        left, right = value >> half, value & mask
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) & mask)
        return (left << half) | right

    def row(value):
        value = permute(value)
        while value >= rows:
            value = permute(value)
        return value

    return [row(place) for place in range(rows)]


def share_right(model, adapter, rows):
    """Answers that are right to the letter."""
    processor = AutoProcessor.from_pretrained(model, padding_side="left")
    network = Qwen2_5_VLForConditionalGeneration.from_pretrained(model)
    if adapter:
        network = PeftModel.from_pretrained(network, adapter)
    network.eval()
    right = 0
    for start in range(0, len(rows), 50):
        asked = rows[start : start + 50]
        texts = [processor.apply_chat_template(conversation(row, with_answer=False), add_generation_prompt=True) for row in asked]
        batch = processor(text=texts, images=[row["image"] for row in asked], padding=True, return_tensors="pt")
        with torch.no_grad():
            ids = network.generate(**batch, max_new_tokens=8, do_sample=False)
        given = processor.tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(text.strip() == row["answer"] for text, row in zip(given, asked))
    return 100 * right / len(rows)


def losses(folder):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def compare(folder, seed, options):
    folder.mkdir(parents=True)
    model, training = folder / "model", folder / "training"
    run(GARDEN, "init", "--preset", "tiny", "--seed", seed, "--output", model)
    {"colours": make_colours, "digits": make_digits}[options.task](folder, seed)
    words = [word for pair in settings(options).items() for word in pair]
    ours = (GARDEN, "train-vision", "--base-model", model, "--dataset", training, "--optim", "adamw", "--seed", seed, *words)
    run(*ours, "--epochs", 1000, "--max-steps", options.steps, "--output-dir", folder / "ours")
    theirs = [sys.executable, ROOT / "bench/hf_trainer.py", "--model", model, "--dataset", training / "train.jsonl"]
    if not options.own_start:
        # The first step of a warm-up has a rate of zero: the adapter as it was drawn.
        run(*ours, "--max-steps", 1, "--output-dir", folder / "start")
        rows = TRAINING_ROWS[options.task]
        order = [row for epoch in range(-(-options.steps * BATCH // rows)) for row in our_order(rows, seed, epoch)]
        (folder / "order.json").write_text(json.dumps(order))
        theirs += ["--adapter", folder / "start", "--order", folder / "order.json"]
    run(*theirs, "--output", folder / "theirs", "--steps", options.steps, "--seed", seed, *words)
    rows = read_rows(folder / "held-out/train.jsonl")
    apart = [abs(a - b) / b for a, b in zip(losses(folder / "ours"), losses(folder / "theirs"))]
    return {
        "before": share_right(model, None, rows[:100]),
        "ours": share_right(model, folder / "ours", rows),
        "theirs": share_right(model, folder / "theirs", rows),
        "apart": [max(apart[:steps]) for steps in (20, 100)],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--task", choices=TRAINING_ROWS, default="colours")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--lora-alpha", type=int, default=64)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--own-start", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    options = parser.parse_args()
    torch.set_num_threads(1)  # a tiny model's products are too small to share
    found = []
    for seed in options.seeds:
        result = compare(options.work / str(seed), seed, options)
        found.append(result)
        apart = ", ".join(f"{share:.1e}" for share in result["apart"])
        print(
            f"seed {seed}: before {result['before']:.1f} %, Model Garden {result['ours']:.1f} %, HF Trainer + PEFT {result['theirs']:.1f} %;"
            f" losses apart by at most {apart} of themselves in 20 and 100 steps",
            flush=True,
        )
    for name in ("ours", "theirs"):
        shares = [result[name] for result in found]
        print(f"{name}: mean {statistics.mean(shares):.2f} %, deviation {statistics.pstdev(shares):.2f}, {min(shares):.1f} to {max(shares):.1f}")
    difference = statistics.mean(result["ours"] - result["theirs"] for result in found)
    print(f"mean difference {difference:+.2f} points: {'equal' if abs(difference) <= EQUAL else 'NOT equal'} (the rule: at most {EQUAL:g})")


if __name__ == "__main__":
    main()
