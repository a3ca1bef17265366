"""The worker's part that needs no PyTorch: its messages, its settings, and how it begins and ends."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from model_garden.worker.channel import Channel, Gone, finite
from model_garden.worker.settings import PROTOCOL, Refused, Settings

SETTINGS = {
    "protocol": PROTOCOL, "engine": "transformers", "parent": os.getpid(), "base": "model", "method": "lora", "precision": "as-stored",
    "adapter": None, "lora": None, "recompute": None, "max_steps": 3, "batch_size": 2, "max_seq_length": 64, "learning_rate": 1e-3,
    "schedule": "linear", "warmup_steps": 0, "optimizer": "adamw", "adam": {}, "max_grad_norm": 1.0, "seed": 1,
}  # fmt: skip


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, Channel(theirs)
    ours.close()
    theirs.close()


def test_a_request_brings_its_arrays_whole(pair):
    ours, channel = pair
    ids, pixels = np.arange(6).reshape(2, 3), np.linspace(0, 1, 8, dtype="float32").reshape(4, 2)
    arrays = [
        {"name": "input_ids", "kind": "int64", "shape": [2, 3]},
        {"name": "empty", "kind": "int64", "shape": [0, 3]},
        {"name": "pixel_values", "kind": "float32", "shape": [4, 2]},
    ]
    header = {"do": "step", "batches": [{"arrays": arrays, "noise": 2**64 - 1}]}
    ours.sendall(json.dumps(header).encode() + b"\n" + ids.tobytes() + pixels.tobytes())
    [batch] = channel.request()["batches"]
    assert np.array_equal(batch["arrays"]["input_ids"], ids) and batch["noise"] == 2**64 - 1
    assert np.array_equal(batch["arrays"]["pixel_values"], pixels)
    assert batch["arrays"]["empty"].shape == (0, 3)
    # PyTorch takes them over without a copy, and may write into them.
    assert batch["arrays"]["pixel_values"].flags.writeable


def test_an_answer_is_one_line_and_what_is_not_finite_is_null(pair):
    ours, channel = pair
    channel.answer(loss=finite(float("nan")), gradient_norm=finite(1.5))
    assert ours.recv(1000) == b'{"answer": {"loss": null, "gradient_norm": 1.5}}\n'


def test_a_closed_or_torn_request_ends_the_worker(pair):
    ours, channel = pair
    ours.sendall(b'{"do": "st')
    ours.close()
    with pytest.raises(Gone):
        channel.request()


def test_another_protocol_is_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**SETTINGS, "unknown": 1}))
    assert Settings.read(str(path)).folder == tmp_path
    path.write_text(json.dumps({**SETTINGS, "protocol": 99}))
    with pytest.raises(Refused, match="protocol 99"):
        Settings.read(str(path))


def started(arguments, **how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-m", "model_garden.worker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **how
    )


@pytest.mark.parametrize("arguments", [[], ["run.json"], ["a", "b"]])
def test_without_the_program_that_drives_it_the_worker_explains_itself(arguments):
    worker = started(arguments, stdin=subprocess.DEVNULL)
    said = worker.communicate()[1].decode()
    assert worker.returncode == 2 and "train-vision --engine transformers" in said


def test_what_goes_wrong_is_said_over_the_socket(tmp_path):
    ours, theirs = socket.socketpair()
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**SETTINGS, "protocol": 99}))
    with ours, theirs:
        worker = started([str(path)], stdin=theirs)
        theirs.close()
        [said] = ours.makefile().readlines()
        assert "protocol 99" in json.loads(said)["failed"]
        worker.communicate()
        assert worker.returncode == 1


def test_a_worker_whose_program_is_gone_ends(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**SETTINGS, "parent": ended.pid}))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = started([str(path)], stdin=theirs)
        worker.communicate()
        assert worker.returncode == 1


@pytest.mark.parametrize("newer, name", [(True, "PYTORCH_ALLOC_CONF"), (False, "PYTORCH_CUDA_ALLOC_CONF")])
def test_the_allocator_is_chosen_unless_the_user_did(monkeypatch, newer, name):
    # `python -m` runs it under another name.
    from model_garden.worker import __main__ as worker

    monkeypatch.setattr(worker, "newer_torch", lambda: newer)

    def chosen(environment):
        monkeypatch.setattr(os, "environ", environment)
        worker.set_allocator()
        return environment

    assert chosen({}) == {name: "max_split_size_mb:512,expandable_segments:True"}
    for own in worker.ALLOCATOR_VARIABLES:
        assert chosen({own: "backend:native"}) == {own: "backend:native"}


def test_the_package_needs_no_worker():
    code = "import sys, model_garden; assert not any(name.startswith('model_garden.worker') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
