"""A run on two Slurm nodes, which both are this machine: queued, sent back into the queue in the middle, and finished."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import PATIENCE, adapter, await_step, losses, plain, run_flags

SLURM = Path(__file__).parents[1] / "server/slurm"


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


def script(folder, openmpi, flags):
    """The script of docs/cluster.md, for this machine."""
    words = " ".join(f"'{word}'" for word in [openmpi.binary, *flags])
    path = folder / "train.sbatch"
    path.write_text(f"""#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@60
export RAYON_NUM_THREADS=1
# Two nodes of a test are one machine, which reaches itself.
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_btl=self,tcp
exec srun --mpi=pmix --kill-on-bad-exit=1 {words}
""")
    return path


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


def test_a_requeued_job_ends_with_the_adapter_of_one_process(slurm, openmpi, garden, tmp_path):
    flags = lambda output: run_flags(garden, output, "--epochs", 30)
    done = plain(flags(tmp_path / "alone"))
    assert done.code == 0, done.stderr
    output, log = tmp_path / "out", tmp_path / "slurm.log"
    batch = script(tmp_path, openmpi, flags(output))
    submitted = subprocess.run(
        ["sbatch", "--parsable", f"--output={log}", batch], env=slurm, capture_output=True, text=True, check=True
    )
    job = submitted.stdout.strip()
    await_step(output, 5)
    nodes = subprocess.run(["squeue", "--noheader", f"--jobs={job}", "--format=%N"], env=slurm, capture_output=True, text=True)
    assert nodes.stdout.strip() == "n[1-2]", log.read_text()
    subprocess.run(["scontrol", "requeue", job], env=slurm, check=True)
    stopped_at = max(losses(output))
    await_state(slurm, job, {"COMPLETED"}, log)
    assert adapter(output) == adapter(tmp_path / "alone"), log.read_text()
    assert stopped_at < max(losses(output)), "it was requeued in the middle"
    resumed = [line for line in log.read_text().splitlines() if "resum" in line or "continu" in line]
    assert resumed, log.read_text()
    assert sorted(path.name for path in output.glob("memory-rank-1*")) == ["memory-rank-1-1.jsonl", "memory-rank-1.jsonl"]
