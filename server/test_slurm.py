"""Jobs on a real Slurm: two nodes on this machine, brought up for the test."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import LONG, QUICK, await_true, finished, in_state, read_json, upload

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's commands reach the test's own Slurm."""
    if os.geteuid() != 0:
        pytest.skip("SLURM WAS NOT TESTED: only root can bring it up")
    if shutil.which("slurmctld") is None and shutil.which("apt-get") is None:
        pytest.skip("SLURM WAS NOT TESTED: it is not installed, and there is no apt-get to install it")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([HERE / "slurm", "up", folder], check=True)
    yield {"SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run([HERE / "slurm", "down", folder], check=True)


@pytest.fixture
def cluster(slurm, start_server):
    return start_server("--runner", "slurm", "--max-jobs", 2, "--memory-budget", "6GB", environment=slurm)


def in_queue(slurm):
    """The states of the jobs that Slurm has, by name."""
    environment = {**os.environ, **slurm}
    lines = subprocess.run(
        ["squeue", "--noheader", "--format=%j %T"], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return dict(line.split() for line in lines)


def call(slurm, *words):
    return subprocess.run(words, env={**os.environ, **slurm}, capture_output=True, text=True, check=True).stdout


def create(client, rows, settings, **more):
    return client.fine_tuning.jobs.create(model="tiny", training_file=upload(client, rows), extra_body={**settings, **more})


def job_folder(server, job):
    return server.folder / "data/jobs" / job.id


def stepped(client, job, beyond=0):
    """Waits until a job is beyond a step."""

    def there():
        step = client.fine_tuning.jobs.retrieve(job.id).garden["progress"]["step"]
        return step if step > beyond else None

    return await_true(f"{job.id} is beyond step {beyond}", there)


def test_the_runner_alone(slurm):
    """The runner's own tests, with a script in the keeper's place."""
    done = subprocess.run(
        ["cargo", "test", "--quiet", "--locked", "--package", "garden-server", "--lib", "--", "--ignored", "on_a_real_slurm"],
        env={**os.environ, **slurm}, cwd=HERE.parent, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout, done.stdout


def test_a_job_runs_on_a_node(cluster, slurm, rows):
    client = cluster.client()
    job = create(client, rows, QUICK)
    done = finished(client, job)
    assert done.status == "succeeded", done.error
    assert (job_folder(cluster, job) / "slurm.sh").exists(), "Slurm ran it"
    assert in_queue(slurm) == {}


def test_two_jobs_run_side_by_side_and_are_cancelled(cluster, slurm, rows):
    client = cluster.client()
    jobs = [create(client, rows, LONG) for _ in range(2)]
    for job in jobs:
        stepped(client, job)
    assert sorted(in_queue(slurm)) == sorted(f"{job.id}.1" for job in jobs)
    for job in jobs:
        client.fine_tuning.jobs.cancel(job.id)
    assert [finished(client, job).status for job in jobs] == ["cancelled", "cancelled"]
    await_true("Slurm has let go of them", lambda: in_queue(slurm) == {})


def test_a_job_pauses_with_a_checkpoint_and_goes_on(cluster, slurm, rows):
    client = cluster.client()
    job = create(client, rows, LONG)
    stepped(client, job)
    client.fine_tuning.jobs.pause(job.id)
    step = in_state(client, job, "paused").garden["progress"]["step"]
    assert in_queue(slurm) == {}
    client.fine_tuning.jobs.resume(job.id)
    assert stepped(client, job, step) > step
    assert f"{job.id}.2" in in_queue(slurm), "a new attempt"
    client.fine_tuning.jobs.cancel(job.id)
    finished(client, job)


def test_the_server_is_killed_and_finds_its_jobs_again(cluster, slurm, rows):
    client = cluster.client()
    job = create(client, rows, LONG)
    step = stepped(client, job)
    cluster.kill()
    attempt = job_folder(cluster, job) / "attempts/1.json"
    assert read_json(attempt)["end"] is None and f"{job.id}.1" in in_queue(slurm), "it goes on without us"
    cluster.start()
    client = cluster.client()
    assert stepped(client, job, step) > step
    assert client.fine_tuning.jobs.retrieve(job.id).garden["attempt"] == 1, "the same attempt"
    # SIGTERM leaves it alone too: Slurm keeps it.
    cluster.stop()
    assert f"{job.id}.1" in in_queue(slurm)
    cluster.start()
    client = cluster.client()
    client.fine_tuning.jobs.cancel(job.id)
    assert finished(client, job).status == "cancelled"


def test_a_job_that_slurm_requeues_is_the_same_attempt(cluster, slurm, rows):
    """As when its node fails or another job has precedence."""
    client = cluster.client()
    job = create(client, rows, LONG)
    step = stepped(client, job, 10)
    number = call(slurm, "squeue", "--noheader", "--format=%i", f"--name={job.id}.1").strip()
    call(slurm, "scontrol", "requeue", number)
    await_true("it waits or has begun again", lambda: in_queue(slurm).get(f"{job.id}.1") == "PENDING")
    assert stepped(client, job, step + 5) > step
    assert client.fine_tuning.jobs.retrieve(job.id).garden["attempt"] == 1
    client.fine_tuning.jobs.cancel(job.id)
    finished(client, job)


def test_a_job_that_ends_with_code_75_is_submitted_again_as_often_as_it_may(cluster, slurm, rows):
    client = cluster.client()
    job = create(client, rows, LONG, max_restarts=1, lora_r=256)
    stepped(client, job)
    client.fine_tuning.jobs.pause(job.id)
    in_state(client, job, "paused")
    # Every job keeps within its plan. A plan that is wrong makes a limit that the trainer is over at once.
    cluster.stop()
    path = job_folder(cluster, job) / "plan.json"
    path.write_text(json.dumps({**read_json(path), "total_bytes": 1}))
    cluster.start()
    client = cluster.client()
    client.fine_tuning.jobs.resume(job.id)
    failed = finished(client, job)
    assert (failed.status, failed.error.code) == ("failed", "memory_limit"), failed.error
    ends = [read_json(job_folder(cluster, job) / f"attempts/{attempt}.json")["end"]["how"] for attempt in (1, 2, 3)]
    assert ends == [{"exited": 130}, "stopped_at_limit", "stopped_at_limit"]
    assert in_queue(slurm) == {}
