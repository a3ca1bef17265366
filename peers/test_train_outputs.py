"""What a training run writes for others, read by the others: TensorBoard, MLflow, transformers, PEFT."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"


@pytest.fixture(scope="module")
def tiny(garden, tmp_path_factory):
    """A tiny model and a few rows of pictures."""
    folder = tmp_path_factory.mktemp("tiny")
    garden("init", "--preset", "tiny", "--output", folder / "model")
    garden("dataset", "create", "--kind", "shapes", "--rows", 24, "--size", "84x84", "--output", folder / "data")
    return folder


def train(garden, tiny, output, *more, split=True):
    """A short run; the lines of its metrics."""
    garden(
        "train-vision", "--base-model", tiny / "model", "--dataset", tiny / "data", "--output-dir", output,
        "--epochs", 2, "--batch-size", 2, "--gradient-accumulation-steps", 2, "--logging-steps", 2,
        "--lora-r", 4, *(["--eval-split", 4] if split else []), *more,
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
    theirs = sorted((point.step, point.value) for point in history)
    assert [step for step, _ in theirs] == [step for step, _ in ours]
    assert [value for _, value in theirs] == pytest.approx([value for _, value in ours])


def test_transformers_reads_the_trainer_state(garden, tiny, tmp_path):
    from transformers import TrainerState

    metrics = train(garden, tiny, tmp_path / "out")
    state = TrainerState.load_from_json(str(tmp_path / "out" / "trainer_state.json"))
    assert state.global_step == state.max_steps == 10
    assert [entry["step"] for entry in state.log_history] == [entry["step"] for entry in metrics]
    assert state.best_metric == min(entry["eval_loss"] for entry in metrics if "eval_loss" in entry)


def test_the_trainer_state_has_what_a_trainer_of_hugging_face_writes(garden, tiny, tmp_path):
    train(garden, tiny, tmp_path / "ours", "--save-steps", 5)
    hf = [sys.executable, BENCH / "hf_trainer.py", "--model", tiny / "model", "--dataset", tiny / "data" / "train.jsonl"]
    subprocess.run([*map(str, hf), "--output", str(tmp_path / "theirs"), "--steps", "10", "--logging-steps", "2"], check=True)
    ours, theirs = (json.loads((tmp_path / name / "trainer_state.json").read_text()) for name in ("ours", "theirs"))
    assert theirs.keys() <= ours.keys()
    assert {key: type(ours[key]) for key in theirs if theirs[key] is not None and ours[key] is not None} == {
        key: type(theirs[key]) for key in theirs if theirs[key] is not None and ours[key] is not None
    }
    steps = lambda state: [entry for entry in state["log_history"] if "loss" in entry]
    assert {"loss", "grad_norm", "learning_rate", "epoch", "step"} <= steps(theirs)[0].keys() & steps(ours)[0].keys()
    assert [entry["step"] for entry in steps(ours)] == [entry["step"] for entry in steps(theirs)]
    assert [entry["learning_rate"] for entry in steps(ours)] == pytest.approx([e["learning_rate"] for e in steps(theirs)])


def test_peft_loads_the_adapter_and_finds_the_same_loss(garden, tiny, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    sys.path.insert(0, str(BENCH))
    from hf_trainer import Collator, read_rows

    rows = tiny / "data" / "train.jsonl"
    more = ["--eval-dataset", rows, "--learning-rate", 5e-3, "--lora-alpha", 32, "--use-rslora"]
    metrics = train(garden, tiny, tmp_path / "out", *more, split=False)
    evaluations = [entry for entry in metrics if "eval_loss" in entry]

    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny / "model")
    model = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    collate = Collator(AutoProcessor.from_pretrained(tmp_path / "out"))

    def mean_loss():
        losses, tokens, hits = 0.0, 0, 0
        with torch.no_grad():
            for row in read_rows(rows):
                batch = collate([row])
                labels = batch.pop("labels")[:, 1:].flatten()
                logits = model(**batch).logits[:, :-1].flatten(0, 1)
                losses += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
                tokens += (labels >= 0).sum().item()
                hits += (logits.argmax(-1) == labels).sum().item()
        return losses / tokens, hits / tokens

    loss, accuracy = mean_loss()
    assert evaluations[-1]["eval_loss"] == pytest.approx(loss, rel=1e-4)
    assert evaluations[-1]["eval_token_accuracy"] == pytest.approx(accuracy, abs=1e-3)
    # The adapter is what makes it so: without it the loss is another.
    with model.disable_adapter():
        assert mean_loss()[0] > 1.1 * loss


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj", "qkv,mlp.0"])
def test_target_modules_choose_the_layers_that_peft_chooses(garden, tiny, tmp_path, targets):
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors import safe_open
    from transformers import Qwen2_5_VLForConditionalGeneration

    out = tmp_path / "out"
    train(garden, tiny, out, "--target-modules", targets, "--max-steps", 1, split=False)
    load = lambda: Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny / "model")
    names = targets if targets == "all-linear" else targets.split(",")
    theirs = get_peft_model(load(), LoraConfig(r=4, target_modules=names))
    expected = {name.replace(".default", "") for name, _ in theirs.named_parameters() if "lora_" in name}
    with safe_open(out / "adapter_model.safetensors", "pt") as tensors:
        assert set(tensors.keys()) == expected
    # PEFT finds the same layers by the settings that we wrote, and has a tensor for each.
    ours = PeftModel.from_pretrained(load(), out)
    assert {name.replace(".default", "") for name, _ in ours.named_parameters() if "lora_" in name} == expected


def test_a_run_goes_on_from_an_adapter_of_peft(garden, tiny, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny / "model")
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.01)
    model.save_pretrained(tmp_path / "peft")
    more = ["--adapter", tmp_path / "peft", "--max-steps", 1, "--weight-decay", 0]
    train(garden, tiny, tmp_path / "still", *more, "--learning-rate", 0, split=False)
    train(garden, tiny, tmp_path / "moved", *more, split=False)
    start, still, moved = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("peft", "still", "moved"))
    assert start.keys() == still.keys() == moved.keys()
    assert all(torch.equal(start[name], still[name]) for name in start)
    assert not all(torch.equal(start[name], moved[name]) for name in start)


def test_a_folder_that_transformers_5_saved_trains_and_its_result_is_read_by_both_versions(garden, tiny, tmp_path):
    import numpy
    from PIL import Image
    from transformers import AutoProcessor, Qwen2VLImageProcessor

    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (model / name).write_bytes((tiny / "model" / name).read_bytes())
    AutoProcessor.from_pretrained(tiny / "model").save_pretrained(model)
    assert (model / "processor_config.json").exists() and not (model / "preprocessor_config.json").exists()

    out = tmp_path / "out"
    garden(
        "train-vision", "--base-model", model, "--dataset", tiny / "data", "--output-dir", out, "--max-steps", 2,
        "--lora-r", 4,
    )  # fmt: skip
    picture = next((tiny / "data" / "images").iterdir())
    garden("generate", "--model", model, "--adapter", out, "--image", picture, "--prompt", "What?", "--max-tokens", 2)
    image = Image.open(picture)
    expected = AutoProcessor.from_pretrained(model).image_processor(image, return_tensors="np")["pixel_values"]
    assert numpy.array_equal(expected, AutoProcessor.from_pretrained(out).image_processor(image, return_tensors="np")["pixel_values"])
    # Version 4 reads this file, and version 5 falls back to it.
    own = Qwen2VLImageProcessor.from_dict(json.loads((out / "preprocessor_config.json").read_text()))
    assert numpy.array_equal(expected, own(image, return_tensors="np")["pixel_values"])
    (out / "processor_config.json").unlink()
    assert numpy.array_equal(expected, AutoProcessor.from_pretrained(out).image_processor(image, return_tensors="np")["pixel_values"])
