"""The tours of docs/server.md, run as they stand in the page."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
from conftest import BINARY, PATIENCE, await_true

PAGE = pathlib.Path(__file__).parent.parent / "docs/server.md"


def blocks(section, language):
    """The fenced blocks of a section."""
    text = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)[1]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A folder in which the page's start was followed, and a way to run more of the page in it."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "bin").mkdir()
    (folder / "bin/model-garden").symlink_to(pathlib.Path(BINARY).absolute())
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(folder)}
    # The page says 8000, which may be taken here.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(command, text):
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        done = subprocess.run([*command, text], cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * PATIENCE)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    prepare, serve = blocks("Start", "sh")
    run(["bash", "-euo", "pipefail", "-c"], prepare)
    log = folder / "server.log"
    with open(log, "wb") as output:
        server = subprocess.Popen([*serve.split(), "--port", str(port)], cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        await_true("the server listens", lambda: server.poll() is not None or "serving at" in log.read_text())
        assert server.poll() is None, log.read_text()
        yield run
    finally:
        server.terminate()
        server.wait(PATIENCE)


def test_the_curl_tour(stage):
    tour = "\n".join(blocks("A tour with curl", "sh"))
    # A pipe ends the stream when it has seen enough, which pipefail would call a failure.
    said = stage(["bash", "-euc"], tour)
    assert '"status": "succeeded"' in said
    assert "ft:tiny:shapes:" in said
    assert '"finish_reason"' in said
    assert said.count("event: step") == 3
    assert said.rstrip().endswith("true")


def test_the_sdk_tour(stage):
    said = stage([sys.executable, "-c"], "\n".join(blocks("A tour with OpenAI's SDK", "python")))
    assert "succeeded ft:tiny:shapes:" in said


def test_the_webhook_lines(stage):
    client = "from openai import OpenAI\nclient = OpenAI(base_url='http://127.0.0.1:8000/v1', api_key='none')\n"
    assert stage([sys.executable, "-c"], client + "\n".join(blocks("Webhooks", "python"))).startswith("whsec_")


def test_every_option_of_the_page_exists():
    usage = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True).stdout
    ours = set(re.findall(r"--[a-z-]+", usage))
    start = re.search(r"^## Start\n(.*?)^## ", PAGE.read_text(), re.M | re.S)[1]
    table = [line.split("|")[1] for line in start.splitlines() if line.startswith("| `--")]
    named = {option for cell in table for option in re.findall(r"--[a-z-]+", cell)}
    assert named and named <= ours
