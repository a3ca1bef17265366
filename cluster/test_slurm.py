"""A run on two Slurm nodes, which both are this machine: queued, sent back into the queue in the middle, and finished."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import PATIENCE, adapter, await_step, losses, plain, run_flags

ROOT = Path(__file__).parents[1]
SLURM = ROOT / "server/slurm"
SCRIPT = ROOT / "examples/cluster/train.sbatch"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's commands reach the test's own Slurm."""
    if os.geteuid() != 0:
        pytest.skip("SLURM WAS NOT TESTED: only root can bring it up")
    if shutil.which("slurmctld") is None and shutil.which("apt-get") is None:
        pytest.skip("SLURM WAS NOT TESTED: it is not installed, and there is no apt-get to install it")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([SLURM, "up", folder], check=True)
    yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run([SLURM, "down", folder], check=True)


@pytest.fixture(scope="module")
def cluster(slurm, openmpi, tmp_path_factory):
    """The environment of a job: the command by its name, and what two nodes need that are one machine."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "model-garden").symlink_to(openmpi.binary)
    itself = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
    return {**slurm, **itself, "RAYON_NUM_THREADS": "1", "PATH": f"{folder}:{os.environ['PATH']}"}


def submit(cluster, log, flags):
    """Queues the script of the guide."""
    here = ["--nodes=2", "--cpus-per-task=1", "--time=30", f"--output={log}"]
    words = ["sbatch", "--parsable", *here, SCRIPT, *flags[1:]]
    done = subprocess.run(words, env=cluster, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(slurm, job):
    done = subprocess.run(
        ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"], env=slurm, capture_output=True, text=True
    )
    return done.stdout.strip()


def await_state(slurm, job, wanted, log):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if state(slurm, job) in wanted:
            return
        time.sleep(0.2)
    raise AssertionError(f"job {job} is {state(slurm, job)}: {log.read_text() if log.exists() else 'it said nothing'}")


def nodes_of(cluster, job):
    done = subprocess.run(["squeue", "--noheader", f"--jobs={job}", "--format=%N"], env=cluster, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def long_run(garden, tmp_path_factory):
    output = tmp_path_factory.mktemp("long") / "out"
    done = plain(run_flags(garden, output, epochs=30))
    assert done.code == 0, done.stderr
    return adapter(output)


def test_a_requeued_job_ends_with_the_adapter_of_one_process(cluster, garden, long_run, tmp_path):
    output, log = tmp_path / "out", tmp_path / "slurm.log"
    job = submit(cluster, log, run_flags(garden, output, epochs=30))
    await_step(output, 5)
    assert nodes_of(cluster, job) == "n[1-2]", log.read_text()
    subprocess.run(["scontrol", "requeue", job], env=cluster, check=True)
    stopped_at = max(losses(output))
    await_state(cluster, job, {"COMPLETED"}, log)
    assert adapter(output) == long_run, log.read_text()
    assert stopped_at < max(losses(output)), "it was requeued in the middle"
    traces = {path.name for path in output.glob("memory-rank-1*")}
    assert traces == {"memory-rank-1-1.jsonl", "memory-rank-1.jsonl"}, log.read_text()


def test_at_the_end_of_its_time_a_job_saves_and_requeues_itself(cluster, garden, long_run, tmp_path):
    output, log = tmp_path / "out", tmp_path / "slurm.log"
    job = submit(cluster, log, run_flags(garden, output, epochs=30))
    await_step(output, 5)
    # As Slurm does it before the time is over: to the script alone.
    subprocess.run(["scancel", "--signal=USR1", "--batch", job], env=cluster, check=True)
    await_state(cluster, job, {"COMPLETED"}, log)
    assert adapter(output) == long_run, log.read_text()
    assert {path.name for path in output.glob("memory-rank-1*")} == {"memory-rank-1-1.jsonl", "memory-rank-1.jsonl"}
    assert "checkpoint" in log.read_text()
