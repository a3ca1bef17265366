"""Training in two processes beside one: measured, and as the model of `memory plan --nodes` predicts it.

    python bench/cluster.py [--bin target/cluster/openmpi/model-garden] [--preset small] [--rounds 3]

Needs Open MPI and a command that was built for it (`cluster/run` builds one). Each process computes with one thread, so that one
and two processes have the same arithmetic for a micro-batch. The runs take turns, and medians of their steps are compared:

- without mpirun, and in one process that mpirun started: what the group costs where it is of no use;
- two processes: the efficiency, the wait in a step, and the peak memory of each process beside its plan;
- the adapters of all of them: their bits must be equal.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ACCUMULATION = 4


def run(command, environment):
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def events(output, kind):
    lines = (output / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def peaks(output, processes):
    """The most resident bytes of each process."""
    names = ["memory.jsonl", *(f"memory-rank-{rank}.jsonl" for rank in range(1, processes))]
    samples = [[json.loads(line) for line in (output / name).read_text().splitlines()] for name in names]
    return [max(sample["rss"] for sample in trace if "rss" in sample) for trace in samples]


def predict(binary, preset, batch_seconds, environment):
    """The efficiency that the model of `memory plan` gives two processes; those of one machine swap faster than at 100 Gb/s."""
    command = [
        binary, "memory", "plan", "--base-model", preset, "--batch-size", "1", "--gradient-accumulation-steps", ACCUMULATION,
        "--nodes", "2", "--network", "100Gb", "--latency", "5us", "--micro-batch-seconds", f"{batch_seconds:.4f}", "--format", "json",
    ]
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    # The plan may exceed what is free here; the estimate does not depend on it.
    return json.loads(done.stdout)["cluster"]["nodes"][0]["efficiency"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--bin", type=Path, default=ROOT / "target/cluster/openmpi/model-garden")
    arguments.add_argument("--preset", default="small", help="the model's shape")
    arguments.add_argument("--rounds", type=int, default=3, help="runs of each kind, in turn")
    arguments.add_argument("--steps", type=int, default=6, help="steps of a run; the first is left out")
    options = arguments.parse_args()
    environment = {
        **os.environ, "RAYON_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    mpirun = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n"]
    kinds = {"alone": [], "mpirun -n 1": [*mpirun, "1"], "mpirun -n 2": [*mpirun, "2"]}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        run([options.bin, "init", "--preset", options.preset, "--output", folder / "model"], environment)
        rows = ["dataset", "create", "--kind", "photos", "--rows", "32", "--size", "336x252", "--output", folder / "rows"]
        run([options.bin, *rows], environment)
        seconds, waits, adapters, memory = {kind: [] for kind in kinds}, [], {}, {}
        for number in range(options.rounds):
            for kind, launcher in kinds.items():
                output = folder / f"{kind}-{number}"
                train = [
                    options.bin, "train-vision", "--base-model", folder / "model", "--dataset", folder / "rows",
                    "--output-dir", output, "--batch-size", 1, "--gradient-accumulation-steps", ACCUMULATION,
                    "--max-steps", options.steps, "--logging-steps", 1, "--memory-every", 1,
                ]
                run([*launcher, *train], environment)
                seconds[kind] += [event["seconds"] for event in events(output, "step")][1:]
                if kind == "mpirun -n 2":
                    logs = [event["values"] for event in events(output, "log")]
                    waits += [values["group_wait_seconds"] for values in logs][1:]
                plan = events(output, "plan")[-1]["total_bytes"]
                memory[kind] = (plan, peaks(output, 2 if kind.endswith("2") else 1))
                adapters[kind] = hashlib.sha256((output / "adapter_model.safetensors").read_bytes()).hexdigest()
    step = {kind: statistics.median(taken) for kind, taken in seconds.items()}
    print(f"{options.preset}, {ACCUMULATION} micro-batches a step, one thread a process; medians of {len(seconds['alone'])} steps")
    for kind in kinds:
        plan, resident = memory[kind]
        sizes = ", ".join(f"{bytes / 1e6:.0f}" for bytes in resident)
        print(f"  {kind:<12} {step[kind]:7.3f} s a step; plan {plan / 1e6:.0f} MB, peak {sizes} MB; adapter {adapters[kind][:12]}")
    print(f"  cost of the group with one process: {100 * (step['mpirun -n 1'] / step['alone'] - 1):+.2f} %")
    print(f"  efficiency of two processes: {100 * step['alone'] / (2 * step['mpirun -n 2']):.1f} %")
    batch_seconds = step["alone"] / ACCUMULATION
    print(f"  predicted: {100 * predict(options.bin, options.preset, batch_seconds, environment):.1f} %, by {batch_seconds:.3f} s a micro-batch")
    print(f"  wait for gradients in a step: {1e3 * statistics.median(waits):.1f} ms")
    assert len(set(adapters.values())) == 1, "the adapters differ"


if __name__ == "__main__":
    main()
