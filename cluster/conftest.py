"""Runs the command in several processes, as people start them, and compares what they leave behind."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

PLAIN = Path(os.environ["MODEL_GARDEN_BIN"])
BUILDS = Path(os.environ["MODEL_GARDEN_CLUSTER"])
# Longer than any of these runs takes beside another build.
PATIENCE = 300


class Mpi:
    """One of the two MPIs, with the command that was built for it."""

    def __init__(self, name):
        self.name = name
        self.binary = BUILDS / name / "model-garden"

    def launcher(self, processes):
        flags = ["--oversubscribe", "--bind-to", "none"] if self.name == "openmpi" else []
        return [f"mpirun.{self.name}", *flags, "-n", str(processes)]

    def environment(self, **more):
        # Tests run as root in a container. Four ranks with as many threads each would only fight for two cores.
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**os.environ, **root, "RAYON_NUM_THREADS": "2", **more}

    def start(self, processes, arguments, **more):
        command = [*self.launcher(processes), str(self.binary), *map(str, arguments)]
        return start(command, self.environment(**more))


def start(command, environment):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **pipes)


class Ended:
    def __init__(self, process):
        try:
            self.stdout, self.stderr = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()
            pytest.fail(f"it never ended: {said}")
        self.code = process.returncode


def plain(arguments, **more):
    """The same run without mpirun, by the command that knows no MPI."""
    return Ended(start([str(PLAIN), *map(str, arguments)], {**os.environ, **more}))


@pytest.fixture(scope="session", params=["openmpi", "mpich"])
def mpi(request):
    return Mpi(request.param)


@pytest.fixture(scope="session")
def openmpi():
    return Mpi("openmpi")


@pytest.fixture(scope="session")
def garden(tmp_path_factory):
    """A tiny model, and rows of which some are too long, some have nothing to learn, one is bad and one has a broken image."""
    folder = tmp_path_factory.mktemp("garden")
    for arguments in [
        ["init", "--preset", "tiny", "--output", folder / "model"],
        ["dataset", "create", "--kind", "photos", "--rows", "22", "--size", "112x84", "--output", folder / "rows"],
    ]:
        done = plain(arguments)
        assert done.code == 0, done.stderr
    file = next((folder / "rows").glob("*.jsonl"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    say = lambda question, answer: {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    rows.insert(3, say("A question", "word " * 900))
    rows.insert(9, say("Another question", ""))
    rows.insert(12, {"messages": "nothing"})
    rows.insert(15, with_half_an_image(rows[5]))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def with_half_an_image(row):
    """The row with the second half of its image cut off: the header is whole, so that only decoding finds the fault."""
    row = json.loads(json.dumps(row))
    image = next(part for part in row["messages"][0]["content"] if part["type"] == "image_url")["image_url"]
    kind, data = image["url"].split(",", 1)
    image["url"] = f"{kind},{data[: len(data) // 8 * 4]}"
    return row


def run_flags(garden, output, **changes):
    """The flags of a run, by their names with underscores."""
    flags = {
        "base_model": garden / "model", "dataset": garden / "rows", "output_dir": output, "batch_size": 1,
        "gradient_accumulation_steps": 5, "epochs": 2, "learning_rate": 0.001, "lora_r": 4, "lora_dropout": 0.1,
        "max_seq_length": 512, "on_bad_row": "skip", "max_bad_rows": "30%", "eval_split": 4, "eval_steps": 2,
        "save_steps": 1, "seed": 3, **changes,
    }
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in flags.items()]
    return ["train-vision", *(word for pair in words for word in pair)]


def adapter(output):
    """The hash of the adapter that a run left."""
    return hashlib.sha256((Path(output) / "adapter_model.safetensors").read_bytes()).hexdigest()


def events(output, kind):
    lines = (Path(output) / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def losses(output):
    """What is logged of the losses, step by step, by the last process that took the step."""
    return {event["step"]: event["loss"] for event in events(output, "step")}


def await_step(output, step):
    """Waits until a run has taken a step."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if any(event["step"] >= step for event in events(output, "step")):
                return
        except (FileNotFoundError, json.JSONDecodeError):
            pass
        time.sleep(0.02)
    raise AssertionError(f"{output} never took step {step}")


@pytest.fixture(scope="session")
def alone(garden, tmp_path_factory):
    """What one process makes of the rows, without mpirun."""
    output = tmp_path_factory.mktemp("alone") / "out"
    done = plain(run_flags(garden, output))
    assert done.code == 0, done.stderr
    return output


@pytest.fixture(autouse=True)
def tidy(tmp_path):
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)
