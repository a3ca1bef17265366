"""What a census knows of each type: how it is sized, how much of it is looked at and when, and what was counted of it.

Takes types of the program and asks them nothing that the program could answer with code of its own.
"""

from __future__ import annotations

import collections
import gc
import types
import weakref
from typing import Dict, List, Optional

from . import _sizes
from ._pause import OURS
from ._samples import Sampler
from ._sizes import is_kind, referents_of_module, referents_of_table, sizer_of, type_name

OURS.add(__name__)

# Of a type with more objects than this, a part is looked at ...
PER_TYPE = 20_000
# ... and sooner of a type that belongs to code, not to data.
PER_CODE_TYPE = 2_500
# Each stride divides the next: what is looked at with one was looked at with the one before it. Addresses of small objects lie at
# multiples of 16 bytes, mostly at powers of two, which strides that are odd do not follow.
STRIDES = (1, 3, 9, 27, 81, 243, 729, 2187)
# Of an object with more leaves than this, a part is looked at.
PER_OWNER = 10_000

HAVE_GC = 1 << 14
HEAP_TYPE = 1 << 9

SIZED = (list, dict, set)
SIZED_IDS = frozenset(map(id, SIZED))
SKIPPED = frozenset(map(id, (type(None), bool, type(Ellipsis), type(NotImplemented), type)))

CODE = frozenset(
    map(
        id,
        (
            types.FunctionType,
            types.BuiltinFunctionType,
            types.CellType,
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.MethodWrapperType,
            types.ClassMethodDescriptorType,
            type(List[int]),
            type(list[int]),
            type(Optional[int]),
            getattr(types, "UnionType", type(Optional[int])),
            weakref.ref,
            property,
            staticmethod,
            classmethod,
        ),
    )
)
RICH = (("PIL.Image", "Image"), ("torch", "Tensor"), ("numpy", "ndarray"), ("mmap", "mmap"))
DATA = frozenset(map(id, (list, dict, set, collections.deque, collections.OrderedDict)))
# A walk has so many phases, of which the last is for code.
PHASES = 3
CODE_PHASE = PHASES - 1


def phase_of(kind: type) -> int:
    """What may hold much comes first, so that a walk that runs out of time has seen it: images and tensors, then data, then code."""
    if any(is_kind(kind, module, name) for module, name in RICH):
        return 0
    is_made = bool(_sizes._flags(kind) & HEAP_TYPE)
    return 1 if id(kind) in DATA or (is_made and id(kind) not in CODE) else 2


def stride_of(kind: type, count: int) -> int:
    most = PER_CODE_TYPE if id(kind) in CODE else PER_TYPE
    return next((stride for stride in STRIDES if count <= stride * most), STRIDES[-1])


class Kind:
    """What is known of a type during one walk."""

    __slots__ = ("name", "size", "stride", "groups", "own", "visited", "total", "inner", "skip", "most", "storage", "base", "phase")
    __slots__ += ("referents", "certain", "likely")

    def __init__(self, kind: type, total: int, stride: int):
        self.name = type_name(kind)
        self.total, self.stride, self.visited = total, stride, 0
        self.own = [0.0, 0.0]
        self.groups: Dict[int, list] = {}
        self.certain: Dict[Optional[str], Sampler] = {}
        self.likely: Dict[Optional[str], Sampler] = {}
        self.size = sizer_of(kind)
        self.inner = bool(_sizes._flags(kind) & HAVE_GC)
        self.skip = id(kind) in SKIPPED
        # Of so many leaves of one owner at most.
        self.most = PER_OWNER
        self.base = is_kind(kind, "numpy", "ndarray")
        self.storage = is_kind(kind, "torch", "Tensor")
        self.phase = phase_of(kind)
        self.referents = gc.get_referents
        if issubclass(kind, types.ModuleType):
            self.referents = referents_of_module
        elif issubclass(kind, dict):
            self.referents = referents_of_table

    def scale(self) -> float:
        """How many objects each one stands for that was looked at."""
        return self.total / self.visited if self.stride > 1 and self.visited else 1.0
