"""A real DataLoader whose workers are forked anew each epoch: its memory is counted once, and it is never stopped."""

import json
import os
import statistics
import subprocess
import sys

import pytest

# The parent holds 2 GB, its eight workers nothing but what starting them costs. In the middle of each epoch the script
# measures itself: the kernel divides each page among the processes that have it, so the sum counts every page once.
TRAINING = """
import os, sys, time, warnings
import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
EPOCHS, STEPS, WORKERS = int(sys.argv[1]), 16, 8

class Rows(Dataset):
    def __init__(self):
        self.rows = torch.ones(STEPS, 2_000_000_000 // 4 // STEPS)
    def __len__(self):
        return STEPS
    def __getitem__(self, index):
        time.sleep(0.8)  # two rows a worker: an epoch outlasts a reading a second however fast the machine is
        return self.rows[index][:1000] + 1

def owned(pid):
    kinds = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
    lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()[1:]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(kinds))

rows = Rows()
step = 0
for epoch in range(EPOCHS):
    batches = iter(DataLoader(rows, batch_size=1, num_workers=WORKERS))
    for number, _ in enumerate(batches):
        step += 1
        print(f"Step {step}: loss 1.0", flush=True)
        if number == STEPS // 2:
            print("truth", sum(map(owned, [os.getpid(), *(worker.pid for worker in batches._workers)])), flush=True)
"""


def own(sample):
    return sample["anon"] + sample["shmem"] + sample["swap"]


@pytest.mark.parametrize("limit", [[], ["--limit", "4GB"]], ids=["free", "limited"])
# Few readings decide little. A reading a second meets the workers' coming and going by chance: of 28 readings, at times,
# the last few are equal, which looks like a warm-up (three runs of eight); of 60 or more that is rare, but beside busy cores it was
# seen. Either verdict says that nothing grows any more.
@pytest.mark.parametrize(("interval", "epochs"), [("1s", 24), ("100ms", 5)], ids=["1s", "100ms"])
def test_a_dataloader_is_counted_once(interval, epochs, limit):
    watch = ["memory", "run", "--interval", interval, "--steps-per-epoch", "16", "--format", "json", *limit]
    command = [os.environ["MODEL_GARDEN_BIN"], *watch, "--", sys.executable, "-c", TRAINING, str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-2000:]
    assert not [line for line in lines if line.get("event") in ("stopping", "ended-tree")]

    truths = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("truth")]
    truth = statistics.median(truths)
    samples = [line["snapshot"]["sample"] for line in lines if "snapshot" in line]
    # While workers start and end they are fewer, and have less.
    working = [own(sample) for sample in samples if sample["step"] and sample["procs"] == 9]
    assert len(truths) == epochs and len(working) >= 3, (truths, len(samples))
    for figure in (statistics.median(working), max(own(sample) for sample in samples), lines[-1]["peak"]):
        assert abs(figure / truth - 1) < 0.05, (figure, truth)
    judged = lines[-1]["assessment"]
    level = {"steady", "warm-up"} if interval == "1s" else {"steady"}
    assert judged["verdict"] in level, judged["evidence"]
