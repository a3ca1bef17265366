"""Samples of what came between two censuses.

Takes objects with their bytes, one after another, and keeps a few of them that stand for all.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

# So many new objects of a group are climbed up from.
SAMPLES = 32


class Held:
    """A sampled object: a tracked owner, the leaf in it if the leaf is what counts, and the untracked container between them."""

    __slots__ = ("owner", "between", "leaf", "weight", "number", "group", "is_saved")

    def __init__(self, owner: Any, between: Any, leaf: Any, weight: float, number: float):
        self.owner, self.between, self.leaf = owner, between, leaf
        self.weight, self.number = weight, number
        self.group: Optional[tuple] = None
        # Whether the leaf is what the autograd graph of the owner keeps.
        self.is_saved = False


class Sampler:
    """Keeps at most `SAMPLES` of what is pushed, evenly by weight; each stands for the bytes and objects pushed since the one before."""

    __slots__ = ("kept", "interval", "weight", "number")

    def __init__(self) -> None:
        self.kept: List[Held] = []
        self.interval, self.weight, self.number = 0.0, 0.0, 0.0

    def push(self, owner: Any, between: Any, leaf: Any, weight: float, number: float) -> None:
        self.weight += weight
        self.number += number
        if self.weight < self.interval:
            return
        self.kept.append(Held(owner, between, leaf, self.weight, self.number))
        self.weight, self.number = 0.0, 0.0
        if len(self.kept) >= 2 * SAMPLES:
            for kept, dropped in zip(self.kept[::2], self.kept[1::2]):
                kept.weight += dropped.weight
                kept.number += dropped.number
            del self.kept[1::2]
            self.interval = max(2 * self.interval, sum(kept.weight for kept in self.kept) / (2 * SAMPLES))


def sampler_of(samplers: Dict[Optional[str], Sampler], name: Optional[str]) -> Sampler:
    found = samplers.get(name)
    if found is None:
        found = samplers[name] = Sampler()
    return found
