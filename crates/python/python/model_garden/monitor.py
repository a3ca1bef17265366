"""Watches the memory of a training loop from inside it.

A `MemoryMonitor` is told each step. It takes a reading every few steps, prints a line with the verdict of the moment, writes a trace,
says when to stop before a limit, and sums up at the end. Nothing that goes wrong with it reaches the training loop.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from . import _native
from ._bars import BesideBars
from .assessment import LEAST_BYTES, Assessment, bytes_of, counted, facts, size
from .exceptions import ConfigError
from .notebook import LiveChart, in_notebook

_log = logging.getLogger("model_garden")
# Time that the program gets to save what it must before a limit is reached, in seconds.
_GRACE = 60.0
# A look between two readings may take this part of the time.
_LOOK_SHARE = 0.001
# A run that grew by less, in bytes or in parts of its first reading, needs no explanation.
_WORTH_EXPLAINING = (16_000_000, 0.02)
# An explanation stands at the end if the run grew by less than this part since.
_STILL_TRUE = 0.25
_WIDTH = 100


@dataclass(frozen=True)
class Reading:
    """The memory of the process tree at one moment. Sizes are bytes; `t` is seconds since the monitor began.

    `owned` is what only the process can give back (anonymous, shared and swapped pages), which the verdict is about; `resident` counts
    mapped files as well.
    """

    t: float
    step: int | None
    epoch: float | None
    owned: int
    resident: int
    processes: int
    gpu: int | None
    verdict: str
    _assessment: str = field(repr=False, compare=False)

    @classmethod
    def _of(cls, told: str | dict[str, Any], monitor: _native.Monitor) -> Reading:
        fields = json.loads(told) if isinstance(told, str) else told
        names = ("t", "step", "epoch", "owned", "resident", "processes", "gpu", "verdict")
        return cls(**{name: fields[name] for name in names}, _assessment=monitor.assessment() or "")

    @property
    def assessment(self) -> Assessment:
        """What was known at this moment, without the curve."""
        return Assessment(json.loads(self._assessment))


class MemoryMonitor:
    """Watches this process and everything below it.

        with MemoryMonitor(dataset_size=663, samples_per_step=8) as monitor:
            for batch in loader:
                ...
                monitor.step()
                if monitor.should_stop:
                    break

    Every `every` steps it takes a reading and prints a line to `file` (standard output) unless it is `quiet`. `trace` and `report` are
    files to write: the readings as they come, and a page at the end. `stop_before` ("28GB", bytes, "80%") makes `should_stop` true in
    time to save. `explain` says who holds memory that grew: "auto" when a leak is sure and at the end of a run that grew, True at every
    end, False never.

    A failure of the monitor is logged once and never raised. In a forked child, such as a DataLoader's worker, it does nothing.
    """

    def __init__(
        self,
        *,
        every: int = 10,
        dataset_size: int | None = None,
        samples_per_step: int | None = None,
        steps_per_epoch: float | None = None,
        stop_before: str | int | None = None,
        trace: str | os.PathLike[str] | None = None,
        report: str | os.PathLike[str] | None = None,
        name: str | None = None,
        explain: bool | str = "auto",
        quiet: bool = False,
        file: TextIO | None = None,
    ):
        limit = check_settings(every=every, explain=explain, stop_before=stop_before)
        known = facts(
            dataset_size=dataset_size,
            samples_per_step=samples_per_step,
            steps_per_epoch=steps_per_epoch,
            limit=limit,
        )
        self.every = every
        self.name = name or os.path.basename(sys.argv[0]) or "run"
        self.trace = None if trace is None else Path(trace)
        self.report = None if report is None else Path(report)
        #: Called for the middle of each line, such as the number of tensors; a text or None.
        self.describe: Callable[[], str | None] | None = None
        #: Called with each reading.
        self.on_reading: Callable[[Reading], object] | None = None
        #: Who holds the growth, once that was asked.
        self.explanation: Any = None
        #: The first, the last and the highest reading.
        self.first: Reading | None = None
        self.last: Reading | None = None
        self.highest: Reading | None = None
        self._stops = stop_before is not None
        self._explain = explain
        self._quiet = quiet
        self._file = BesideBars() if file is None else file
        self._native = _native.Monitor(
            None, known, name=self.name, stop=self._stops, grace=_GRACE, trace=None if trace is None else os.fspath(trace)
        )
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._depth = 0
        self._step = 0
        # Steps that were seen: a loop may begin in the middle of a training, or count from zero in each epoch.
        self._seen = 0
        self._read_at = 0
        self._stop_reason: str | None = None
        self._holders: Any = None
        self._marked: Reading | None = None
        self._verdict_before: str | None = None
        self._looked = time.monotonic()
        self._look_cost = 0.0
        self._warned = False
        self._final: Assessment | None = None
        # In a notebook, a chart that moves says more than lines. Where the output was redirected, lines were asked for.
        self._chart = LiveChart() if not quiet and file is None and in_notebook() else None

    def learn(
        self, *, dataset_size: int | None = None, samples_per_step: int | None = None, steps_per_epoch: float | None = None
    ) -> None:
        """Takes in what is known of the run by now; what the constructor was given stands."""
        known = facts(dataset_size=dataset_size, samples_per_step=samples_per_step, steps_per_epoch=steps_per_epoch)
        self._native.learn(known)

    def step(self, step: int | None = None, epoch: float | None = None) -> Reading | None:
        """Tells that a step is done; without a number they are counted. Gives a reading every `every` steps."""
        if not self._is_live():
            return None
        with self._lock:
            self._tell(self._step + 1 if step is None else step, epoch)
            self._mark_if_due()
            if self._step // self.every != self._read_at // self.every:
                return self._read()
            if self.first is None:
                self._read(silent=True)
            elif self._stops:
                self._look()
            return None

    def sample(self, step: int | None = None, epoch: float | None = None) -> Reading | None:
        """Takes a reading now. None where that fails, after `close`, and in a forked child."""
        if not self._is_live():
            return None
        with self._lock:
            if step is not None:
                self._tell(step, epoch)
            return self._read()

    @property
    def assessment(self) -> Assessment:
        """What is known by now, with the curve."""
        if self._final is not None:
            return self._final
        run = self._native.run()
        if run is not None:
            return Assessment._of(run)
        if self.last is None:
            raise ConfigError("a forked child has no assessment of its own: ask in the process that made the monitor")
        return self.last.assessment

    @property
    def should_stop(self) -> bool:
        """Whether it is time to save and stop."""
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Why, in words."""
        return self._stop_reason

    def stop(self, reason: str) -> None:
        """Makes `should_stop` true for a reason from elsewhere, such as another rank."""
        self._stop(reason)

    def say(self, words: Callable[[], str]) -> None:
        """Prints words where the lines of the monitor go; failing at that never reaches the training."""
        self._guarded(lambda: self._print(words()))

    @property
    def cost(self) -> float:
        """Seconds spent on readings so far."""
        return self._native.cost

    def close(self) -> Assessment:
        """Takes the last reading, explains growth, prints the summary and writes the report. A second call gives the same."""
        if not self._is_live():
            return self.assessment
        with self._lock:
            if self._final is not None:
                return self._final
            self._read(silent=True)
            self._guarded(self._explain_at_end)
            final = self.assessment
            self._final = final
            self._guarded(lambda: self._write_report(final))
            self._holders = None
            if self._chart is not None:
                self._guarded(lambda: self._chart and self._chart.show("", final, self.explanation))
            else:
                self._guarded(lambda: self._print(self.summary()))
            return final

    def __enter__(self) -> MemoryMonitor:
        if self._final is not None:
            raise ConfigError("this monitor is closed: make another one")
        self._depth += 1
        if self.first is None and self._is_live():
            with self._lock:
                self._read(silent=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.close()

    def __repr__(self) -> str:
        return f"<MemoryMonitor of {self.name}: {'closed' if self._final else 'live'}, step {self._step}>"

    def summary(self) -> str:
        """The growth of the run, the verdict with its reasons, what to do, who holds it, and what was written."""
        found = self.assessment
        lines = [f"Memory of {self.name}: {found.verdict.upper()}, {found.meaning} ({found.ending})"]
        if self.first is not None and self.last is not None and self.highest is not None:
            first, last, highest = self.first.owned, self.last.owned, self.highest.owned
            steps = f" in {counted(self._seen, 'step')}" if self._seen else ""
            levels = f"{size(first)} at the start, {size(last)} at the end, {size(highest)} at the most"
            lines.append(f"  {levels}: {_grew(last - first)}{steps}")
        lines.append(f"  {found.brief()}")
        if found.verdict == "undecided" and (rate := found.rate()):
            lines.append(f"  {'grows' if found.grows_now else 'grew'} by {rate}")
        lines += [f"  stopped: {self._stop_reason}"] if self._stop_reason else []
        for title, sentences in (("Evidence", found.evidence), ("What to do", found.advice)):
            lines += [title] if sentences else []
            lines += [line for sentence in sentences for line in _item(sentence)]
        if self.explanation is not None:
            lines += ["Who holds it", textwrap.indent(str(self.explanation), "  ")]
        lines += [f"Trace: {self.trace}"] if self.trace and self.trace.exists() else []
        lines += [f"Report: {self.report}"] if self.report and self.report.exists() else []
        return "\n".join(lines)

    def _is_live(self) -> bool:
        """Whether it still watches; a forked child has only the memory of a monitor."""
        return self._final is None and os.getpid() == self._pid

    def _go_on_from(self, step: int) -> None:
        """Takes in how many steps came before this part of the training."""
        self._step = self._read_at = step

    def _tell(self, step: int, epoch: float | None) -> None:
        number = operator.index(step)
        if not 0 <= number < 2**63:
            raise ConfigError(f"step={step!r} is not a number of steps")
        if epoch is not None and not math.isfinite(epoch := float(epoch)):
            epoch = None
        self._seen += number - self._step if number >= self._step else 1
        self._step = number
        notice = self._native.tell(number, epoch)
        if notice is not None:
            self._stop(notice)

    def _read(self, *, silent: bool = False) -> Reading | None:
        self._mark_if_due()
        reading = self._guarded(self._take)
        if reading is None:
            return None
        self._read_at = self._step
        self._guarded(lambda: self._follow(reading))
        if self._chart is not None:
            self._guarded(lambda: self._draw(reading))
        elif not silent:
            self._guarded(lambda: self._print(self._line(reading)))
        if self.on_reading is not None:
            self._guarded(lambda: self.on_reading and self.on_reading(reading))
        return reading

    def _take(self) -> Reading | None:
        text = self._native.sample()
        if text is None:
            return None
        told = json.loads(text)
        reading = Reading._of(told, self._native)
        self.first = self.first or reading
        self.last = reading
        if self.highest is None or reading.owned > self.highest.owned:
            self.highest = reading
        self._looked = time.monotonic()
        if told["stop"] is not None:
            self._stop(told["stop"])
        if told["lost_trace"] is not None:
            self._warn(f"the trace ends here: {told['lost_trace']}")
        return reading

    def _look(self) -> None:
        """Looks between two readings as often as it costs next to nothing."""
        now = time.monotonic()
        if now - self._looked < self._look_cost / _LOOK_SHARE:
            return
        reason = self._guarded(self._native.look)
        self._looked = time.monotonic()
        self._look_cost = self._looked - now
        if reason is not None:
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        if self._stop_reason is None:
            self._stop_reason = reason
            self._guarded(lambda: self._print(f"Memory: {reason}; it is time to save and stop"))

    def _draw(self, reading: Reading) -> None:
        if self._chart is not None and self._chart.is_due():
            self._chart.show(self._line(reading), self.assessment)

    def _line(self, reading: Reading) -> str:
        place = "Start" if reading.step is None else f"Step {reading.step}"
        described = self.describe() if self.describe is not None else None
        middle = f"{described}, " if described else ""
        return f"{place}: {middle}Process RAM: {reading.resident / 1e6:.0f} MB | {reading.assessment.brief()}"

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, file=self._file, flush=True)

    def _mark_if_due(self) -> None:
        """Counts the objects after the first step: what a run needs to begin is no growth. The count is kept, and would look like
        growth itself if it came after the first reading of a step."""
        if self._explain and self._holders is None and self._seen > 0:
            self._guarded(self._mark)

    def _mark(self) -> None:
        # Stands where the count fails: it is not tried again.
        self._holders = False
        from .holders import Holders

        holders = Holders()
        holders.mark(step=self._step)
        self._holders = holders

    def _follow(self, reading: Reading) -> None:
        """Compares the objects with those of the first count as soon as a leak is sure: it may end the run before its end.

        A fill has stopped, and is explained at the end. Counting leaves traces in memory, which would blur the rest of its curve.
        """
        if not self._holders:
            return
        if self._marked is None:
            self._marked = reading
        elif self.explanation is None and self._explain == "auto" and reading.verdict == "leak" == self._verdict_before:
            # One reading may err just after the first epoch, when a fill has hardly stopped.
            self._ask_holders(reading)
        self._verdict_before = reading.verdict

    def _ask_holders(self, reading: Reading) -> None:
        # Of this process alone, as its objects are: workers that grow are named by the verdict.
        plateau = reading.assessment.plateau
        # What stopped growing grew until its level began.
        stopped = plateau.step if plateau is not None and not reading.assessment.grows_now else None
        self.explanation = self._holders.explain(step=reading.step if stopped is None else stopped)
        self._explained = reading

    def _explain_at_end(self) -> None:
        if not self._holders or self._marked is None or self.last is None:
            return
        growth = self.last.owned - self._marked.owned
        least = max(_WORTH_EXPLAINING[0], _WORTH_EXPLAINING[1] * self._marked.owned)
        if self.explanation is None:
            is_asked = self._explain is True or growth >= least
        else:
            is_asked = growth - (self._explained.owned - self._marked.owned) > _STILL_TRUE * growth
        if is_asked:
            self._ask_holders(self.last)

    def _write_report(self, final: Assessment) -> None:
        if self.report is not None:
            texts = [("Who holds it", str(self.explanation))] if self.explanation is not None else []
            # The folder may have been cleaned away meanwhile.
            self.report.parent.mkdir(parents=True, exist_ok=True)
            self.report.write_text(final._page(texts), encoding="utf-8")

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Does what must never end a training; a failure is logged once."""
        try:
            return work()
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
            return None

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the memory monitor of %s: %s; the run goes on", self.name, text)


def check_settings(*, every: int, explain: bool | str, stop_before: str | int | None) -> int | None:
    """Refuses settings that make no sense; gives the limit in bytes."""
    if explain not in (True, False, "auto"):
        raise ConfigError(f"explain={explain!r}: write 'auto', True or False")
    if not isinstance(every, int) or every < 1:
        raise ConfigError(f"every={every!r} is not a number of steps from 1 on")
    return bytes_of("stop_before", stop_before, least=LEAST_BYTES)


def _grew(growth: int) -> str:
    return f"fell by {size(-growth)}" if growth < 0 else f"grew by {size(growth)}"


def _item(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
