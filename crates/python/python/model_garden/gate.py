"""A gate for tests: memory must be flat, or come to an end by itself.

`flat_memory` passes a warm-up, a cache that fills up, a sawtooth and a steady level. It fails on a leak, and on growth above a bound
where one is given. Where other tools compare two numbers, this one reads the curve.

What it can see: growth of 4 MB over all steps, or of 0.8 % of the process's memory if that is more, is told from an allocator's own
movements. So a leak of 20 kB a step takes 200 steps to be seen.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, overload

from . import _native
from .assessment import Assessment, bytes_of, counted, facts, size
from .exceptions import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])

# How often a decorated function runs if nothing is said.
_REPEAT = 200
# While the curve does not decide, a decorated function runs on, at most so many times as often as asked for.
_AT_MOST = 4
# Readings of a test whose steps are known beforehand; more say no more.
_READINGS = 150
# Steps before the first reading: imports, caches of the interpreter, first allocations.
_WARMUP = (5, 0.05)
# Growth of which this part goes when garbage is collected was garbage.
_GARBAGE = 0.5


class MemoryGrew(AssertionError):
    """Memory leaked, or grew above its bound. `assessment` has the curve, `growth` the bytes, `explanation` who holds them."""

    def __init__(self, message: str, assessment: Assessment | None = None, growth: int = 0, explanation: Any = None):
        super().__init__(message)
        self.assessment = assessment
        self.growth = growth
        self.explanation = explanation


class MemoryUndecided(UserWarning):
    """A test was too short to tell whether its memory comes to rest."""


class flat_memory:  # noqa: N801 - it is used as a function
    """Fails a block, a function or a test whose memory leaks.

        with flat_memory() as gate:
            for row in rows:
                work(row)
                gate.step()

        @flat_memory(repeat=200)
        def test_work():
            work()

    `growth` is a bound ("50MB", bytes): growth above it fails as well, whatever its kind. `warmup` steps are not read (5, or 5 % of
    `steps`). `every` steps a reading is taken (so that there are about 150 where `steps` is known). `explain` names who holds what
    leaked: a decorated function runs once more for that; a block counts its objects at the start, so it is off unless True.

    Each step counts as if it saw all of the data, so growth that does not end during the test is a leak. A loop over a dataset says
    `steps_per_epoch`: then growth must end with the first epoch.

    A curve that does not decide passes with a `MemoryUndecided` warning, or fails if `strict`. A decorated function runs up to four
    times as often before that.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        steps: int | None = None,
        repeat: int | None = None,
        growth: str | int | None = None,
        warmup: int | None = None,
        every: int | None = None,
        steps_per_epoch: float | None = None,
        strict: bool = False,
        explain: bool | None = None,
        name: str | None = None,
    ):
        if steps is not None and repeat is not None:
            raise ConfigError("steps= is for a block and repeat= for a function: give one of them")
        for key, value, least in (("steps", steps, 1), ("repeat", repeat, 1), ("warmup", warmup, 0), ("every", every, 1)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ConfigError(f"{key}={value!r} is not a number of steps from {least} on")
        self._steps = steps if repeat is None else repeat
        self._bound = bytes_of("growth", growth)
        self._warmup = warmup
        self._every = every
        self._facts = facts(steps_per_epoch=1.0 if steps_per_epoch is None else steps_per_epoch)
        self._strict = strict
        self._explain = explain
        self._name = name
        self._readings: _native.Readings | None = None
        self._holders: Any = None
        self._run: Callable[..., Any] | None = None
        #: The judgement, once the block is over.
        self.assessment: Assessment | None = None
        #: Bytes by which memory grew, from after the warm-up to the end.
        self.growth = 0
        self.taken = 0
        if function is not None:
            if not callable(function):
                raise ConfigError(f"flat_memory takes a function or settings by name, not {function!r}")
            self._run = self(function)
            functools.update_wrapper(self, function)

    def step(self) -> None:
        """Tells that a step is done."""
        if self._readings is None or os.getpid() != self._pid:
            return
        self.taken += 1
        if self.taken > self._skipped:
            self._readings.step(self.taken - self._skipped)
        if self.taken == self._skipped:
            self._set_out()

    def __enter__(self) -> flat_memory:
        if self._readings is not None:
            raise ConfigError("this gate is in use: make another one with flat_memory()")
        self._begin(self._steps, explain=self._explain is True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        __tracebackhide__ = True
        try:
            # What the block raised says more than its memory.
            if kind is None and os.getpid() == self._pid:
                self._decide(last=True)
        finally:
            self._readings = self._holders = None

    @overload
    def __call__(self, function: Function, /) -> Function: ...
    @overload
    def __call__(self, *arguments: Any, **named: Any) -> Any: ...
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._run is not None:
            return self._run(*arguments, **named)
        (function,) = arguments
        return self._decorated(function)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # As functions do: a method that was decorated without settings gets its object.
        return self if instance is None or self._run is None else types.MethodType(self, instance)

    def _decorated(self, function: Function) -> Function:
        if inspect.isclass(function):
            raise ConfigError(f"{function.__name__} is a class: decorate its methods, or mark it with @pytest.mark.flat_memory")
        name = getattr(function, "__name__", "it")
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"{name} is async, so it does its work later: decorate a function that calls asyncio.run({name}())")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{name} is a generator, so it does its work later: decorate a function that goes through all of it")

        @functools.wraps(function)
        def repeated(*arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            logs = captured_logs()

            def call() -> Any:
                __tracebackhide__ = True
                forget_logs(logs)
                return function(*arguments, **named)

            return self._copy(function)._repeat(call)

        return repeated  # type: ignore[return-value]

    def _copy(self, function: Callable[..., Any]) -> flat_memory:
        gate = flat_memory.__new__(flat_memory)
        gate.__dict__.update(self.__dict__, _name=self._name or getattr(function, "__qualname__", None), taken=0)
        return gate

    def _repeat(self, call: Callable[[], Any]) -> Any:
        # Pytest shows where a test failed, and not how it was run.
        __tracebackhide__ = True
        repeat = self._steps or _REPEAT
        self._begin(repeat, explain=False)
        try:
            for round in range(1, _AT_MOST + 1):
                for _ in range(repeat if round > 1 else repeat + self._skipped):
                    result = call()
                    self.step()
                # A leak must show in a run that is twice as long, too.
                if self._decide(last=round == _AT_MOST, sure=round > 1, call=call):
                    break
            return result
        finally:
            self._readings = None

    def _begin(self, steps: int | None, *, explain: bool) -> None:
        self.taken, self.growth, self.assessment = 0, 0, None
        self._pid = os.getpid()
        least, part = _WARMUP
        self._skipped = max(least, int(part * (steps or 0))) if self._warmup is None else self._warmup
        if explain:
            from .holders import Holders

            self._holders = Holders()
        self._readings = _native.Readings(self._every or max(1, (steps or 0) // _READINGS))
        self._base = 0
        if self._skipped == 0:
            self._set_out()

    def _set_out(self) -> None:
        """Begins to count, once the warm-up is over."""
        assert self._readings is not None
        _release()
        self._base = self._readings.now()
        if self._holders is not None:
            self._holders.mark(step=self.taken, owned=self._base)

    def _decide(self, *, last: bool, sure: bool = True, call: Callable[[], Any] | None = None) -> bool:
        """Fails, or says whether it is decided."""
        __tracebackhide__ = True
        assert self._readings is not None
        levels = self._readings.levels()
        if levels is None:
            raise ConfigError(self._without_readings())
        found = self.assessment = Assessment._of(self._readings.judge(self._name or "the block", self._facts))
        self.growth = levels[1] - levels[0]
        is_above = self._bound is not None and self.growth > self._bound
        if (found.verdict == "leak" and sure) or (is_above and last) or (is_above and found.verdict != "undecided"):
            if self._was_garbage(is_above):
                return True
            raise self._failure(found, is_above, call)
        if found.verdict != "undecided" and found.verdict != "leak":
            return True
        if not last:
            return False
        return self._undecided(found)

    def _was_garbage(self, is_above: bool) -> bool:
        """Whether what grew goes when the collector runs, which it would have done in a longer test.

        Compared with a moment at which free memory had been given back as well: what the allocator keeps for a large array of each
        step goes too, and must not hide a leak beside it.
        """
        assert self._readings is not None
        _release()
        kept = self._readings.now() - self._base
        if is_above:
            assert self._bound is not None
            return kept <= self._bound
        return kept <= _GARBAGE * self.growth

    def _failure(self, found: Assessment, is_above: bool, call: Callable[[], Any] | None) -> MemoryGrew:
        grown = f"memory grew by {size(self.growth)} in {self.taken - self._skipped} steps"
        if found.verdict == "leak":
            head = f"{grown} and does not stop: {found.rate()} ({found.ending})"
        else:
            head = f"{grown}, more than the {size(self._bound or 0)} that growth= allows ({found.brief()})"
        explanation = self._explained(call)
        lines = [head, *(f"  - {sentence}" for sentence in found.evidence)]
        lines += ["Who holds it:", str(explanation)] if explanation is not None else []
        return MemoryGrew("\n".join(lines), found, self.growth, explanation)

    def _explained(self, call: Callable[[], Any] | None) -> Any:
        assert self._readings is not None
        if self._explain is False:
            return None
        try:
            if self._holders is None and call is not None:
                from .holders import Holders

                holders = Holders()
                holders.mark(step=0, owned=self._readings.now())
                steps = max(1, self.taken // _AT_MOST)
                for _ in range(steps):
                    call()
                return holders.explain(step=steps, owned=self._readings.now())
            return self._holders and self._holders.explain(step=self.taken, owned=self._readings.now())
        except Exception as error:
            return f"could not be found out: {type(error).__name__}: {error}"

    def _without_readings(self) -> str:
        seen = f"the gate saw {counted(self.taken, 'step')} and read none of them"
        if self.taken > self._skipped:
            return f"{seen}: lower every={self._every}"
        warmup = f"the first {self._skipped} are warm-up"
        if self._warmup is None and self._steps is not None:
            return f"{seen}, for {warmup}: call gate.step() once a step; steps={self._steps} promised more of them"
        return f"{seen}, for {warmup}: call gate.step() once a step, or lower warmup="

    def _undecided(self, found: Assessment) -> bool:
        __tracebackhide__ = True
        text = (
            f"{self._name or 'the block'}: {self.taken - self._skipped} steps do not tell whether memory comes to rest "
            f"(it moved by {size(self.growth)}; {found.ending}). More steps tell; strict=True fails instead"
        )
        if self._strict:
            raise MemoryGrew(f"{text}.", found, self.growth)
        warnings.warn(f"{text}.", MemoryUndecided, stacklevel=4)
        return True


def captured_logs() -> list[tuple[Any, int, int]]:
    """Pytest's handlers of log records, with how much each has. They keep all of a test's log until the test is over."""
    pytest = sys.modules.get("_pytest.logging")
    handlers = [handler for handler in logging.getLogger().handlers if pytest and isinstance(handler, pytest.LogCaptureHandler)]
    return [(handler, len(handler.records), handler.stream.tell()) for handler in handlers]


def forget_logs(logs: list[tuple[Any, int, int]]) -> None:
    """Takes from pytest what was logged since, so that the log of one round is not growth in the next."""
    for handler, records, end in logs:
        del handler.records[records:]
        if handler.stream.tell() > end:
            handler.stream.seek(end)
            handler.stream.truncate()


def _release() -> None:
    """Collects garbage and gives free memory back, so that a leak does not begin by filling what others left."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        # Only glibc has it.
        pass
