"""What the server's tests share: our binary, a tiny model, rows to train on, and a server of one's own."""

import base64
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import openai
import pytest
from PIL import Image

BINARY = os.environ.get("MODEL_GARDEN_BIN", "target/debug/model-garden")
# Nothing takes that long: a limit for a server that hangs, not a measure.
PATIENCE = int(os.environ.get("MODEL_GARDEN_PATIENCE", "120"))


def garden(*arguments):
    """Runs `model-garden` with the given arguments; returns standard output."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def await_true(what, condition, patience=PATIENCE):
    """Waits until a condition holds and gives its value."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {patience} s in vain: {what}")


class Server:
    """A server of one's own on any free port."""

    def __init__(self, folder, models, *arguments, environment=None):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.models = models
        self.arguments = arguments
        self.environment = {**os.environ, **(environment or {})}
        self.log = self.folder / "server.log"
        self.start()

    def start(self):
        begun = self.log.stat().st_size if self.log.exists() else 0
        command = [BINARY, "serve", "--port", "0", "--data-dir", self.folder / "data", "--models-dir", self.models]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*map(str, command), *map(str, self.arguments)], stderr=log, stdout=log, env=self.environment
            )

        def address():
            assert self.process.poll() is None, f"the server ended:\n{self.log.read_text()}"
            return re.search(r"serving at (http://\S+)", self.log.read_bytes()[begun:].decode())

        self.url = await_true("the server listens", address)[1]

    def client(self, **options):
        """OpenAI's own client, which refuses every answer that is not as OpenAI's schema says."""
        options = {"api_key": "none", "max_retries": 0, "timeout": PATIENCE, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", _strict_response_validation=True, **options)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
                raise


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of models with two tiny ones in it, one of them with an owner in its name."""
    folder = tmp_path_factory.mktemp("models")
    garden("init", "--preset", "tiny", "--output", folder / "tiny")
    shutil.copytree(folder / "tiny", folder / "Qwen" / "small")
    return folder


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A file of 24 rows with an image each."""
    folder = tmp_path_factory.mktemp("rows")
    garden("dataset", "create", "--kind", "shapes", "--rows", 24, "--size", "56x56", "--output", folder / "shapes")
    garden("dataset", "convert", folder / "shapes", folder / "rows.jsonl")
    return folder / "rows.jsonl"


@pytest.fixture
def start_server(tmp_path, models):
    """Starts servers, and ends them after the test."""
    servers = []

    def start(*arguments, folder=tmp_path / "server", environment=None):
        servers.append(Server(folder, models, *arguments, environment=environment))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory, models):
    """One server for all tests of a file."""
    server = Server(tmp_path_factory.mktemp("server"), models)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def upload(client, rows):
    """Uploads rows and waits until they can be used."""
    file = client.files.create(file=open(rows, "rb"), purpose="fine-tune")
    return client.files.wait_for_processing(file.id, poll_interval=0.1).id


@pytest.fixture(scope="module")
def training_file(client, rows):
    return upload(client, rows)


QUICK = {"max_steps": 6, "save_steps": 2, "batch_size": 2, "logging_steps": 1}
# Long enough that a test can step in, whatever the machine.
LONG = {**QUICK, "max_steps": 100_000, "save_steps": 5}


def finished(client, job, patience=PATIENCE):
    """Waits for the end of a job."""

    def over():
        now = client.fine_tuning.jobs.retrieve(job.id)
        return now if now.status in ("succeeded", "failed", "cancelled") else None

    return await_true(f"{job.id} ends", over, patience)


def in_state(client, job, *states):
    """Waits until a job is in one of the server's own states."""

    def there():
        now = client.fine_tuning.jobs.retrieve(job.id)
        assert now.garden["state"] in (*states, "validating", "queued", "running", "stopping"), now
        return now if now.garden["state"] in states else None

    return await_true(f"{job.id} is {states}", there)


def picture(colour="red", size=56):
    """An image as a data URL."""
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def question(*images, text="What is in the picture?"):
    """A message with images before its text."""
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def read_json(path):
    return json.loads(pathlib.Path(path).read_text())
