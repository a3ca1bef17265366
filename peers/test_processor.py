"""The suite itself on a processor on which a peer dies: it goes on, and says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ASKS_FOR_ONEDNN = """
import os, torch

def test_onednn_is_off_here_and_in_processes_that_are_started():
    assert not torch.backends.mkldnn.enabled
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    ones = torch.ones(128, 128, dtype=torch.bfloat16)
    assert (ones @ ones)[0, 0] == 128
"""


def test_a_bf16_product_that_dies_takes_onednn_away_from_every_test(tmp_path):
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_onednn.py").write_text(ASKS_FOR_ONEDNN)
    # Quiet, as peers/run is.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "MODEL_GARDEN_TEST_SIGILL": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout and "all tests ran with oneDNN off" in done.stdout
