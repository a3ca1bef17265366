"""Plans beside the runs they are made for: `python bench/plan.py [--shapes small,medium] [--binary PATH]`.

For each shape, in f32 and in 4 bits, with every activation kept and with every block recomputed, prints what `memory plan` says and the
peak of resident memory that two steps of `train-vision` reached; then the same for a tiny model and photos of 6 MP, where decoding takes most.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

CASES = {
    "f32, kept": ["--gradient-checkpointing", "off"],
    "f32, recomputed": ["--gradient-checkpointing", "on"],
    "4 bits, kept": ["--load-in-4bit", "--gradient-checkpointing", "off"],
    "4 bits, recomputed": ["--load-in-4bit", "--gradient-checkpointing", "on"],
}


def peak(command):
    """Bytes that the command had in memory at most."""
    pid = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss * 1024


def create(garden, kind, rows, size, folder):
    """A made dataset in a folder."""
    command = [garden, "dataset", "create", "--kind", kind, "--rows", str(rows), "--size", size, "--output", folder]
    subprocess.run(command, check=True, capture_output=True)


def compare(garden, shape, name, run, output, steps):
    """Prints the plan of a run beside its peak."""
    planned = subprocess.run([garden, "memory", "plan", "--format", "json", *run], capture_output=True, text=True)
    total = json.loads(planned.stdout)["total"]
    more = ["--output-dir", output, "--max-steps", str(steps), "--gradient-accumulation-steps", "1"]
    taken = peak([garden, "train-vision", *run, *more, "--quiet"])
    print(f"{shape:8} {name:24} {total / 1e6:5.0f} MB {taken / 1e6:5.0f} MB  {total / taken:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="small,medium")
    parser.add_argument("--binary", default=str(Path(__file__).parent.parent / "target/release/model-garden"))
    arguments = parser.parse_args()
    garden = arguments.binary
    with tempfile.TemporaryDirectory() as folder:
        rows, photos = f"{folder}/rows", f"{folder}/photos"
        create(garden, "shapes", 40, "336x336", rows)
        create(garden, "photos", 16, "3000x2048", photos)
        print(f"{'shape':8} {'weights and activations':24} {'plan':>8} {'peak':>8}  ratio")
        for shape in [*arguments.shapes.split(","), "tiny"]:
            model = f"{folder}/{shape}"
            subprocess.run([garden, "init", "--preset", shape, "--output", model], check=True, capture_output=True)
            if shape == "tiny":
                # Few patches: what is left is the cost of decoding. Twenty steps, until each thread has met every photo.
                run = ["--base-model", model, "--dataset", photos, "--max-pixels", "12544"]
                compare(garden, shape, "f32, photos of 6 MP", run, f"{folder}/out-photos", 20)
                continue
            for name, flags in CASES.items():
                run = ["--base-model", model, "--dataset", rows, *flags]
                compare(garden, shape, name, run, f"{folder}/{shape}-{name}", 2)


if __name__ == "__main__":
    main()
