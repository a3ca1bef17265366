"""Callbacks for Hugging Face's Trainer, and so for TRL's and Unsloth's.

`MemoryMonitorCallback` takes step, epoch, rows and batch from the trainer, prints a line every few steps, and leaves a trace, a page
and a verdict. It never ends a training by a fault of its own.

The ranks of a distributed run stop at the same step: each tells the others after every step whether it must.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Any, TextIO

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from . import _beside, tensors
from ._bars import BesideBars
from ._beside import SUPERVISOR
from .assessment import size
from .exceptions import ConfigError
from .monitor import check_settings

__all__ = ["MemoryCleanupCallback", "MemoryMonitorCallback", "create_memory_logging_callback"]


class MemoryMonitorCallback(_beside.Watching, TrainerCallback):
    """Judges the memory of a run while it trains.

    every: steps between readings.
    stop_before: a size such as "28GB". The trainer is asked to save and to stop before memory reaches it.
    explain: name who holds what grew. "auto" does so when a leak is sure, and at the end of a run that grew.
    trace, report: where the readings and the page go; `memory.jsonl` and `memory.html` in the trainer's output folder by default,
    None for neither.
    quiet: print nothing. In a notebook a chart is drawn instead of lines.
    largest: how many of the largest tensors to name at the end.
    """

    def __init__(
        self,
        every: int = 10,
        *,
        stop_before: str | int | None = None,
        explain: bool | str = "auto",
        trace: str | os.PathLike[str] | None = "memory.jsonl",
        report: str | os.PathLike[str] | None = "memory.html",
        name: str | None = None,
        largest: int = 5,
        quiet: bool = False,
        file: TextIO | None = None,
    ) -> None:
        check_settings(every=every, explain=explain, stop_before=stop_before)
        self.every = every
        self._options = {"every": every, "stop_before": stop_before, "explain": explain, "name": name, "quiet": quiet, "file": file}
        self._files = {"trace": trace, "report": report}
        self._largest = largest

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        # A run that raised was never ended.
        self._end()
        # One line and one file for all ranks together; each rank still judges its own memory.
        speaks = state.is_world_process_zero
        options = {**self._options, **run_facts(args, state, given.get("train_dataloader"))}
        options["quiet"] = options["quiet"] or not speaks
        self.monitor = _beside.begin(options, self._files if speaks else {}, args.output_dir, after=state.global_step)
        # Trainer calls nothing when a training raises or is interrupted; the summary then comes when the program ends.
        atexit.register(self._end)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> TrainerControl | None:
        if self.monitor is not None:
            self.monitor.step(state.global_step, state.epoch)
        if not self._should_stop(args):
            return None
        control.should_save = True
        control.should_training_stop = True
        return control

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._end(largest=self._largest)

    def _should_stop(self, args: TrainingArguments) -> bool:
        """Whether this rank or another one must stop: a rank that stopped alone would leave the others waiting for its gradients."""
        must_stop = self.monitor is not None and self.monitor.should_stop
        if args.world_size == 1 or (self._options["stop_before"] is None and SUPERVISOR not in os.environ):
            return must_stop
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return must_stop
        flag = torch.tensor(int(must_stop), device=args.device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        if flag.item() and not must_stop and self.monitor is not None:
            self.monitor.stop("another rank is near its limit")
        return bool(flag.item())

    def _end(self, *, largest: int = 0) -> None:
        atexit.unregister(self._end)
        monitor = self._close()
        if monitor is not None and largest:
            monitor.say(lambda: "\n".join(["Largest tensors", *(f"  {tensor}" for tensor in tensors.largest(largest))]))


def create_memory_logging_callback(every: int = 10, **options: Any) -> MemoryMonitorCallback:
    """The callback as a function makes it, for scripts that had one of this name."""
    return MemoryMonitorCallback(every, **options)


class MemoryCleanupCallback(TrainerCallback):
    """Collects garbage and empties CUDA's cache every so many steps, and says what that gave.

    No run needs it: it is there to measure whether cleaning up helps. The summary names the bytes that came back.
    """

    def __init__(self, every: int, *, file: TextIO | None = None) -> None:
        if not isinstance(every, int) or every < 1:
            raise ConfigError(f"every={every!r} is not a number of steps from 1 on")
        self.every = every
        self.freed: list[int] = []
        self._file = BesideBars() if file is None else file

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self.freed = []

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if state.global_step % self.every:
            return
        before = resident_bytes()
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.freed.append(before - resident_bytes())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if self.freed and state.is_world_process_zero:
            total, most = sum(self.freed), max(self.freed)
            words = f"{len(self.freed)} clean-ups gave back {size(total)} of RAM, the best of them {size(most)}"
            try:
                print(words, file=self._file)
            except (OSError, ValueError):
                # Standard output that is gone ends no training.
                pass


def resident_bytes() -> int:
    """Resident bytes of this process alone."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_facts(args: TrainingArguments, state: TrainerState, dataloader: Any) -> dict[str, Any]:
    """What the trainer knows of the run: rows, rows of a step, steps of an epoch. A stream has no length."""
    # The state of a training that goes on tells the batch of its first part, unless the trainer looks for the batch that fits.
    batch = (state.train_batch_size if args.auto_find_batch_size else None) or args.train_batch_size
    facts: dict[str, Any] = {"samples_per_step": batch * args.gradient_accumulation_steps * max(1, args.world_size)}
    try:
        facts["dataset_size"] = len(dataloader.dataset)
        batches = len(dataloader)
    except (AttributeError, TypeError):
        return facts
    # The last step of an epoch takes the batches that are left, so an epoch has whole steps.
    facts["steps_per_epoch"] = max(1, -(-batches // args.gradient_accumulation_steps))
    return facts
