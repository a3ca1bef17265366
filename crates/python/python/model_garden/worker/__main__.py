"""Starts a worker: `python -m model_garden.worker run.json`, with the socket of `model-garden` as its standard input."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import traceback
from collections.abc import Callable

from .channel import Channel, Gone
from .settings import Refused, Settings

EXPLANATION = """\
This is the worker of `model-garden train-vision --engine transformers` (or unsloth). It is started by that command, which sends it
batches; it cannot be used alone. To train on a GPU with PyTorch:

    model-garden train-vision --engine transformers --python {python} --base-model DIR --dataset ROWS --output-dir OUT
"""
# What the allocator of PyTorch learned in the founding project: fewer and larger pieces, so that memory that is free can be used.
ALLOCATOR = "max_split_size_mb:512,expandable_segments:True"
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def set_allocator() -> None:
    """Chooses the settings of the CUDA allocator, unless the user did. PyTorch reads them when it is imported."""
    if any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):
        return
    os.environ[ALLOCATOR_VARIABLES[0 if newer_torch() else 1]] = ALLOCATOR


def newer_torch() -> bool:
    """Whether PyTorch has the newer name, and calls the older one outdated."""
    from importlib.metadata import version

    try:
        major, minor = version("torch").split(".")[:2]
        return (int(major), int(minor)) >= (2, 9)
    except Exception:
        return False


def end_with(parent: int) -> None:
    """Makes the kernel end this process when the one that started it ends, however that happens."""
    import ctypes

    set_death_signal = 1
    try:
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # the socket tells it, too, only later
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        sys.exit(1)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not stat.S_ISSOCK(os.fstat(0).st_mode):
        print(EXPLANATION.format(python=sys.executable), file=sys.stderr, end="")
        return 2
    # Whoever interrupts a run means the program that started this one: it asks us to save.
    for heard in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(heard, signal.SIG_IGN)
    channel = Channel.on_standard_input()
    try:
        settings = Settings.read(arguments[0])
        end_with(settings.parent)
        set_allocator()
        # Unsloth changes transformers as it is imported: the model comes before the trainer.
        if settings.engine == "unsloth":
            from .unsloth_engine import load
        else:
            from .transformers_engine import load
        model = load(settings)
        from .session import Session

        Session(model, settings, channel).run()
        return 0
    except Gone:
        return 1
    except Refused as refusal:
        return fail(channel.failed, str(refusal))
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return fail(channel.full, in_words(error))
        return fail(channel.failed, in_words(error))


def fail(say: Callable[[str], None], words: str) -> int:
    try:
        say(words)
    except Gone:
        pass
    return 1


def in_words(error: Exception) -> str:
    """An error as one line; the traceback is in the log."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":
        return f"the GPU's memory ran out; a smaller batch size or 4-bit weights need less ({text})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of libraries must not keep a worker that is over.
    os._exit(code)
