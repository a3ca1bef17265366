"""Batches for PyTorch that keep no image.

`VisionCollator` goes where `UnslothVisionDataCollator` or TRL's `DataCollatorForVisionLanguageModeling` goes. It takes the same rows
and gives the arrays of HF's processor, with labels on what the assistant says. It never decodes an image that the dataset owns.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _native
from .exceptions import ConfigError

_ON_LONG_ROW = ("fail", "drop")
_TENSORS = ("pt", "np")
# More than the processors of any machine, and fewer than would keep one from its work.
_MOST_THREADS = 1024


class VisionCollator:
    """Makes a batch of rows.

    `processor_or_dir` is a model folder, the id of a model in the hub's cache, or an HF processor: its image processor, tokenizer and
    chat template are then taken as they are now.

    A row is a dictionary as TRL, Unsloth, OpenAI, ShareGPT or LLaVA write it, or a list of messages. Images may be PIL images, paths,
    bytes, base64, data URIs, dictionaries with `bytes` or `path`, uint8 arrays and tensors of height x width x 3 or 3 x height x width,
    and addresses where `allow_remote_images` is set. Your own code hands these rows over, so a path may lead anywhere, unless
    `image_roots` names the folders that images are read from.

    A PIL image is taken as HF's processor takes it: as it is stored, whatever its EXIF orientation says, with what is transparent on
    white. An image by its path or its bytes is turned upright and loses its transparency, as HF loads it.

    A row with more than `max_length` tokens raises a `RowError`, or is left out with `on_long_row="drop"`. It is never cut.
    `train_on` is "assistant", "last" or "all". `selective_loss` is "none", "conservative", "moderate" or "aggressive"; the last one
    masks `selective_loss_keys`, or else the keys that the first answers of this process share: name them where workers collate.
    """

    def __init__(
        self,
        processor_or_dir: Any,
        *,
        max_length: int | None = None,
        on_long_row: str = "fail",
        train_on: str = "assistant",
        selective_loss: str = "none",
        selective_loss_keys: Iterable[str] | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        allow_remote_images: bool = False,
        image_roots: Sequence[str | os.PathLike[str]] = (),
        threads: int | None = None,
        return_tensors: str | None = None,
    ) -> None:
        if return_tensors is None:
            return_tensors = "pt" if importlib.util.find_spec("torch") else "np"
        _one_of("on_long_row", on_long_row, _ON_LONG_ROW)
        _one_of("return_tensors", return_tensors, _TENSORS)
        if threads is not None and threads not in range(1, _MOST_THREADS + 1):
            raise ConfigError(f"threads: {threads!r} is no number from 1 to {_MOST_THREADS}")
        if isinstance(selective_loss_keys, str):
            selective_loss_keys = [selective_loss_keys]
        if isinstance(image_roots, (str, os.PathLike)):
            image_roots = [image_roots]
        self.return_tensors = return_tensors
        self._processor = _lasting(processor_or_dir)
        self._threads = threads
        self._settings = {
            "max_length": max_length,
            "drop_long": on_long_row == "drop",
            "train_on": train_on,
            "selective_loss": selective_loss,
            "selective_loss_keys": None if selective_loss_keys is None else list(selective_loss_keys),
            "min_pixels": min_pixels,
            "max_pixels": max_pixels,
            "allow_remote_images": allow_remote_images,
            "image_roots": [os.path.abspath(root) for root in image_roots],
        }
        self._open()

    def _open(self) -> None:
        if isinstance(self._processor, str):
            self._native = _native.Collator(self._processor, **self._settings)
            return
        # What the native module reads of a folder is in memory afterwards.
        with tempfile.TemporaryDirectory(prefix="model-garden-") as folder:
            _save(self._processor, folder)
            self._native = _native.Collator(folder, **self._settings)

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The arrays of a batch. Raises `RowError` with the row's number and the reason if a row cannot be used."""
        arrays = self._native.collate(rows if isinstance(rows, (list, tuple)) else _listed(rows), self._count_threads)
        if self.return_tensors == "np":
            return arrays
        import torch

        # The tensors own the arrays' memory: nothing is copied.
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _count_threads(self) -> int:
        return self._threads or _usable_processors()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        of = self._processor if isinstance(self._processor, str) else type(self._processor).__name__
        return f"VisionCollator({of!r})"


def _one_of(setting: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{setting}: {value!r} is none of {', '.join(choices)}")


def _listed(rows: Any) -> Any:
    """Rows that come as another sequence; the native module says what is wrong with anything else."""
    return list(rows) if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes, Mapping)) else rows


def _usable_processors() -> int:
    """One thread for each processor that this process may use, and a single one in a worker of a DataLoader, of which there are many."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lasting(processor: Any) -> Any:
    """A folder by its whole path, or the processor itself: what makes the same collator again in another process."""
    if not isinstance(processor, (str, os.PathLike)):
        if not hasattr(processor, "save_pretrained"):
            kind = type(processor).__name__
            raise ConfigError(f"a collator is made from a model folder or an HF processor, not from {kind}")
        return processor
    name = os.fspath(processor)
    if os.path.isdir(name):
        return os.path.abspath(name)
    cached = None if os.path.exists(name) else _native.cached_model_folder(name)
    if cached is None:
        raise ConfigError(f"{name} is neither a model folder nor the id of a model in the hub's cache")
    return str(cached)


def _save(processor: Any, folder: str) -> None:
    """Writes a processor as HF does. A tokenizer alone brings no image processor: that of the folder it came from is taken."""
    processor.save_pretrained(folder)
    kind = type(processor).__name__
    if not any(Path(folder).glob("tokenizer*")):
        raise ConfigError(f"{kind} has no tokenizer: give the whole processor, such as AutoProcessor gives")
    files = ("preprocessor_config.json", "processor_config.json")
    if any(Path(folder, file).exists() for file in files):
        return
    home = str(getattr(processor, "name_or_path", "") or "")
    home = home if os.path.isdir(home) else _native.cached_model_folder(home) or ""
    found = [path for path in (Path(home, file) for file in files) if home and path.is_file()]
    if not found:
        raise ConfigError(f"{kind} has no image processor: give the whole processor, such as AutoProcessor gives")
    for path in found:
        Path(folder, path.name).write_bytes(path.read_bytes())
