"""The judgement of a run's memory, and how to get one from a file, from arrays or from a running process.

An `Assessment` says what kind of growth was seen, where it ends, why, and what to do. It is the same whether the readings come from a
file, from numbers or from a living process.
"""

from __future__ import annotations

import base64
import datetime
import html
import json
import math
import operator
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import _native
from .exceptions import ConfigError

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TIME_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# A process holds more than this; smaller numbers are in another unit.
LEAST_BYTES = 1_000_000


@dataclass(frozen=True)
class Plateau:
    """The level at which growth stops, with its interval, and the step from which it holds. Sizes are bytes."""

    bytes: int
    low: int
    high: int
    step: int | None


@dataclass(frozen=True)
class Exhaustion:
    """When the limit is reached: the step, the seconds from the last reading, and the earliest and latest that the evidence allows."""

    step: int | None
    seconds: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ending:
    """One way in which an undecided run may end."""

    verdict: str
    probability: float
    plateau: Plateau | None
    exhaustion: Exhaustion | None


@dataclass(frozen=True)
class Mechanism:
    """Where growth sits: the kind of memory, the part of the process tree, and the pattern of growth."""

    memory: str
    place: str | None
    pattern: str | None


class Assessment:
    """What is known of a run's memory.

    `verdict` is 'steady', 'warm-up', 'fill', 'leak' or 'undecided'. Rates and sizes are bytes. Of `monitor.assessment`, `analyze` and
    `watch`, it has the curve as well: as text, as a picture and as a page.
    """

    def __init__(self, fields: Mapping[str, Any], run: _native.Judged | None = None):
        self._fields = dict(fields)
        self._run = run
        self.name: str = fields["name"]
        self.verdict: str = fields["verdict"]
        self.meaning: str = fields["meaning"]
        self.ending: str = fields["ending"]
        self.confidence: float = fields["confidence"]
        self.will_stop: float = fields["will_stop"]
        self.will_go_on: float = fields["will_go_on"]
        self.grows_now: bool = fields["grows_now"]
        self.growth_per_step: float | None = fields["growth_per_step"]
        self.growth_per_sample: float | None = fields["growth_per_sample"]
        self.growth_per_minute: float | None = fields["growth_per_minute"]
        self.plateau = _made(Plateau, fields["plateau"])
        self.exhaustion = _made(Exhaustion, fields["exhaustion"])
        self.endings = tuple(_ending(ending) for ending in fields["endings"])
        self.decidable_at_step: int | None = fields["decidable_at_step"]
        self.mechanism = _made(Mechanism, fields["mechanism"])
        self.evidence: tuple[str, ...] = tuple(fields["evidence"])
        self.advice: tuple[str, ...] = tuple(fields["advice"])
        self.samples: int = fields["samples"]
        self.limit: int | None = fields["facts"].get("limit")

    @classmethod
    def _of(cls, run: _native.Judged) -> Assessment:
        return cls(json.loads(run.json()), run)

    def __getstate__(self) -> dict[str, Any]:
        # The curve stays behind: it belongs to the native module.
        return {**self.__dict__, "_run": None}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `memory analyze --format json` prints it."""
        return json.loads(json.dumps(self._fields))

    def __repr__(self) -> str:
        return f"<Assessment of {self.name or 'a run'}: {self.brief()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Assessment) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        if self._run is not None:
            return self._run.text(80).rstrip()
        lines = [f"{self.name or 'the run'}: {self.verdict.upper()}, {self.meaning} ({self.ending})"]
        for title, sentences in (("Evidence", self.evidence), ("What to do", self.advice)):
            lines += ["", title, *(f"  - {sentence}" for sentence in sentences)] if sentences else []
        return "\n".join(lines)

    def brief(self) -> str:
        """The verdict in a few words; for an undecided run, how it may end."""
        if self.verdict == "undecided":
            return f"undecided: {self._ways_to_end()}"
        parts = []
        if self.verdict == "leak":
            parts += [self.rate(), self.exhaustion and f"out of memory {_when(self.exhaustion)}"]
        elif self.verdict == "fill":
            parts += [self._since("stopped"), self.rate()]
        elif self.verdict == "warm-up":
            parts += [self._since("level")]
        parts += [self.plateau and f"level {size(self.plateau.bytes)}"]
        if self.limit is not None and self.plateau is not None and self.plateau.bytes > self.limit:
            parts += [f"above the limit of {size(self.limit)}"]
        said = [part for part in parts if part]
        return f"{self.verdict}: {', '.join(said)}" if said else self.verdict

    def rate(self) -> str | None:
        """The growth in words, by the finest unit that is known."""
        rates = [(self.growth_per_sample, "a sample"), (self.growth_per_step, "a step")]
        if self.growth_per_step is None:
            rates = [(self.growth_per_minute, "a minute")]
        said = [f"{size(rate)} {unit}" for rate, unit in rates if rate is not None]
        return " = ".join(reversed(said)) or None

    def _since(self, word: str) -> str | None:
        step = self.plateau and self.plateau.step
        return None if step is None else f"{word} at step {step}"

    def _ways_to_end(self) -> str:
        # The end of growth first: it is what a person hopes for.
        endings = sorted(self.endings, key=lambda ending: ending.verdict == "leak")
        ways = [f"{_end(ending)} if it {_becomes(ending.verdict)}" for ending in endings]
        known = [f"known at step {self.decidable_at_step}"] if self.decidable_at_step is not None else []
        return "; ".join([", ".join(ways) or f"{counted(self.samples, 'reading')} so far", *known])

    def svg(self) -> str:
        """The curve as a picture that needs nothing else."""
        return self._curve().svg()

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page with the curve, which opens without a network; returns its path."""
        path = Path(path)
        path.write_text(self._page(), encoding="utf-8")
        return path

    def _page(self, texts: list[tuple[str, str]] | None = None) -> str:
        return self._curve().html(texts or [])

    def _curve(self) -> _native.Judged:
        if self._run is None:
            raise ConfigError(
                "this assessment has no curve: it is that of one reading, or was pickled; "
                "monitor.assessment, analyze(...) and watch(...) give one with its curve"
            )
        return self._run

    def _repr_html_(self) -> str:
        head = f"<b>{html.escape(self.verdict.upper())}</b>, {html.escape(self.meaning)} ({html.escape(self.ending)})"
        name = f"{html.escape(self.name)}: " if self.name else ""
        parts = [f"<p>{name}{head}</p>"]
        if self._run is not None:
            # As an image, its styles cannot touch the notebook's.
            picture = base64.b64encode(self._run.svg().encode()).decode()
            style, words = "max-width:860px;width:100%", html.escape(self.brief())
            parts.append(f'<img style="{style}" alt="{words}" src="data:image/svg+xml;base64,{picture}">')
        for title, sentences in (("What to do", self.advice), ("Evidence", self.evidence)):
            items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
            parts.append(f"<details><summary>{title}</summary><ul>{items}</ul></details>" if items else "")
        return f"<div>{''.join(parts)}</div>"

    def plot(self, ax: Any = None) -> Any:
        """Draws the curve with matplotlib, into `ax` if given; returns the axes."""
        chart = json.loads(self._curve().chart())
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError("plot() draws with matplotlib: pip install matplotlib, or take svg() or to_html(path)") from error
        if ax is None:
            _, ax = plt.subplots(figsize=(9, 4))
        for line in chart["lines"]:
            points = [(x, y) for x, y in zip(line["x"], line["y"]) if x is not None and y is not None]
            if points:
                style = {"color": "0.6", "linewidth": 1} if line["colour"] == "quiet" else {}
                ax.plot(*zip(*points), label=line["name"], **style)
        for level in chart["levels"]:
            ax.axhline(level["value"], linestyle="--", linewidth=1, color="crimson" if level["meaning"] == "limit" else "0.4")
            ax.annotate(level["text"], (1, level["value"]), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
        ax.yaxis.set_major_formatter(lambda value, _: size(value))
        ax.set_xlabel("step" if chart["axis"] == "steps" else "seconds")
        ax.set_title(f"{self.name}: {self.brief()}" if self.name else self.brief(), fontsize=10)
        ax.legend(fontsize=8)
        return ax


def _made(kind: Callable[..., Any], fields: Mapping[str, Any] | None) -> Any:
    return None if fields is None else kind(**fields)


def _ending(fields: Mapping[str, Any]) -> Ending:
    plateau, exhaustion = _made(Plateau, fields["plateau"]), _made(Exhaustion, fields["exhaustion"])
    return Ending(fields["verdict"], fields["probability"], plateau, exhaustion)


def _becomes(verdict: str) -> str:
    return "stays steady" if verdict == "steady" else f"is a {verdict}"


def _end(ending: Ending) -> str:
    if ending.verdict == "leak":
        return "goes on growing" if ending.exhaustion is None else f"out of memory {_when(ending.exhaustion)}"
    return "stops growing" if ending.plateau is None else size(ending.plateau.bytes)


def _when(exhaustion: Exhaustion) -> str:
    if exhaustion.step is not None:
        return f"at step {exhaustion.step}"
    return "at an unknown time" if exhaustion.seconds is None else f"in {exhaustion.seconds:.0f} s"


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def size(value: float) -> str:
    """Bytes as people read them, such as `17.5 GB`; a fall has a minus."""
    return f"{'-' if value < 0 else ''}{_native.format_size(round(abs(value)))}"


def bytes_of(name: str, given: str | int | None, *, least: int = 1) -> int | None:
    """A size as people write it ("28GB", "28GiB", a number of bytes, "80%" of the machine's memory) in bytes.

    Less than `least` is a number without its unit.
    """
    if given is None:
        return None
    if isinstance(given, str):
        try:
            found = _native.parse_size(given)
        except ConfigError as error:
            part = "" if "%" in given else ", or a part of the machine's memory such as '80%'"
            raise ConfigError(f"{name}={given!r}: {error}{part}") from None
    else:
        found = _whole(name, given)
    if found <= 0:
        raise ConfigError(f"{name}={given!r} leaves nothing to run in")
    if found < least:
        raise ConfigError(f"{name}={given!r} is {size(found)}, and no program runs in so little: write the unit, such as '28GB'")
    if found >= 2**63:
        raise ConfigError(f"{name}={given!r} is more than any machine has")
    return found


def seconds_of(name: str, given: str | float | None) -> float | None:
    """A time as people write it ("500ms", "1s", "30m", "12h", seconds) in seconds."""
    if given is None:
        return None
    text = str(given).strip()
    digits = len(text) - len(text.lstrip("0123456789."))
    try:
        seconds = float(text[:digits]) * _TIME_UNITS[text[digits:].strip() or "s"]
    except (ValueError, KeyError):
        raise ConfigError(f"{name}={given!r} is not a time: write seconds, or a number with a unit, such as '500ms' or '30m'") from None
    return seconds


def _whole(name: str, given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        if isinstance(given, float) and given.is_integer():
            return int(given)
        raise ConfigError(f"{name}={given!r} is not a whole number") from None


def facts(
    *,
    dataset_size: int | None = None,
    samples_per_step: int | None = None,
    steps_per_epoch: float | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """What is known of a run, checked."""
    known: dict[str, Any] = {"limit": limit}
    for name, given in (("dataset_size", dataset_size), ("samples_per_step", samples_per_step)):
        known[name] = None if given is None else _whole(name, given)
        if known[name] is not None and not 1 <= known[name] < 2**63:
            raise ConfigError(f"{name}={given!r} is not a number of rows")
    if steps_per_epoch is not None:
        known["steps_per_epoch"] = float(steps_per_epoch)
        if not (math.isfinite(known["steps_per_epoch"]) and known["steps_per_epoch"] > 0):
            raise ConfigError(f"steps_per_epoch={steps_per_epoch!r} is not a number above zero")
    return known


def analyze(
    memory: Any,
    *,
    steps: Any = None,
    times: Any = None,
    epochs: Any = None,
    dataset_size: int | None = None,
    samples_per_step: int | None = None,
    steps_per_epoch: float | None = None,
    limit: str | int | None = None,
    name: str | None = None,
    unit: str | None = None,
    time_unit: str | None = None,
    column: str | None = None,
    process: str | None = None,
    memory_pattern: str | None = None,
    step_pattern: str | None = None,
    epoch_pattern: str | None = None,
) -> Assessment:
    """Judges recorded memory: a file, or numbers.

    `memory` is the path of a trace, of a training log or of another tool's file (psrecord, mprof, CSV; packed or not); or an array, a
    list or a pandas Series of memory in bytes (`unit="MB"` for others). Numbers have their `steps`, or their `times` in seconds or as
    datetimes; without both, they are counted as steps. The more is known of the run, the sharper the verdict.
    """
    known = facts(
        dataset_size=dataset_size, samples_per_step=samples_per_step, steps_per_epoch=steps_per_epoch, limit=bytes_of("limit", limit)
    )
    if isinstance(memory, (str, os.PathLike)):
        given = {"steps": steps, "times": times, "epochs": epochs, "name": name}
        if wrong := [key for key, value in given.items() if value is not None]:
            raise ConfigError(f"{wrong[0]}= is for arrays; a file says it itself")
        options = {
            "column": column,
            "process": process,
            "unit": unit,
            "time_unit": time_unit,
            "memory_pattern": memory_pattern,
            "step_pattern": step_pattern,
            "epoch_pattern": epoch_pattern,
        }
        return Assessment._of(_native.analyze_file(memory, known, options))
    given = {
        "column": column,
        "process": process,
        "memory_pattern": memory_pattern,
        "step_pattern": step_pattern,
        "epoch_pattern": epoch_pattern,
    }
    if wrong := [key for key, value in given.items() if value is not None]:
        raise ConfigError(f"{wrong[0]}= is for files")
    if steps is None and times is None and getattr(getattr(memory, "index", None), "dtype", np.dtype(int)).kind in "mM":
        times = memory.index
    scale = _scale(unit)
    values = _column("memory", memory)
    if not np.isfinite(values).any():
        raise ConfigError("memory has no number: there is nothing to judge")
    largest = np.nanmax(values)
    if unit is None and 0 < largest < LEAST_BYTES:
        raise ConfigError(f"memory goes up to {largest:g}, and no process holds so few bytes: say what the numbers are, such as unit='MB'")
    columns = {key: None if value is None else _column(key, value) for key, value in (("steps", steps), ("epochs", epochs))}
    seconds = None if times is None else _seconds(times, time_unit)
    if seconds is not None and seconds.size and not np.isfinite(seconds).any():
        raise ConfigError("times has no time: there is nothing to judge")
    return Assessment._of(_native.analyze_arrays(values, known, scale=scale, name=name or "arrays", times=seconds, **columns))


def _scale(unit: str | None) -> float:
    if unit is None:
        return 1.0
    if unit not in _UNITS:
        raise ConfigError(f"unit={unit!r} is not a unit: write {', '.join(_UNITS)}")
    return float(_UNITS[unit])


def _column(name: str, given: Any) -> np.ndarray:
    """Numbers in the form that the native module reads where they lie; others are converted."""
    try:
        # What is masked is no reading.
        values = given.astype(np.float64).filled(np.nan) if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} is no column of numbers: {error}") from None
    if values.ndim != 1:
        raise ConfigError(f"{name} has {values.ndim} dimensions: give one column")
    if values.dtype.kind == "c":
        raise ConfigError(f"{name} holds {values.dtype}, which are no numbers of bytes, steps or seconds")
    if values.dtype in (np.float64, np.int64, np.uint64) and values.dtype.isnative:
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} holds {values.dtype}, which are no numbers") from None


def _seconds(times: Any, time_unit: str | None) -> np.ndarray:
    values = np.asarray(times)
    if values.dtype == object and values.size and isinstance(values.flat[0], datetime.datetime):
        # Differences, because numpy knows no time zones. A time that is missing, such as pandas' NaT, differs from itself.
        start = next((time for time in values.flat if time == time), values.flat[0])
        try:
            return np.array([(time - start).total_seconds() for time in values])
        except (TypeError, AttributeError) as error:
            raise ConfigError(f"times is no column of times: {error}") from None
    if values.dtype.kind == "M":
        known = values[~np.isnat(values)]
        values = values - (known if known.size else values)[:1]
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if time_unit is not None and time_unit not in _TIME_UNITS:
        raise ConfigError(f"time_unit={time_unit!r} is not a unit of time: write {', '.join(_TIME_UNITS)}")
    seconds = _column("times", values)
    return seconds if time_unit in (None, "s") else seconds * _TIME_UNITS[time_unit]


def watch(
    pid: int,
    *,
    interval: str | float = "1s",
    duration: str | float | None = None,
    callback: Callable[[Any], object] | None = None,
    dataset_size: int | None = None,
    samples_per_step: int | None = None,
    steps_per_epoch: float | None = None,
    limit: str | int | None = None,
    trace: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> Assessment:
    """Samples another process and all its descendants until it ends, the time is up, or Ctrl-C is pressed.

    `callback` is shown each `Reading`; the watch ends if it returns False. Steps are read from the process's output if that goes to a
    file. Ctrl-C ends the watch, not the program: the assessment so far is returned.
    """
    from .monitor import Reading

    pause, time_up = seconds_of("interval", interval), seconds_of("duration", duration)
    if pause is None or not 0.005 <= pause <= 3600:
        raise ConfigError(f"interval={interval!r} is out of range: from 5ms to 1h")
    known = facts(
        dataset_size=dataset_size, samples_per_step=samples_per_step, steps_per_epoch=steps_per_epoch, limit=bytes_of("limit", limit)
    )
    trace = None if trace is None else os.fspath(trace)
    monitor = _native.Monitor(_whole("pid", pid), known, name=name or f"process {pid}", stop=False, grace=60.0, trace=trace)
    start = due = time.monotonic()
    is_first = True
    try:
        while True:
            try:
                told = monitor.sample()
            except OSError:
                # A look at /proc that fails costs a reading, not the watch.
                told = ""
            if told is None:
                break
            if told and is_first:
                monitor.read_steps()
                is_first = False
            if told and callback is not None and callback(Reading._of(told, monitor)) is False:
                break
            now = time.monotonic()
            due = due + pause if due + pause > now else now + pause
            if time_up is not None and due - start > time_up:
                time.sleep(max(0.0, start + time_up - now))
                break
            time.sleep(due - now)
    except KeyboardInterrupt:
        if is_first:
            raise
    run = monitor.run()
    assert run is not None, "a monitor of this process has a run"
    return Assessment._of(run)
