"""Milliseconds a batch takes from PIL images on: our collator beside HF's processor, on the same rows in one process.

    python bench/collator.py [--rounds 9]      (a Python with peers/requirements.txt; builds our side itself)

A row is a question about a photo that Pillow has opened and not decoded, as a dataset hands it over, and an answer. HF's side is what
TRL's collator does: the processor's chat template with tokens and pixels, and labels from them, on all cores of torch. Both sides take
turns, round by round, with images that were just opened, and medians are compared. Every batch is compared once: all keys but the
labels are equal bit for bit.

Then each side runs once more in a process of its own, over rows that a list holds, as the founding case did: what the process has more
at the end is what the list holds of decoded images, and what the side itself keeps.
"""

import argparse, io, os, shutil, statistics, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "crates/python/python"
CHECKPOINT = ROOT / "crates/data/tests/goldens/checkpoint"
SIZES = ((320, 240), (640, 480), (1280, 960), (3000, 2048))
LIMITS = {"min_pixels": 256 * 28 * 28, "max_pixels": 1280 * 28 * 28}
BATCH = 4
HELD = 120


def build():
    subprocess.run(["cargo", "build", "--release", "--package", "garden-python"], cwd=ROOT, check=True)
    shutil.copy(ROOT / "target/release/lib_native.so", PACKAGE / "model_garden/_native.abi3.so")


def photo(rng, width, height):
    import numpy as np
    from PIL import Image

    small = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def rows(photos):
    """Rows with images that were just opened: HF's side decodes them in place, and must do so every time."""
    from PIL import Image

    def row(data):
        image = {"type": "image", "image": Image.open(io.BytesIO(data))}
        question = {"role": "user", "content": [image, {"type": "text", "text": "What is on this photo? Answer in one sentence."}]}
        answer = {"role": "assistant", "content": [{"type": "text", "text": "A small lake between two hills, and a boat on it."}]}
        return [question, answer]

    return [row(data) for data in photos]


def by_hf():
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(CHECKPOINT, **LIMITS)
    padding = {"padding": True, "padding_side": "right"}

    def collate(rows):
        batch = processor.apply_chat_template(
            rows, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs=padding
        )
        labels = batch["input_ids"].clone()
        labels[batch["attention_mask"] == 0] = -100
        batch["labels"] = labels
        return batch

    return collate


def by_us(threads=None):
    from model_garden import VisionCollator

    return VisionCollator(CHECKPOINT, threads=threads, **LIMITS)


def compare(ours, theirs):
    import torch

    for name, value in theirs.items():
        assert name == "labels" or torch.equal(ours[name], value), name


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hold(side):
    """Megabytes that a pass over the rows of a list leaves behind."""
    import numpy as np

    photos = [photo(np.random.default_rng(n), 640, 480) for n in range(4)]
    collate = {"ours": by_us, "hf": by_hf}[side]()
    for _ in range(3):
        collate(rows(photos))
    held = rows(photos[n % 4] for n in range(HELD))
    before = resident()
    for at in range(0, HELD, BATCH):
        collate(held[at : at + BATCH])
    print((resident() - before) / 1e6)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=9, help="measurements of each; the median counts")
    arguments.add_argument("--no-build", action="store_true", help="measure the model_garden that Python finds")
    arguments.add_argument("--hold", choices=["ours", "hf"], help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if not options.no_build:
        build()
        sys.path.insert(0, str(PACKAGE))
        # The processes that hold rows measure the same package.
        os.environ["PYTHONPATH"] = f"{PACKAGE}:{os.environ.get('PYTHONPATH', '')}"
    if options.hold:
        return hold(options.hold)
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    sides = {"hf": by_hf(), "ours": by_us(), "one": by_us(threads=1)}
    print(f"ms a batch of {BATCH} photos, medians of {options.rounds} rounds taken in turn; {torch.get_num_threads()} threads of torch")
    print("size      |     HF |  ours | HF / ours | ours with one thread, HF / that")
    for width, height in SIZES:
        photos = [photo(rng, width, height) for _ in range(BATCH)]
        compare(sides["ours"](rows(photos)), sides["hf"](rows(photos)))
        taken = {name: [] for name in sides}
        for round in range(options.rounds + 1):
            for name, collate in sides.items():
                batch = rows(photos)
                start = time.perf_counter()
                collate(batch)
                if round:  # the first one warms up
                    taken[name].append((time.perf_counter() - start) * 1e3)
        hf, ours, one = (statistics.median(taken[name]) for name in ("hf", "ours", "one"))
        print(f"{width:>4}x{height:<4} | {hf:6.1f} | {ours:5.1f} | {hf / ours:8.1f}x | {one:5.1f}, {hf / one:.1f}x", flush=True)
    print(f"MB more after one pass over {HELD} rows that a list holds, each with a photo of 640x480 (0.9 MB decoded):")
    for side in ("hf", "ours"):
        command = [sys.executable, __file__, "--no-build", "--hold", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"  {side}: {float(done.stdout):.1f}")


if __name__ == "__main__":
    sys.exit(main())
