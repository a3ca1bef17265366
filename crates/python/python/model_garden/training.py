"""Runs of the native engine from Python, and their plans.

`train` takes the settings of `model-garden train-vision` as keyword arguments and calls a function of yours with each event.
`plan` says how much memory a run will take before anything is loaded.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping

from . import _native
from .exceptions import ConfigError

if TYPE_CHECKING:
    from .assessment import Assessment

Event = Mapping[str, Any]


@dataclass(frozen=True)
class RunReport:
    """How a run ended, and where its results are."""

    reason: str
    """`finished`, `early_stopping`, `already_finished`, `already_stopped`, `memory_limit` or `cancelled`."""
    message: str | None
    output_dir: str
    checkpoint: str | None
    step: int
    epoch: float
    best_step: int | None
    best_metric: float | None
    log_history: list[dict[str, float]] = field(repr=False)
    peak_bytes: int | None
    """The most that was resident; None where no step was taken."""
    assessment: Assessment | None = field(repr=False)
    """The verdict on the run's memory, as `model_garden.Assessment`; None where no step was taken."""

    def __str__(self) -> str:
        verdict = f", memory {self.assessment.verdict}" if self.assessment is not None else ""
        return f"{self.reason.replace('_', ' ')} after {self.step} steps{verdict}: {self.output_dir}"


@dataclass(frozen=True)
class Plan:
    """How much memory a run will take, part by part, in bytes."""

    parts: dict[str, int]
    total: int
    fits: bool
    available: int | None
    blocks: int
    recomputed_blocks: int
    details: dict[str, Any] = field(repr=False)
    """Everything that `model-garden memory plan --format json` prints."""
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.text)}</pre>"


def train(*, on_event: Callable[[Event], object] | None = None, **settings: Any) -> RunReport:
    """Trains with the native engine, or the one that `engine` names, and returns how the run ended.

    The settings are those of `model-garden train-vision`, with underscores: `base_model`, `dataset` and `output_dir` are needed, and
    `model_garden.settings()` lists all of them. `on_event` is called on this thread with each event of docs/events.md as a dictionary;
    what it raises ends the run after a checkpoint and is raised again here. Ctrl-C does the same, in a notebook too: the same call
    goes on from the checkpoint.
    """
    if on_event is not None and not callable(on_event):
        raise ConfigError(f"on_event: expected a function that takes an event, found {type(on_event).__name__}")
    observer = None if on_event is None else lambda line: on_event(json.loads(line))
    # An engine in Python is meant to run where this package is.
    if settings.get("engine", "native") != "native" and settings.get("python") is None:
        settings["python"] = sys.executable or None
    report = json.loads(_native.train_run(_as_json(settings), observer))
    state, memory = report["state"], report["memory"] or {}
    return RunReport(
        reason=report["reason"],
        message=report["message"],
        output_dir=report["output_dir"],
        checkpoint=report["checkpoint"],
        step=state["global_step"],
        epoch=state["epoch"],
        best_step=state["best_global_step"],
        best_metric=state["best_metric"],
        log_history=state["log_history"],
        peak_bytes=memory.get("peak_bytes"),
        assessment=_assessment(report),
    )


def plan(*, image_tokens: int | None = None, **settings: Any) -> Plan:
    """Says how much memory a run would take, without loading anything.

    The settings are those of `train`; `dataset` and `output_dir` may be left out. `base_model` may also be a `config.json` or the name
    of a shape such as `3b`. Without a dataset, rows of `max_seq_length` tokens are assumed, of which `image_tokens` belong to images.
    """
    if image_tokens is not None and image_tokens < 0:
        raise ConfigError(f"image_tokens: {image_tokens} is not a number of tokens")
    details, text = _native.plan_run(_as_json(settings), image_tokens)
    details = json.loads(details)
    names = ("parts", "total", "fits", "available", "blocks", "recomputed_blocks")
    return Plan(**{name: details[name] for name in names}, details=details, text=text)


def settings() -> list[dict[str, Any]]:
    """Every setting of a run: its key, group, help, default and the kind of its value."""
    return json.loads(_native.train_settings())


def _assessment(report: dict[str, Any]) -> Assessment | None:
    """The verdict with its curve, from the trace that the run wrote."""
    if report["memory"] is None:
        return None
    from .assessment import analyze

    return analyze(os.path.join(report["output_dir"], report["memory"]["trace"]))


def _as_json(settings: Mapping[str, Any]) -> str:
    """Settings as the libraries read them. None stands for a setting that is not given."""
    given = {key: _plain(key, value) for key, value in settings.items() if value is not None}
    return json.dumps(given, allow_nan=False)


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(key, item) for item in value]
    if hasattr(value, "tolist"):
        # Numbers of numpy or torch; a list where there are several.
        value = value.tolist()
        if isinstance(value, list):
            return _plain(key, value)
    if isinstance(value, float) and value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{key}: {value} is not a number to train with")
    if not isinstance(value, (str, int, float, bool)):
        raise ConfigError(f"{key}: expected text, a number, a truth value or a list of them, found {type(value).__name__}")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(f"{key}: {value!r} is no text in UTF-8")
    return value
