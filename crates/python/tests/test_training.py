"""Runs of the native engine from Python: events, reports, errors, and how a run is interrupted."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import model_garden
from model_garden import ConfigError, TrainingError


@pytest.fixture
def settings(tiny_model, shapes, tmp_path):
    return {"base_model": tiny_model, "dataset": shapes, "output_dir": tmp_path / "run", "max_steps": 3}


def test_a_run_tells_its_events_and_reports_its_end(settings):
    events = []
    report = model_garden.train(**settings, on_event=events.append)
    kinds = [event["event"] for event in events]
    assert kinds.count("step") == 3 and kinds[-1] == "end"
    assert (report.reason, report.step) == ("finished", 3)
    assert report.assessment.verdict in {"steady", "warm-up", "undecided", "fill"}
    assert report.peak_bytes > 1e6 and (settings["output_dir"] / "adapter_model.safetensors").exists()
    assert "finished after 3 steps" in str(report)


def test_the_same_call_again_finds_the_run_finished(settings):
    model_garden.train(**settings)
    assert model_garden.train(**settings).reason == "already_finished"


def test_what_the_callback_raises_ends_the_run_after_a_checkpoint(settings):
    def give_up(event):
        if event["event"] == "step":
            raise LookupError("seen enough")

    with pytest.raises(LookupError, match="seen enough"):
        model_garden.train(**{**settings, "max_steps": 1000}, on_event=give_up)
    assert list(settings["output_dir"].glob("checkpoint-*"))
    assert threading.active_count() == 1, "the run's thread has ended"


def test_ctrl_c_writes_a_checkpoint_and_the_same_call_goes_on(settings, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import model_garden, sys\n"
        "steps = lambda event: event['event'] == 'step' and print('step', flush=True)\n"
        "try:\n"
        f"    model_garden.train(base_model={str(settings['base_model'])!r}, dataset={str(settings['dataset'])!r},\n"
        f"        output_dir={str(settings['output_dir'])!r}, max_steps=100000, on_event=steps)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(77)\n"
    )
    # A shell without job control starts background commands with SIGINT ignored; a person's Python hears it.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, **heard)
    assert run.stdout.readline() == "step\n"
    os.kill(run.pid, signal.SIGINT)
    run.communicate(timeout=120)
    assert run.returncode == 77
    (saved,) = settings["output_dir"].glob("checkpoint-*")
    step = int(saved.name.split("-")[1])
    events = []
    with pytest.raises(LookupError):
        model_garden.train(**{**settings, "max_steps": 100000}, on_event=lambda event: events.append(event) or event["event"] != "started" or {}["end"])
    resumed = [event["step"] for event in events if event["event"] == "resumed"]
    assert resumed == [step]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_trains_as_its_parent_did(settings, tmp_path):
    """A fork copies no thread of the engine: a child that counted on them would wait for ever."""
    model_garden.train(**settings)
    child = {**settings, "output_dir": tmp_path / "child"}
    process = multiprocessing.get_context("fork").Process(target=lambda: model_garden.train(**child))
    process.start()
    process.join(120)
    process.kill()
    assert process.exitcode == 0
    adapters = [run["output_dir"] / "adapter_model.safetensors" for run in (settings, child)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_wrong_settings_are_named(settings):
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        model_garden.train(**settings, learning_rat=1e-4)
    with pytest.raises(ConfigError, match="dataset"):
        model_garden.train(base_model="model", output_dir="out")
    with pytest.raises(ConfigError, match="lora_dropout: .* is not a number"):
        model_garden.train(**settings, lora_dropout=float("nan"))
    with pytest.raises(ConfigError, match="lora_r: expected .*, found dict"):
        model_garden.train(**settings, lora_r={})
    with pytest.raises(TrainingError, match="no such folder"):
        model_garden.train(**{**settings, "base_model": "gone"})


def test_settings_are_named_as_python_writes_them(settings):
    with pytest.raises(ConfigError, match="^base_model is needed"):
        model_garden.train(output_dir="out")
    with pytest.raises(ConfigError, match="early_stopping_patience needs eval_dataset or eval_split"):
        model_garden.train(**settings, early_stopping_patience=3)
    with pytest.raises(ConfigError, match="memory_budget is not followed .* memory_limit stops"):
        model_garden.train(**settings, engine="transformers", memory_budget="1GB")
    # A path is not a setting.
    with pytest.raises(TrainingError, match="/base-model/gone: no such folder"):
        model_garden.train(**{**settings, "base_model": "/base-model/gone"})
    model_garden.train(**settings)
    with pytest.raises(TrainingError, match="lora_r was 16, now 4"):
        model_garden.train(**{**settings, "max_steps": 4}, lora_r=4)


def test_what_is_no_function_no_text_and_no_number_of_tokens_is_said_at_once(settings):
    with pytest.raises(ConfigError, match="on_event: expected a function"):
        model_garden.train(**settings, on_event="print")
    with pytest.raises(ConfigError, match="base_model: .* is no text in UTF-8"):
        model_garden.train(**{**settings, "base_model": os.fsdecode(b"mod\xff")})
    with pytest.raises(ConfigError, match="image_tokens: -1"):
        model_garden.plan(base_model="3b", image_tokens=-1)
    assert not settings["output_dir"].exists()


def test_an_interrupt_says_so_if_no_checkpoint_could_be_written(settings):
    def lose(event):
        if event["event"] == "step":
            shutil.rmtree(settings["output_dir"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        model_garden.train(**{**settings, "max_steps": 1000}, on_event=lose)
    assert isinstance(raised.value.__cause__, TrainingError)


def test_an_engine_in_python_runs_where_this_package_is(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "this-python"))
    with pytest.raises(TrainingError, match="this-python is no Python that works: no such program"):
        model_garden.train(**settings, engine="transformers")


def test_a_plan_needs_no_rows_and_names_python_settings(tiny_model):
    plan = model_garden.plan(base_model=tiny_model, max_seq_length=256, batch_size=4)
    assert plan.total == sum(plan.parts.values()) and plan.fits
    assert "less would do" in str(plan) and "batch_size=1" in str(plan) and "--" not in str(plan)
    assert plan._repr_html_().startswith("<pre>")
    with pytest.raises(ConfigError, match="model"):
        model_garden.plan(base_model="no-such-model")


def test_every_setting_is_described():
    keys = {setting["key"] for setting in model_garden.settings()}
    assert {"base_model", "dataset", "output_dir", "lora_r", "learning_rate"} <= keys
