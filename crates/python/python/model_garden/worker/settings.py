"""The settings of a worker, as `model-garden` writes them into run.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PROTOCOL = 1


class Refused(Exception):
    """The worker cannot do what it is asked to; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What a worker must know before it is ready."""

    folder: Path  # of run.json: private to this run
    protocol: int
    engine: str
    parent: int
    base: str
    method: str
    precision: str
    adapter: str | None
    lora: dict[str, Any] | None
    recompute: bool | None
    max_steps: int
    batch_size: int
    max_seq_length: int
    learning_rate: float
    schedule: str
    warmup_steps: int
    optimizer: str
    adam: dict[str, float]
    max_grad_norm: float
    seed: int

    @classmethod
    def read(cls, path: str) -> Settings:
        values = json.loads(Path(path).read_text())
        if values.get("protocol") != PROTOCOL:
            raise Refused(f"{path} speaks protocol {values.get('protocol')}, this package {PROTOCOL}: install the same version of both")
        known = {field.name for field in fields(cls)}
        return cls(folder=Path(path).parent, **{name: value for name, value in values.items() if name in known})
