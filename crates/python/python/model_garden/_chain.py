"""Climbs from sampled objects to what keeps them alive.

Takes samples of a census and gives for each the path of objects above it, up to a module, a class, a function, a generator or a variable
of a running function. The frame of a function that has ended is held by something itself, such as the traceback of an exception.
All samples climb together, so a level costs one search through the interpreter's objects.
"""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
from typing import Any, Dict, List, Optional, Tuple

from . import _sizes
from ._census import Walk
from ._pause import COPIES, OURS, Budget, frames, is_ours, locals_of
from ._samples import Held
from ._sizes import referents_of, type_name

# A path is followed through so many objects at most ...
LEVELS = 24
# ... of each of which so many holders are looked at, the likeliest first ...
HOLDERS = 4
# ... as long as the level has no more objects than this.
WIDTH = 256

OURS.add(__name__)

CONTAINERS = (list, dict, set, frozenset, tuple, collections.deque)
LRU_CACHE = type(functools.lru_cache(maxsize=1)(lambda: None))
SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
ROOTS = (type, types.ModuleType, types.FunctionType, LRU_CACHE) + SUSPENDED


class Node:
    """An object on a path, and the objects that hold it."""

    __slots__ = ("obj", "holders", "seen")

    def __init__(self, obj: Any):
        self.obj = obj
        self.holders: List["Node"] = []
        self.seen = False


class Climb:
    """Follows the references from sampled objects upward, all of them at once: a search through all objects for each level."""

    def __init__(self, budget: Budget, own: Any = None):
        self.budget = budget
        self.nodes: Dict[int, Node] = {}
        running = frames()
        # What a census holds itself is no holder.
        self.running = {id(frame) for frame in running} | {id(_sizes.table_of(own))}
        self.variables = variables(running)
        self.modules = modules()

    def paths(self, samples: List[Held]) -> List[List[Any]]:
        """For each sample the objects above it: the owner first, the last one held by a name."""
        starts = [self.node(held.owner) for held in samples]
        level = unique(starts)
        for _ in range(LEVELS):
            level = [node for node in level if not node.seen and not self.is_root(node)]
            if not level or self.budget.is_spent():
                break
            level = self.above(level[:WIDTH])
        return [self.shortest(node) for node in starts]

    def is_anchored(self, path: List[Any]) -> bool:
        """Whether a path ends at a name."""
        return self.is_root(self.node(path[-1])) or id(path[-1]) in self.variables

    def node(self, obj: Any) -> Node:
        found = self.nodes.get(id(obj))
        if found is None:
            found = self.nodes[id(obj)] = Node(obj)
        return found

    def is_root(self, node: Node) -> bool:
        return id(node.obj) in self.modules or issubclass(type(node.obj), ROOTS)

    def above(self, level: List[Node]) -> List[Node]:
        """The holders of a level's objects."""
        batch = [node.obj for node in level]
        wanted = {id(node.obj): node for node in level}
        found: Dict[int, List[Tuple[int, Node]]] = {}
        for holder in gc.get_referrers(*batch):
            if holder is batch or is_of_census(holder) or id(holder) in self.running or id(holder) in COPIES:
                continue
            for held in referents_of(holder):
                node = wanted.get(id(held))
                if node is not None and holder is not held:
                    found.setdefault(id(held), []).append((rank(holder), self.node(holder)))
        following = []
        for address, node in wanted.items():
            node.seen = True
            ranked = sorted(found.get(address, ()), key=first)
            node.holders = unique([holder for _, holder in ranked])[:HOLDERS]
            following += node.holders
        return unique(following)

    def shortest(self, start: Node) -> List[Any]:
        """The shortest path to a root; where there is none, the longest that is known."""
        came: Dict[int, Optional[Node]] = {id(start): None}
        queue, end = [start], start
        variable: Optional[Node] = None
        for node in queue:
            if self.is_root(node):
                end = node
                break
            if id(node.obj) in self.variables and (variable is None or not node.holders or variable.holders):
                # What a variable holds and nothing else is held there; what also has other holders may only pass through it.
                variable = node
            for holder in node.holders:
                if id(holder) not in came:
                    came[id(holder)] = node
                    queue.append(holder)
        else:
            end = variable or node
        path: List[Any] = []
        step: Optional[Node] = end
        while step is not None:
            path.append(step.obj)
            step = came[id(step)]
        path.reverse()
        return path

    def close(self) -> None:
        self.nodes.clear()
        self.variables.clear()
        self.running.clear()


def first(pair: tuple) -> int:
    return pair[0]


def unique(nodes: List[Node]) -> List[Node]:
    return list({id(node): node for node in nodes}.values())


def is_of_census(obj: Any) -> bool:
    kind = type(obj)
    return any(kind is one for one in (Held, Node, Climb, Walk)) or (kind is types.FrameType and is_ours(obj))


def rank(obj: Any) -> int:
    """Which holder of an object is the likeliest to keep it: containers first, then instances, then what passes it along."""
    kind = type(obj)
    if issubclass(kind, CONTAINERS):
        return 0
    if issubclass(kind, (types.CellType, types.MethodType, types.FrameType) + ROOTS):
        return 1
    return 3 if type_name(kind).endswith("iterator") else 2


def modules() -> Dict[int, str]:
    """The names of all modules by the address of what they define."""
    found = {}
    for name, module in list(sys.modules.items()):
        table = _sizes.table_of(module) if issubclass(type(module), types.ModuleType) else None
        if table is not None:
            found[id(table)] = name
    return found


def variables(running: List[Any]) -> Dict[int, List[Tuple[str, Any]]]:
    """The variables of running functions by the address of what they hold."""
    found: Dict[int, List[Tuple[str, Any]]] = {}
    for frame in running:
        code = frame.f_code
        for name, value in locals_of(frame):
            found.setdefault(id(value), []).append((name, code))
    return found
