"""A clock that jumps, by hours and years, in both directions: jobs go on, lists keep their order, streams end."""

import pathlib
import shutil
import subprocess

import pytest

from conftest import Server, await_true

LIBRARY = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@pytest.fixture(scope="module")
def jumping(tmp_path_factory, models):
    """A server whose clock is what a file says. Its children keep the true time."""
    if not LIBRARY.exists():
        if shutil.which("apt-get") is None:
            pytest.skip("libfaketime is not installed")
        subprocess.run(["apt-get", "install", "-y", "-qq", "faketime"], check=True, capture_output=True)
    folder = tmp_path_factory.mktemp("clock")
    clock = folder / "clock"
    clock.write_text("+0\n")
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server = Server(folder, models, "--rate-limit", "0", environment=environment)
    yield server, clock
    server.stop()


def test_jobs_run_and_keep_their_order_whatever_the_clock_says(jumping, rows):
    server, clock = jumping
    client = server.client()
    file = client.files.create(file=rows, purpose="fine-tune")
    made = []
    for offset in ["+0", "-2h", "+3y", "-5y", "+0"]:
        clock.write_text(f"{offset}\n")
        extra = {"max_steps": 2, "lora_r": 4}
        made.append(client.fine_tuning.jobs.create(model="tiny", training_file=file.id, extra_body=extra))
    clock.write_text("-1h\n")

    def over():
        jobs = [client.fine_tuning.jobs.retrieve(job.id) for job in made]
        return all(job.status in ("succeeded", "failed", "cancelled") for job in jobs) and jobs

    jobs = await_true("all jobs are over", over)
    assert [job.status for job in jobs] == ["succeeded"] * 5
    assert jobs[1].created_at < jobs[0].created_at < jobs[2].created_at, "the clock did jump"
    listed = [job.id for job in client.fine_tuning.jobs.list(limit=2)]
    assert listed == [job.id for job in reversed(made)], "newest first by their order, not by their clock"
    for job in jobs:
        messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=50)]
        assert any("successfully completed" in message for message in messages)
