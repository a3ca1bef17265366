"""The systemd unit: systemd takes it, and calls it well protected."""

import os
import pathlib
import shutil
import subprocess

import pytest

UNIT = pathlib.Path(__file__).parent.parent / "packaging/systemd/model-garden.service"


@pytest.fixture(scope="module")
def analyze():
    """Runs systemd-analyze; gives its exit code and what it said."""
    if shutil.which("systemd-analyze") is None:
        if os.geteuid() != 0:
            pytest.skip("systemd-analyze is not installed, and only root can install it")
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "systemd"], check=True, stdout=subprocess.DEVNULL)

    def call(*words):
        done = subprocess.run(["systemd-analyze", "--no-pager", *map(str, words)], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return call


def settings():
    pairs = [line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return {name: value for name, value in pairs}


def test_systemd_takes_the_unit(analyze, tmp_path):
    # Systemd looks for the program, which is not installed where tests run.
    here = os.environ.get("MODEL_GARDEN_BIN", "/bin/true")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/model-garden", here))
    assert analyze("verify", copy) == (0, "")
    broken = tmp_path / "broken.service"
    broken.write_text(copy.read_text().replace("Type=notify", "Typ=notify"))
    assert "Typ" in analyze("verify", broken)[1], "the check can fail"


def test_systemd_calls_it_ok(analyze):
    code, words = analyze("security", "--offline=true", "--threshold=20", UNIT)
    assert code == 0, words
    assert "OK" in words.splitlines()[-1] or "SAFE" in words.splitlines()[-1], words


def test_it_leaves_jobs_time_for_checkpoints_and_outlives_one_that_runs_out_of_memory():
    unit = settings()
    assert (unit["Type"], unit["KillMode"], unit["TimeoutStopSec"]) == ("notify", "mixed", "10min")
    assert unit["OOMPolicy"] == "continue" and unit["MemoryMax"]


def test_its_command_is_one_that_the_program_knows():
    words = settings()["ExecStart"].split()
    usage = subprocess.run([os.environ["MODEL_GARDEN_BIN"], "serve", "--help"], capture_output=True, text=True).stdout
    options = [word for word in words if word.startswith("--")]
    assert words[1] == "serve" and options
    assert [option for option in options if f"{option} <" not in usage] == []
