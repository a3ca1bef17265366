"""What the package's tests share: the command that came with it, and a model and rows made by it."""

import ctypes
import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def command():
    """The `model-garden` command beside this interpreter, or on the path where the package is used from its sources."""
    beside = Path(sys.executable).parent / "model-garden"
    found = str(beside) if beside.exists() else shutil.which("model-garden")
    if found is None:
        pytest.skip("the model-garden command is not installed beside this Python")
    return found


@pytest.fixture(scope="session")
def garden(command):
    """Runs the command with the given arguments; returns standard output, parsed if `as_json`."""

    def call(*arguments, as_json=False):
        done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr}"
        return json.loads(done.stdout) if as_json else done.stdout

    return call


@pytest.fixture(scope="session")
def tiny_model(garden, tmp_path_factory):
    """A complete model with random weights."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    garden("init", "--preset", "tiny", "--output", folder)
    return folder


@pytest.fixture(scope="session")
def shapes(garden, tmp_path_factory):
    """Forty rows, each with an image."""
    folder = tmp_path_factory.mktemp("rows") / "shapes"
    garden("dataset", "create", "--kind", "shapes", "--rows", 40, "--size", "56x56", "--output", folder)
    return folder


@pytest.fixture(autouse=True)
def fresh_heap():
    """Gives free memory back to the system: what an earlier test freed would hide what this one takes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
