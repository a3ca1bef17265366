"""The memory monitor as a callback of Lightning's Trainer.

Works with `lightning` and with `pytorch_lightning`. Takes steps, epochs, rows and batch from the trainer; saves a checkpoint and stops
before a limit where it was given one.
"""

from __future__ import annotations

import os
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the package under its older name
    from pytorch_lightning.callbacks import Callback

from . import _beside
from ._beside import SUPERVISOR
from .monitor import check_settings

__all__ = ["MemoryMonitorCallback"]

# The checkpoint that is written before a limit.
LIMIT_CHECKPOINT = "memory-limit.ckpt"


class MemoryMonitorCallback(_beside.Watching, Callback):
    """Judges the memory of a run while it trains; `options` are those of `MemoryMonitor`.

    Files go to the trainer's `default_root_dir`: `memory.jsonl`, `memory.html`, and `memory-limit.ckpt` where `stop_before` ends the run.
    """

    def __init__(
        self,
        every: int = 10,
        *,
        trace: str | os.PathLike[str] | None = "memory.jsonl",
        report: str | os.PathLike[str] | None = "memory.html",
        **options: Any,
    ) -> None:
        settings = {"every": every, "explain": "auto", "stop_before": None, **options}
        check_settings(**{key: settings[key] for key in ("every", "explain", "stop_before")})
        self.every = every
        self._files = {"trace": trace, "report": report}
        self._options = options
        self._step = -1

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._close()
        speaks = trainer.is_global_zero
        options = {**self._options, "every": self.every, **run_facts(trainer)}
        options["quiet"] = options.get("quiet", False) or not speaks
        self._step, self._has_stopped = steps_done(trainer, module), False
        self.monitor = _beside.begin(options, self._files if speaks else {}, trainer.default_root_dir, after=self._step)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # The batches of an accumulated step come in between.
        step = steps_done(trainer, module)
        if step == self._step:
            return
        self._step = step
        batches = trainer.num_training_batches
        part = (batch_idx + 1) / batches if batches and batches != float("inf") else 0.0
        if self.monitor is not None:
            self.monitor.step(self._step, trainer.current_epoch + part)
        if self._must_stop(trainer) and not self._has_stopped:
            self._has_stopped = True
            trainer.save_checkpoint(os.path.join(trainer.default_root_dir, LIMIT_CHECKPOINT))
            # Memory does not wait for `min_epochs` and `min_steps`, which Lightning puts above a wish to stop.
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
            trainer.should_stop = True

    def _must_stop(self, trainer: Any) -> bool:
        """Whether this rank or another one must stop: saving and stopping are for all ranks together."""
        wants = self.monitor is not None and self.monitor.should_stop
        if trainer.world_size == 1 or (self._options.get("stop_before") is None and SUPERVISOR not in os.environ):
            return wants
        stops = trainer.strategy.reduce_boolean_decision(wants, all=False)
        if stops and not wants and self.monitor is not None:
            self.monitor.stop("another rank is near its limit")
        return stops

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._close()


def steps_done(trainer: Any, module: Any) -> int:
    """Steps so far. Lightning counts each optimizer's; a module that steps its optimizers itself does so for each batch."""
    return trainer.global_step if module.automatic_optimization else trainer.fit_loop.total_batch_idx + 1


def run_facts(trainer: Any) -> dict[str, Any]:
    """What the trainer knows of the run; a stream has no length."""
    loader = trainer.train_dataloader
    batch = getattr(loader, "batch_size", None)
    accumulated = trainer.accumulate_grad_batches
    facts: dict[str, Any] = {}
    if batch:
        facts["samples_per_step"] = batch * accumulated * max(1, trainer.world_size)
    try:
        rows, batches = len(loader.dataset), len(loader)
    except (AttributeError, TypeError):
        return facts
    if trainer.num_training_batches < batches and is_in_order(loader):
        # An epoch was cut short (`limit_train_batches`), and the next one sees the same rows again. Shuffled, it sees others.
        rows = rows * trainer.num_training_batches // batches
        batches = trainer.num_training_batches
    facts["dataset_size"] = max(1, rows)
    facts["steps_per_epoch"] = max(1, -(-batches // accumulated))
    return facts


def is_in_order(loader: Any) -> bool:
    """Whether each epoch begins with the same rows."""
    sampler = getattr(loader, "sampler", None)
    return type(sampler).__name__ == "SequentialSampler" or getattr(sampler, "shuffle", None) is False
