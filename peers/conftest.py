"""Fixtures that the peers' tests share: where our binary is, a way to call it, and a PyTorch that survives its processor."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

# Some virtual machines have a matrix unit but hide the CPUID leaf that describes it: oneDNN then executes an illegal instruction in
# the middle of a bf16 product. A process of its own finds out, so that it is not the suite that dies.
BF16_PRODUCT = "import torch; x = torch.ones(128, 128, dtype=torch.bfloat16); assert (x @ x)[0, 0] == 128"


def bf16_product_survives():
    """Whether PyTorch multiplies bf16 here. MODEL_GARDEN_TEST_SIGILL=1 pretends that it does not."""
    die = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"
    pretend = os.environ.get("MODEL_GARDEN_TEST_SIGILL") == "1"
    return subprocess.run([sys.executable, "-c", die if pretend else BF16_PRODUCT]).returncode == 0


def pytest_configure(config):
    """Keeps oneDNN from what it dies of. The header's hook is no place for it: with `-q` pytest never calls it."""
    config.bf16_survives = bf16_product_survives()
    if not config.bf16_survives:
        # PyTorch's own kernels compute the same without it, only slower: every test still proves what it says.
        # The variable is for the processes that tests start.
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        torch.backends.mkldnn.enabled = False


def pytest_terminal_summary(terminalreporter, config):
    if not config.bf16_survives:
        terminalreporter.write_line("torch bf16 dies inside oneDNN on this processor: all tests ran with oneDNN off")


@pytest.fixture(scope="session")
def garden():
    """Runs `model-garden` with the given arguments; returns standard output, parsed if `as_json`."""
    binary = os.environ["MODEL_GARDEN_BIN"]

    def call(*arguments, as_json=False):
        done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr}"
        return json.loads(done.stdout) if as_json else done.stdout

    return call
