"""Models by their names: with slashes in them, used again for others, needed by others, or from the hub."""

import json
import pathlib
import shutil
import tarfile
from urllib.parse import quote
from urllib.request import urlopen

import openai
import pytest
from conftest import QUICK, finished, picture, question


@pytest.fixture
def train(client, training_file):
    """Trains a model and gives the job."""

    def train(model, **settings):
        job = client.fine_tuning.jobs.create(model=model, training_file=training_file, extra_body={**QUICK, **settings})
        job = finished(client, job)
        assert job.status == "succeeded", job.error
        return job

    return train


def merge(client, model, name):
    return client.post(f"/garden/models/{quote(model, safe='')}/merge", cast_to=dict, body={"name": name})["id"]


def likelihoods(client, model):
    """The log probabilities of an answer: other weights have others."""
    answer = client.chat.completions.create(
        model=model, messages=question(text="hi there"), temperature=0, max_completion_tokens=4, logprobs=True
    )
    return [token.logprob for token in answer.choices[0].logprobs.content]


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) < 0.02 for x, y in zip(a, b))


def test_a_name_with_slashes_works_everywhere(client, server, train, tmp_path):
    name = train("Qwen/small", suffix="slash").fine_tuned_model
    assert name.startswith("ft:Qwen/small:slash:")
    assert client.models.retrieve("Qwen/small").garden["kind"] == "base"
    assert client.models.retrieve(name).garden["base"] == "Qwen/small"
    for model in ("Qwen/small", name, f"{name}:ckpt-step-6"):
        answer = client.chat.completions.create(model=model, messages=question(picture()), max_completion_tokens=2)
        assert answer.model == model
    merged = merge(client, name, "slashed")
    assert close(likelihoods(client, merged), likelihoods(client, name)), "merged is base and adapter"
    archive = tmp_path / "model.tar"
    archive.write_bytes(urlopen(f"{server.url}/v1/garden/models/{quote(name, safe='')}/download").read())
    with tarfile.open(archive) as files:
        assert any(file.endswith("adapter_model.safetensors") for file in files.getnames())
    for model in (merged, name):
        assert client.models.delete(model).deleted
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(model)


def test_a_name_that_is_used_again_answers_with_the_new_weights(client, train):
    little = train("tiny", learning_rate=1e-4).fine_tuned_model
    much = train("tiny", learning_rate=5e-2).fine_tuned_model
    assert not close(likelihoods(client, little), likelihoods(client, much))
    name = merge(client, little, "two")
    assert close(likelihoods(client, name), likelihoods(client, little))
    assert client.models.delete(name).deleted
    assert merge(client, much, "two") == name
    assert close(likelihoods(client, name), likelihoods(client, much))


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_that_others_are_based_on_stays(client, train, whole):
    """It is a merged model, or one whose weights were all trained."""
    if whole:
        made = train("tiny", method="full")
        base = made.fine_tuned_model
    else:
        base = merge(client, train("tiny").fine_tuned_model, "base")
    job = train(base)
    before = likelihoods(client, job.fine_tuned_model)
    assert client.models.retrieve(job.fine_tuned_model).garden["base"] == base
    with pytest.raises(openai.BadRequestError, match=job.id):
        client.models.delete(base)
    if whole:
        with pytest.raises(openai.BadRequestError, match=job.id):
            client.delete(f"/fine_tuning/jobs/{made.id}", cast_to=object)
    assert likelihoods(client, job.fine_tuned_model) == before
    client.delete(f"/fine_tuning/jobs/{job.id}", cast_to=object)
    assert client.models.delete(base).deleted


def test_a_model_tuned_from_the_hub_is_asked_and_merged(client, server, models, train):
    job = train("tiny", suffix="hub")
    # As if it had been tuned from a model of the hub: the children keep those in the server's cache.
    path = server.folder / "data" / "jobs" / job.id / "job.json"
    record = json.loads(path.read_text())
    record["base"] = record["model"] = "garden/tiny"
    path.write_text(json.dumps(record))
    name = f"ft:garden/tiny:hub:{job.id[-8:]}"
    with pytest.raises(openai.BadRequestError, match="garden/tiny, the base model of"):
        likelihoods(client, name)
    with pytest.raises(openai.NotFoundError):
        likelihoods(client, "garden/tiny")
    hub = server.folder / "data" / "cache" / "huggingface" / "hub" / "models--garden--tiny"
    shutil.copytree(pathlib.Path(models) / "tiny", hub / "snapshots" / "abc")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc")
    assert close(likelihoods(client, "garden/tiny"), likelihoods(client, "tiny"))
    merged = merge(client, name, "from-hub")
    assert close(likelihoods(client, name), likelihoods(client, merged))


def test_models_are_loaded_and_unloaded_by_hand(client):
    def loaded():
        return {model["model"]: model for model in client.get("/garden/chat", cast_to=dict)["data"] if not model["ending"]}

    path = "/garden/chat/" + quote("Qwen/small", safe="")
    client.post(path, cast_to=dict)
    model = loaded()["Qwen/small"]
    assert model["memory_bytes"] > 0 and (model["open_questions"], model["bits"]) == (0, None)
    likelihoods(client, "Qwen/small")
    client.delete(path, cast_to=dict)
    assert "Qwen/small" not in loaded()
    with pytest.raises(openai.NotFoundError):
        client.delete(path, cast_to=dict)
    with pytest.raises(openai.NotFoundError):
        client.post("/garden/chat/none", cast_to=dict)
