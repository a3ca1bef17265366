"""Model Garden for Python: judge the memory of a training run, and collate images without keeping them.

Importing this needs numpy alone; torch, transformers, lightning and matplotlib are imported by what uses them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._native import VERSION as __version__
from .exceptions import ConfigError, GardenError, RowError, TraceError, TrainingError

if TYPE_CHECKING:
    from .assessment import Assessment, analyze, watch
    from .collator import VisionCollator
    from .dataset import VisionDataset
    from .gate import MemoryGrew, flat_memory
    from .holders import Holders
    from .monitor import MemoryMonitor
    from .training import Plan, RunReport, plan, settings, train

# Where each name is; a module is imported when one of its names is first used.
_HOMES = {
    "Assessment": "assessment",
    "Holders": "holders",
    "MemoryGrew": "gate",
    "MemoryMonitor": "monitor",
    "Plan": "training",
    "RunReport": "training",
    "VisionCollator": "collator",
    "VisionDataset": "dataset",
    "analyze": "assessment",
    "flat_memory": "gate",
    "plan": "training",
    "settings": "training",
    "train": "training",
    "watch": "assessment",
}

__all__ = [
    "Assessment",
    "ConfigError",
    "GardenError",
    "Holders",
    "MemoryGrew",
    "MemoryMonitor",
    "Plan",
    "RowError",
    "RunReport",
    "TraceError",
    "TrainingError",
    "VisionCollator",
    "VisionDataset",
    "__version__",
    "analyze",
    "flat_memory",
    "plan",
    "settings",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'model_garden' has no attribute '{name}'")
    value = getattr(import_module(f".{home}", __name__), name)
    # Found directly from now on.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
