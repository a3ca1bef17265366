"""What a training run writes for others, read by the others: TensorBoard, MLflow, transformers, PEFT."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest


@pytest.fixture(scope="module")
def tiny(garden, tmp_path_factory):
    """A tiny model and a few rows of pictures."""
    folder = tmp_path_factory.mktemp("tiny")
    garden("init", "--preset", "tiny", "--output", folder / "model")
    garden("dataset", "create", "--kind", "shapes", "--rows", 24, "--size", "84x84", "--output", folder / "data")
    return folder


def train(garden, tiny, output, *more):
    garden(
        "train-vision", "--base-model", tiny / "model", "--dataset", tiny / "data", "--output-dir", output,
        "--epochs", 2, "--batch-size", 2, "--gradient-accumulation-steps", 2, "--logging-steps", 2,
        "--eval-split", 4, "--lora-r", 4, *more,
    )  # fmt: skip
    with open(output / "metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


def test_tensorboard_reads_the_scalars(garden, tiny, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = train(garden, tiny, tmp_path / "out", "--report-to", "tensorboard")
    events = EventAccumulator(str(tmp_path / "out" / "runs"))
    events.Reload()
    for tag, name in [("train/loss", "loss"), ("eval/loss", "eval_loss")]:
        ours = [(entry["step"], entry[name]) for entry in metrics if name in entry]
        theirs = [(scalar.step, scalar.value) for scalar in events.Scalars(tag)]
        assert len(ours) >= 2
        assert [step for step, _ in theirs] == [step for step, _ in ours]
        assert [value for _, value in theirs] == pytest.approx([value for _, value in ours], rel=1e-6)


@pytest.fixture
def mlflow_server(tmp_path):
    """A real tracking server on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--default-artifact-root", str(tmp_path / "artifacts"),
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.2)
        yield uri
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def test_mlflow_has_the_numbers(garden, tiny, tmp_path, mlflow_server, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "it's a test")
    metrics = train(garden, tiny, tmp_path / "out", "--report-to", "mlflow")
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("it's a test")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["learning_rate"] == "0.0002"
    history = client.get_metric_history(run.info.run_id, "loss")
    ours = [(entry["step"], entry["loss"]) for entry in metrics if "loss" in entry]
    assert sorted((point.step, point.value) for point in history) == pytest.approx(ours)


def test_transformers_reads_the_trainer_state(garden, tiny, tmp_path):
    from transformers import TrainerState

    metrics = train(garden, tiny, tmp_path / "out")
    state = TrainerState.load_from_json(str(tmp_path / "out" / "trainer_state.json"))
    assert state.global_step == state.max_steps == 10
    assert [entry["step"] for entry in state.log_history] == [entry["step"] for entry in metrics]
    assert state.best_metric == min(entry["eval_loss"] for entry in metrics if "eval_loss" in entry)
