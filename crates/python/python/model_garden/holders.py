"""Who holds the memory that a run keeps: two censuses of the interpreter's objects, compared.

`Holders().mark()` takes the first census and `explain()` compares now with it. The `Explanation` prints as sentences such as
`663 PIL.JpegImageFile, 25 MB each, held by list 'rows' of ListDataset.__init__ (train.py:41)`. Needs nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from . import _explain, _words

__all__ = ["Explanation", "Holder", "Holders"]


@dataclass(frozen=True)
class Holder:
    """One holder of memory that came between two censuses."""

    type: str
    """What is held: `LazyImage`, `PIL.JpegImageFile`."""
    count: int
    """How many of them came, or grew."""
    bytes: int
    """What they hold together."""
    bytes_each: int
    bytes_per_step: int | None
    """Bytes a step, if both censuses know their step."""
    what: str | None
    """The part of each that holds the bytes, if it is not the whole: `bytearray 'pixels'`."""
    chain: str | None
    """Who holds it: `list 'rows' of ListDataset.__init__ (train.py:41)`; nothing if no name was found."""
    place: str | None
    """Where the name is stored: `train.py:41`."""
    itself: bool = False
    """Whether the container itself grew, not what it holds."""

    def __str__(self) -> str:
        return _words.sentence(asdict(self))


@dataclass(frozen=True)
class Explanation:
    """Who holds what came between two censuses."""

    growth: int
    """Bytes between the two censuses."""
    share: float
    """The part of the growth, 0 to 1, that the holders explain."""
    steps: int | None
    holders: list[Holder] = field(default_factory=list)
    rest: dict[str, int] = field(default_factory=dict)
    """What is not the interpreter's: `native heap`, `shared memory`, `file`, in bytes."""
    graphs: list[dict[str, Any]] = field(default_factory=list)
    """Containers that gather tensors with an autograd graph, if the holders leave growth open: `type`, `count`, `chain`, `place`."""
    graph: dict[str, Any] | None = None
    """The tensor whose autograd graph has grown, as one to which each step adds its loss: `type`, `chain`, `place`, and how many
    `operations` the graph has now and had `before`."""
    frozen: int = 0
    """Objects that `gc.freeze()` hides from a census, with what they hold."""
    gpu: int = 0
    """Growth of tensors in a GPU's memory, which is no part of the growth."""
    objects: int = 0
    complete: bool = True
    """Whether both censuses saw all objects in their time."""
    census_seconds: float = 0.0

    @classmethod
    def of(cls, told: dict[str, Any]) -> Explanation:
        """Makes one of what `_explain.explain` gives."""
        return cls(**{**told, "holders": [Holder(**holder) for holder in told["holders"]]})

    def to_dict(self) -> dict[str, Any]:
        """The same as numbers and strings."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_words.sentences(self.to_dict()))


class Holders:
    """Takes a census and compares later with it. Keeps no object alive."""

    def __init__(self) -> None:
        self._mark: _explain.Mark | None = None

    @property
    def marked(self) -> bool:
        """Whether the first census has been taken."""
        return self._mark is not None

    def mark(self, step: int | None = None, owned: int | None = None) -> None:
        """Takes the first census. `owned` is the memory of the process tree, this process's own if it is not given."""
        self._mark = None
        self._mark = _explain.Mark(step, owned)

    def explain(self, step: int | None = None, owned: int | None = None) -> Explanation:
        """Compares now with the first census."""
        if self._mark is None:
            raise RuntimeError("there is no census to compare with: call mark() once the run has taken its first steps")
        return Explanation.of(_explain.explain(self._mark, step, owned))
