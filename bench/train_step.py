"""A training step side by side with HF: time, peak memory, and the share of the limit that matrix products set.

    python bench/train_step.py [--shape small medium] [--nf4] [--checkpointing] [--steps 5]
                                                         (a Python with peers/requirements.txt; builds our side itself)

Two rows, each a picture of 336 x 336 and 128 labelled tokens, LoRA of rank 16 on the language model, AdamW; both sides read the
same model, adapter and batch, and take turns, step by step. Before anything is timed the losses of a first step must agree. Times
are medians; memory is each process's own peak from its start; ratios above 1 are in our favour. The last line is JSON.
"""

import argparse, json, os, random, statistics, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDE, TEXT, ROWS = 24, 128, 2
# Both sides sum in f32, in another order; the loss is about 10.
TOLERANCE = 1e-3


class Side:
    """A process that answers lines."""

    def __init__(self, command, environment=None):
        environment = dict(os.environ, **(environment or {}))
        self.errors = tempfile.TemporaryFile("w+")
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)
        self.load_s = self.read()["load_s"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(f"{self.process.args[:2]} ended:\n{self.errors.read()}")
        return json.loads(line)

    def ask(self, what):
        print(what, file=self.process.stdin, flush=True)
        return self.read()

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def build():
    command = ["cargo", "build", "--release", "--package", "garden-bench", "--bin", "train_step", "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [item["executable"] for item in map(json.loads, lines) if item.get("executable")][-1]


def write_batch(model, folder):
    """Random pictures and tokens, the same for both sides."""
    config = json.loads((model / "config.json").read_text())
    generator = random.Random(0)
    pad = [config["image_token_id"]] * (SIDE * SIDE // 4)
    rows, labels = [], []
    for _ in range(ROWS):
        text = [generator.randrange(5, 1000) for _ in range(TEXT)]
        start = [config["vision_start_token_id"], *pad, config["vision_end_token_id"]]
        rows.append(start + text)
        labels.append([-100] * len(start) + text)
    (folder / "batch.json").write_text(json.dumps({"rows": rows, "labels": labels, "grids": [[1, SIDE, SIDE]] * ROWS}))
    (folder / "patches.bin").write_bytes(generator.randbytes(ROWS * SIDE * SIDE * 588))


def compare(binary, shape, models, arguments):
    precision = "nf4" if arguments.nf4 else "f32"
    recompute = "recompute" if arguments.checkpointing else "keep"
    model = models / shape
    if not model.exists():
        subprocess.run([binary, "init", shape, str(model)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        adapter, batch = Path(folder, "adapter"), Path(folder)
        write_batch(model, batch)
        python = [sys.executable, str(ROOT / "bench/train_step_hf.py"), str(model), str(adapter), str(batch)]
        threads = str(arguments.threads)
        expected = None
        if arguments.nf4 and not arguments.unchecked:
            reference = Side([*python, "nf4-reference", "keep", threads])
            expected = reference.ask("step")["loss"]
            reference.stop()
        hf = Side([*python, precision, recompute, threads])
        command = [binary, "run", str(model), str(adapter), str(batch), precision, recompute]
        ours = Side(command, {"RAYON_NUM_THREADS": threads})
        first = [side.ask("step")["loss"] for side in (ours, hf)]
        if not arguments.nf4:
            expected = first[1]
        if expected is not None and abs(first[0] - expected) > TOLERANCE:
            sys.exit(f"{shape}: our loss is {first[0]}, HF's {expected}: there is nothing to compare")
        taken = ([], [])
        for _ in range(arguments.steps):
            for side, steps in zip((ours, hf), taken):
                steps.append(side.ask("step"))
        memory = [side.ask("memory") for side in (ours, hf)]
        hf.stop()
        limit = ours.ask("limit")["flops"]
        ours.stop()
    seconds, processor = (
        [statistics.median(step[what] for step in steps) for steps in taken] for what in ("seconds", "processor_s")
    )
    peaks = [answer["peak_bytes"] for answer in memory]
    drift = max(abs(a["loss"] - b["loss"]) for a, b in zip(*taken))
    return {
        "shape": shape,
        "precision": precision,
        "checkpointing": arguments.checkpointing,
        "threads": arguments.threads,
        "seconds": {"ours": seconds[0], "hf": seconds[1], "ratio": seconds[1] / seconds[0]},
        "processor_s": {"ours": processor[0], "hf": processor[1], "ratio": processor[1] / processor[0]},
        "peak_bytes": {"ours": peaks[0], "hf": peaks[1], "share": peaks[0] / peaks[1]},
        "planned_bytes": memory[0]["planned_bytes"],
        "plan_error": memory[0]["planned_bytes"] / peaks[0] - 1,
        "load_s": {"ours": ours.load_s, "hf": hf.load_s},
        "first_loss": {"ours": first[0], "hf": first[1], "expected": expected},
        "largest_loss_difference": drift,
        "limit_gflops": limit / 1e9,
        "share_of_limit": taken[0][0]["operations"] / limit / seconds[0],
        "all_seconds": [[round(step["seconds"], 4) for step in steps] for steps in taken],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=("tiny", "small", "medium", "3b"), default=["small", "medium"])
    parser.add_argument("--nf4", action="store_true", help="4-bit weights, bitsandbytes beside HF")
    parser.add_argument("--checkpointing", action="store_true", help="recompute every block, on both sides")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--models", type=Path, help="where models are kept for the next time")
    parser.add_argument("--unchecked", action="store_true", help="without the f32 reference of NF4, which takes 16 GB for 3b")
    arguments = parser.parse_args()
    binary = build()
    results = []
    print("shape  mode            | s a step: ours     HF  ratio (processor) | peak GB: ours    HF share | plan   | of the limit | loss: ours      HF")
    with tempfile.TemporaryDirectory() as scratch:
        models = arguments.models or Path(scratch)
        models.mkdir(parents=True, exist_ok=True)
        for shape in arguments.shape:
            result = compare(binary, shape, models, arguments)
            results.append(result)
            mode = result["precision"] + (" checkpointing" if arguments.checkpointing else "")
            seconds, peak = result["seconds"], result["peak_bytes"]
            print(
                f"{shape:<6} {mode:<17} | {seconds['ours']:12.3f} {seconds['hf']:7.3f} {seconds['ratio']:5.2f}x ({result['processor_s']['ratio']:5.2f}x)    |"
                f" {peak['ours'] / 1e9:12.2f} {peak['hf'] / 1e9:6.2f} {peak['share']:4.2f}x | {result['plan_error']:+5.1%} |"
                f" {result['share_of_limit']:5.0%} of {result['limit_gflops']:3.0f} | {result['first_loss']['ours']:.5f} {result['first_loss']['hf']:.5f}",
                flush=True,
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
