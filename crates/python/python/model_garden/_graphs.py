"""The autograd graphs behind tensors: which tensors keep one, what lies in it, and whether it grows from step to step.

Takes tensors and follows what lies behind their `grad_fn`. A list of losses, or a tensor to which each step adds its loss, keeps the graphs
of all steps, and with them what their backward passes need. Torch alone holds that, so no reference of Python leads from it to a name.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from typing import Any, Dict, List, Optional

from ._pause import OURS, Budget
from ._samples import Held, Sampler

OURS.add(__name__)

# All graphs of a census together are followed through so many operations at most: many steps of a large model ...
LARGEST = 100_000
# ... for so many seconds of a core.
SECONDS = 0.5
# So many tensors are asked for their graph.
TENSORS = 20_000
# A graph has grown if it has so many times as many operations as the largest one of the first census, and so many more ...
TIMES = 1.5
MORE = 50
# ... which came in each of so many parts of the time since then. The graph of a single step came in the last one.
PARTS = 4
# Operations that add to a parameter's gradient have this number or a larger one; they belong to no moment.
NO_MOMENT = 1 << 63


def has_graph(tensor: Any) -> bool:
    """Whether a tensor was computed from others that gradients are wanted of, and so keeps what its backward pass needs."""
    try:
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            return not tensor.is_leaf
    except Exception:
        return False


def operation_of(tensor: Any) -> Any:
    try:
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            return tensor.grad_fn
    except Exception:
        return None


def moment(operation: Any) -> int:
    """When an operation was computed: a thread numbers its operations."""
    try:
        return operation._sequence_nr()
    except Exception:
        return NO_MOMENT


class Graphs:
    """Graphs that were followed from the newest operation on, each operation once. So most tensors lie in the graph of another one; those
    that do not are the roots, by which the graphs are kept. Holds the operations: not for longer than an undivided moment."""

    __slots__ = ("seen", "starts", "roots", "part", "largest", "moments")

    def __init__(self, tensors: List[Held]):
        # An operation is known by its object as long as that is kept.
        self.seen: Dict[int, Any] = {}
        self.roots: List[Held] = []
        # For each root the number of operations that were known before it.
        self.starts: List[int] = []
        # The root with the most operations, and their moments.
        self.largest: Optional[Held] = None
        self.moments = array("Q")
        # The part of the tensors that was looked at.
        self.part = self.follow(tensors, Budget(SECONDS)) if tensors else 1.0

    def follow(self, tensors: List[Held], budget: Budget) -> float:
        operations = [operation_of(held.owner) for held in tensors]
        moments = list(map(moment, operations))
        # What was computed last keeps what was computed before.
        order = sorted(range(len(tensors)), key=moments.__getitem__, reverse=True)
        for looked, at in enumerate(order):
            operation = operations[at]
            if operation is None or id(operation) in self.seen:
                continue
            if len(self.seen) >= LARGEST or budget.is_spent():
                return max(1, looked) / len(order)
            self.add(tensors[at], operation, budget)
        return 1.0

    def add(self, root: Held, first: Any, budget: Budget) -> None:
        seen, moments = self.seen, array("Q")
        self.roots.append(root)
        self.starts.append(len(seen))
        seen[id(first)] = first
        rest, check = [first], len(seen)
        while rest and len(seen) < LARGEST:
            if len(seen) >= check:
                check = len(seen) + 256
                if budget.is_spent():
                    break
            operation = rest.pop()
            moments.append(moment(operation))
            try:
                following = operation.next_functions
            except Exception:
                continue
            for operation, _ in following:
                if operation is not None and id(operation) not in seen:
                    seen[id(operation)] = operation
                    rest.append(operation)
        if len(moments) > len(self.moments):
            self.largest, self.moments = root, moments

    @property
    def latest(self) -> int:
        """The moment of the last operation of the largest graph."""
        return max((at for at in self.moments if at < NO_MOMENT), default=0)

    def grew(self, before: int, since: int) -> bool:
        """Whether the largest graph remembers the steps that came since the largest one had so many operations up to a moment."""
        length = self.latest - since + 1
        if len(self.moments) < TIMES * before + MORE or length < PARTS:
            return False
        return len({(at - since) * PARTS // length for at in self.moments if since <= at < NO_MOMENT}) == PARTS

    def new_roots(self, since: int, is_new: Any) -> List[Held]:
        """Some of the roots that came since a moment; each counts as one, whatever its bytes."""
        kept = Sampler()
        for root in self.roots:
            if since < moment(operation_of(root.owner)) < NO_MOMENT or is_new(root.owner):
                kept.push(root.owner, None, None, 1 / self.part, 1 / self.part)
        return kept.kept

    def roots_of(self, tensors: List[Any]) -> Dict[int, Held]:
        """By the address of a tensor: the root of the graph in which it lies, if it is in one."""
        wanted: Dict[int, List[int]] = {}
        for tensor in tensors:
            wanted.setdefault(id(operation_of(tensor)), []).append(id(tensor))
        found: Dict[int, Held] = {}
        for position, address in enumerate(self.seen if wanted else ()):
            if address in wanted:
                root = self.roots[bisect_right(self.starts, position) - 1]
                found.update((tensor, root) for tensor in wanted[address] if tensor != id(root.owner))
        return found
