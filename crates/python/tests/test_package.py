"""What installing the wheel gives: a module that needs numpy alone, its types, and the command."""

import json
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import model_garden


def in_a_new_interpreter(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_loads_nothing_but_numpy():
    loaded = in_a_new_interpreter("import sys, model_garden; print(*{name.split('.')[0] for name in sys.modules})").split()
    for heavy in ["torch", "transformers", "PIL", "matplotlib", "IPython", "pytest", "datasets", "lightning"]:
        assert heavy not in loaded


def test_every_public_name_can_be_had_and_no_other():
    for name in model_garden.__all__:
        assert getattr(model_garden, name) is not None
    assert set(model_garden.__all__) <= set(dir(model_garden))
    assert in_a_new_interpreter("import model_garden; print(hasattr(model_garden, 'nonsense'))").strip() == "False"


def test_types_are_shipped():
    files = resources.files(model_garden)
    assert (files / "py.typed").is_file()
    stub = (files / "_native.pyi").read_text()
    from model_garden import _native

    for name in dir(_native):
        assert name.startswith("__") or name in stub, f"{name} has no stub"


def test_the_command_is_that_of_the_package(garden):
    assert garden("--version").split() == ["model-garden", model_garden.__version__]
    assert metadata.version("model-garden") == model_garden.__version__


def test_the_command_is_found_without_a_path(garden):
    command = [sys.executable, "-m", "model_garden"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, garden("--version")), done.stderr
    wrong = subprocess.run([*command, "memory", "analyze", "/no/such/file"], capture_output=True, text=True)
    assert wrong.returncode != 0 and "/no/such/file" in wrong.stderr and "Traceback" not in wrong.stderr


def test_its_licences_come_along():
    names = {Path(file).name for file in metadata.files("model-garden") or []}
    assert {"LICENSE-MIT", "LICENSE-APACHE"} <= names
    assert "](" not in metadata.metadata("model-garden")["Description"], "a link of the repository leads nowhere in a wheel"


def test_the_command_watches_and_judges(command, garden, tmp_path):
    trace = tmp_path / "trace.jsonl"
    sleeper = [sys.executable, "-c", "import time; time.sleep(1)"]
    done = subprocess.run([command, "memory", "run", "--interval", "50ms", "--out", trace, "--", *sleeper], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = subprocess.run([command, "memory", "analyze", trace, "--format", "json"], capture_output=True, text=True)
    assert json.loads(answer.stdout)["verdict"] in {"steady", "undecided", "warm-up"}


def test_the_command_trains_and_answers(garden, tiny_model, shapes, tmp_path):
    garden("train-vision", "--base-model", tiny_model, "--dataset", shapes, "--output-dir", tmp_path / "run", "--max-steps", 2)
    image = sorted((shapes / "images").iterdir())[0]
    answer = garden("generate", "--model", tiny_model, "--adapter", tmp_path / "run", "--image", image, "--prompt", "What?", "--max-tokens", 3)
    assert isinstance(answer, str)
