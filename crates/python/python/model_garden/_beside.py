"""Puts a memory monitor beside a trainer's run: what the callbacks for Hugging Face's Trainer and for Lightning share.

Takes the options of a callback and what the trainer knows of the run; gives a monitor, or None where there can be none. What is wrong
with the folder or with a file costs the trace or the page, never the training.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .assessment import Assessment
from .exceptions import GardenError
from .monitor import MemoryMonitor
from .tensors import TensorLine

_log = logging.getLogger("model_garden")
# Set in what `model-garden memory run` runs, which may ask to stop as well.
SUPERVISOR = "MODEL_GARDEN_SOCKET"


class Watching:
    """The monitor of a callback while a training runs, and what it found once that is over."""

    #: The monitor of the training that is under way.
    monitor: MemoryMonitor | None = None
    #: Who holds what the last training gained.
    explanation: Any = None
    _found: Assessment | None = None

    @property
    def assessment(self) -> Assessment | None:
        """What is known of the training that is under way, or was interrupted; of the last one after its end."""
        return self._found if self.monitor is None else self.monitor.assessment

    def _close(self) -> MemoryMonitor | None:
        """Sums up the training; gives the monitor, where there is one."""
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            self._found, self.explanation = monitor.close(), monitor.explanation
        return monitor

    def __getstate__(self) -> dict[str, Any]:
        # A monitor watches the process that made it, and cannot be copied.
        return {**self.__dict__, "monitor": None}


def begin(
    options: Mapping[str, Any], files: Mapping[str, str | os.PathLike[str] | None], folder: str | os.PathLike[str], *, after: int
) -> MemoryMonitor | None:
    """A monitor that has taken its first reading. `files` are the names of the trace and the report in `folder`; `after` are the steps
    that came before, where a training goes on."""
    paths = {key: Path(folder) / name for key, name in files.items() if name is not None}
    _prepare(paths, is_resumed=after > 0)
    monitor = _attempt({**options, **paths})
    if monitor is None and "trace" in paths:
        monitor = _attempt({**options, **paths, "trace": None})
    if monitor is not None:
        monitor.describe = TensorLine()
        monitor._go_on_from(after)
        # Without a step: what the first steps add (gradients, the optimizer's state, pools) is no growth of the run.
        monitor.sample()
    return monitor


def _attempt(options: Mapping[str, Any]) -> MemoryMonitor | None:
    try:
        return MemoryMonitor(**options)
    except (OSError, GardenError) as error:
        without = "a memory monitor" if options.get("trace") is None else "its trace of memory"
        _log.warning("%s; the run goes on without %s", error, without)
        return None


def _prepare(paths: Mapping[str, Path], *, is_resumed: bool) -> None:
    """Makes the folders. Where a run goes on, the files of its first part are kept under another name."""
    for path in paths.values():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if is_resumed and path.is_file():
                path.rename(_free_name(path))
        except OSError:
            # What is wrong is said when the file is opened.
            pass


def _free_name(path: Path) -> Path:
    """`memory-1.jsonl` beside `memory.jsonl`, or the next number that is free."""
    number = 1
    while (free := path.with_stem(f"{path.stem}-{number}")).exists():
        number += 1
    return free
