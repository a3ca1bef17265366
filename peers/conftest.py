"""Fixtures that the peers' tests share: where our binary is, and a way to call it."""

import json
import os
import subprocess

import pytest


@pytest.fixture(scope="session")
def garden():
    """Runs `model-garden` with the given arguments; returns standard output, parsed if `as_json`."""
    binary = os.environ["MODEL_GARDEN_BIN"]

    def call(*arguments, as_json=False):
        done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr}"
        return json.loads(done.stdout) if as_json else done.stdout

    return call
