"""Explains growth: compares a census with the objects of now and says who holds what came.

Takes the first census and gives a dictionary with the holders, their bytes and their places, the growth, the part of it that is explained
and what the rest is. Samples of what is new climb to what keeps them; those that meet in one container are one holder.
"""

from __future__ import annotations

import gc
import time
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from . import _census
from ._census import CUDA, Census, Walk
from ._chain import CONTAINERS, LRU_CACHE, Climb
from ._graphs import Graphs
from ._kinds import PHASES, SIZED
from ._names import Name, keeps_all, name_above, name_at, owns_table
from ._pages import mapped, owned_now, rest
from ._pause import OURS, Budget, Undivided
from ._samples import Held
from ._sizes import type_name

OURS.add(__name__)

# Groups are looked into until so much of the growth is covered ...
COVERED = 0.995
# ... but not more than so many.
GROUPS = 48
# Climbing stops after so many seconds of a core.
CLIMB = 3.0
# A container that holds so many times what a container below it holds is where the objects gather.
GATHERS = 2.5
# Holders below this part of the growth are not told.
LEAST_SHARE = 0.01

# What a container holds of other types is told apart if it is more than this part of what it mainly holds.
MINOR = 0.25
# A container that was too small to be remembered and has so many things now got all of them since.
MANY = 5_000
# Holders that explain so much of the growth leave nothing open.
CLEAR = 0.9
# So few tensors with a graph are those of the step that is under way.
GRAPHS = 5
# The group of tensors with an autograd graph.
GRAPH = ("tensor with an autograd graph", None)
# What a graph keeps for its backward pass.
SAVED = "saved by autograd"
# Holders without a name are told above this part of the growth.
LEAST_NAMELESS = 0.05

# A step, or who knows the step of a moment of the monotonic clock.
Step = Union[int, None, Callable[[float], Optional[int]]]


def step_at(step: Step, moment: float) -> Optional[int]:
    return step(moment) if callable(step) else step


class Mark:
    """The first census, and what the process held when it was taken."""

    __slots__ = ("census", "owned", "mapped", "step", "at")

    def __init__(self, step: Step = None, owned: Optional[int] = None):
        self.mapped = mapped()
        self.owned = owned_now(self.mapped) if owned is None else owned
        self.census, until = _census.take()
        # What the census itself keeps, and leaves to the allocator, is no growth of the program.
        before, self.mapped = owned_now(self.mapped), mapped()
        self.owned += owned_now(self.mapped) - before
        self.step, self.at = step_at(step, until), until


PLAIN = (list, dict, tuple)


class Found:
    """What one holder has of the growth, gathered from samples."""

    __slots__ = ("bytes", "parts", "counts", "full", "knot", "element", "inner")

    def __init__(self, full: List[Any], knot: Optional[int], element: str):
        self.bytes = 0.0
        self.parts: Dict[tuple, float] = {}
        self.counts: Dict[tuple, float] = {}
        self.full: Optional[List[Any]] = full
        self.knot, self.element = knot, element
        self.inner: Dict[str, float] = {}


def explain(mark: Mark, step: Step = None, owned: Optional[int] = None) -> Dict[str, Any]:
    """Compares now with the mark."""
    maps = mapped()
    growth = (owned_now(maps) if owned is None else owned) - mark.owned
    begun = time.perf_counter()
    with Undivided() as pause:
        found = compare(mark.census)
    seconds = time.perf_counter() - begun
    step = step_at(step, pause.until)
    holders = named(found.holders)
    steps = step - mark.step if step is not None and mark.step is not None and step > mark.step else None
    told = [told_of(holder, steps) for holder in holders if holder["bytes"] >= least(holder) * max(growth, 1)]
    explained = sum(holder["bytes"] for holder in holders if holder["chain"] is not None)
    share = round(max(0.0, min(1.0, explained / growth)), 4) if growth > 0 else 0.0
    # If holders that are no graphs explain nearly all, autograd graphs are nothing to speak of.
    in_question = share < CLEAR or any(holder["what"] == SAVED for holder in told)
    return {
        "growth": growth,
        "share": share,
        "steps": steps,
        "holders": told,
        "rest": rest(maps, mark.mapped, found.objects, found.shared) if found.complete else {},
        "graphs": graphs_of(found.graphs) if in_question else [],
        "graph": graph_of(found.graph, found.operations, mark.census.operations) if in_question else None,
        "frozen": gc.get_freeze_count(),
        "gpu": int(found.cuda),
        "objects": mark.census.objects,
        "complete": found.complete,
        "census_seconds": round(seconds, 3),
    }


class Compared(NamedTuple):
    """What two censuses found. Holders of objects, of new tensors with an autograd graph, and of the tensor whose graph grew; its
    operations; the growth of all objects, and its parts on a GPU and in shared mappings."""

    holders: List[dict]
    graphs: List[dict]
    graph: List[dict]
    operations: int
    objects: float
    cuda: float
    shared: float
    complete: bool


def compare(first: Census) -> Compared:
    """What came since the first census."""
    walk = Walk(first)
    walk.run()
    before, _, old_fat = first.tables()
    # What only one of the two had time for cannot be compared.
    phases = min(first.phases, walk.phases)
    after = walk.groups(phases)
    grown = {}
    for key, (count, size, _) in after.items():
        old_count, old_size, _ = before.get(key, (0.0, 0.0, 0))
        grown[key] = (count - old_count, size - old_size)
    for key, (count, size, phase) in before.items():
        if key not in after and phase < phases:
            grown[key] = (-count, -size)
    _, cuda = grown.pop((CUDA, None), (0.0, 0.0))
    shared = walk.shared - first.shared
    total = sum(size for _, size in grown.values())
    climb = Climb(Budget(CLIMB), walk)
    graphs = Graphs(walk.with_graph)
    found = gather(samples_of(walk, grown), grown, climb, walk, old_fat, graphs)
    roots = gather_roots(graphs.new_roots(first.latest, newness(walk)), climb, walk, old_fat)
    grew = [graphs.largest] if graphs.largest is not None and graphs.grew(first.operations, first.latest) else []
    graph = gather_roots(grew, climb, walk, old_fat)
    climb.close()
    return Compared(found, roots, graph, len(graphs.moments), total, cuda, shared, phases == PHASES)


def gather_roots(kept: List[Held], climb: Climb, walk: Walk, old_fat: dict) -> List[dict]:
    """Folds tensors with an autograd graph into holders. Each counts as one, whatever its bytes."""
    samples = [Held(held.owner, None, None, held.weight, held.number) for held in kept]
    count = sum(held.number for held in samples)
    for held in samples:
        held.group, held.weight, held.number = GRAPH, held.weight / count, held.number / count
    return gather(samples, {GRAPH: (count, count)}, climb, walk, old_fat)


def samples_of(walk: Walk, grown: Dict[tuple, tuple]) -> List[Held]:
    """The samples of the groups that grew; their weights and numbers are parts of the group."""
    samples: List[Held] = []
    for group in largest(grown):
        kept = walk.samples(group, grown[group][1])
        whole, number = sum(held.weight for held in kept) or 1.0, sum(held.number for held in kept) or 1.0
        for held in kept:
            held.group, held.weight, held.number = group, held.weight / whole, held.number / number
        samples += kept
    return samples


def gather(
    samples: List[Held], grown: Dict[tuple, tuple], climb: Climb, walk: Walk, old_fat: dict, graphs: Optional[Graphs] = None
) -> List[dict]:
    """Folds samples of the groups that grew into holders."""
    paths = []
    for held, path in zip(samples, paths_of(samples, climb, walk, graphs)):
        if type(held.between) is dict and owns_table(held.owner, held.between):
            held.between = None
        paths.append([part for part in (held.leaf, held.between) if part is not None] + path)
    is_new = newness(walk)
    support = supports(samples, paths, grown)
    holders: Dict[tuple, Found] = {}
    for held, full in zip(samples, paths):
        knot = knot_of(full, held, support, is_new)
        element = full[element_of(full, knot, held)]
        itself = knot == 0
        key = (id(full[knot]) if knot is not None else id(full[1] if len(full) > 1 else full[0]), None if itself else id(type(element)))
        holder = holders.get(key)
        if holder is None:
            holder = holders[key] = Found(full, knot, type_name(type(element)))
        count, size = grown[held.group]
        holder.bytes += size * held.weight
        holder.parts[held.group] = holder.parts.get(held.group, 0.0) + size * held.weight
        holder.counts[held.group] = holder.counts.get(held.group, 0.0) + count * held.number
        if held.is_saved:
            holder.inner[SAVED] = holder.inner.get(SAVED, 0.0) + size * held.weight
        elif full[0] is not element and held.leaf is not None and held.between is None:
            name = name_at(full, 0, climb)
            words = held.group[0] + (" '%s'" % name.name if name is not None and name.name else key_word(full))
            holder.inner[words] = holder.inner.get(words, 0.0) + size * held.weight
    return finish(holders, climb, old_fat, walk.old_big, is_new)


def paths_of(samples: List[Held], climb: Climb, walk: Walk, graphs: Optional[Graphs]) -> List[List[Any]]:
    """The paths above samples. A tensor that only torch holds is replaced by one that shares its storage and is held by a name, or is held
    by the tensor in whose graph it lies."""
    paths = climb.paths(samples)
    sharers = {id(tensors[0]): tensors for tensors in walk.sharers.values() if len(tensors) > 1}
    lost = [at for at, path in enumerate(paths) if id(samples[at].owner) in sharers and not climb.is_anchored(path)]
    others = [(at, Held(tensor, None, None, 0, 0)) for at in lost for tensor in sharers[id(samples[at].owner)][1:]]
    for (at, other), path in zip(others, climb.paths([other for _, other in others])):
        if climb.is_anchored(path) and not climb.is_anchored(paths[at]):
            samples[at].owner, paths[at] = other.owner, path
    if graphs is not None:
        climb_from_graphs(samples, paths, climb, sharers, graphs)
    return paths


def climb_from_graphs(samples: List[Held], paths: List[List[Any]], climb: Climb, sharers: Dict[int, List[Any]], graphs: Graphs) -> None:
    """What only torch holds is held by the tensor in whose graph it lies."""
    lost = [at for at, path in enumerate(paths) if not climb.is_anchored(path)]
    roots = graphs.roots_of([tensor for at in lost for tensor in sharers.get(id(samples[at].owner), [samples[at].owner])])
    known = list({id(root): Held(root.owner, None, None, 0, 0) for root in roots.values()}.values())
    above = {id(root.owner): path for root, path in zip(known, climb.paths(known)) if climb.is_anchored(path)}
    for at in lost:
        held = samples[at]
        for tensor in sharers.get(id(held.owner), [held.owner]):
            root = roots.get(id(tensor))
            if root is not None and id(root.owner) in above:
                held.owner, held.between, held.leaf, held.is_saved = root.owner, None, tensor, True
                paths[at] = above[id(root.owner)]
                break


def largest(grown: Dict[tuple, tuple]) -> List[tuple]:
    """The groups that make up nearly all of the growth."""
    rising = sorted((key for key in grown if grown[key][1] > 0), key=lambda key: -grown[key][1])
    whole = sum(grown[key][1] for key in rising)
    chosen, covered = [], 0.0
    for key in rising[:GROUPS]:
        if covered >= COVERED * whole:
            break
        chosen.append(key)
        covered += grown[key][1]
    return chosen


def newness(walk: Walk) -> Any:
    slots, mask = walk.first.slots, walk.first.mask

    def is_new(obj: Any) -> bool:
        return not slots[(id(obj) >> 4) & mask]

    return is_new


def is_container(full: List[Any], index: int) -> bool:
    """Whether an object of a path is a container of things, not the table of an instance or of a closure."""
    kind = type(full[index])
    if issubclass(kind, LRU_CACHE):
        return True
    if not issubclass(kind, CONTAINERS):
        return False
    holder = full[index + 1] if index + 1 < len(full) else None
    if kind is dict and holder is not None and owns_table(holder, full[index]):
        return False
    if kind is dict and "__name__" in full[index] and "__builtins__" in full[index]:
        return False
    return not (kind is tuple and type(holder) is types.FunctionType and holder.__closure__ is full[index])


def supports(samples: List[Held], paths: List[List[Any]], grown: Dict[tuple, tuple]) -> Dict[int, float]:
    """The bytes of growth below each container."""
    support: Dict[int, float] = {}
    for held, full in zip(samples, paths):
        size = grown[held.group][1] * held.weight
        for index in range(below(held), len(full)):
            if is_container(full, index):
                support[id(full[index])] = support.get(id(full[index]), 0.0) + size
    return support


def knot_of(full: List[Any], held: Held, support: Dict[int, float], is_new: Any) -> Optional[int]:
    """The index of the container in which a sample gathers with others: it was there before, and holds much more than what is below."""
    containers = [index for index in range(below(held), len(full)) if is_container(full, index)]
    if len(containers) > 1 and containers[0] == 0 and is_new(full[0]):
        # What came is no place where things gather, unless nothing else is.
        del containers[0]
    if not containers:
        return None
    knot = next((index for index in containers if not is_new(full[index])), containers[0])
    for index in containers:
        if index > knot and support[id(full[index])] > GATHERS * support[id(full[knot])]:
            knot = index
    return knot


def element_of(full: List[Any], knot: Optional[int], held: Held) -> int:
    """The index of the thing that a container holds on a path."""
    if not knot:
        return 0
    if knot > 1 and issubclass(type(full[knot]), LRU_CACHE) and type(full[knot - 1]) is dict and keeps_all(full[knot]):
        return knot - 2
    owner = (held.leaf is not None) + (held.between is not None)
    if owner < knot - 1 and any(type(full[knot - 1]) is kind for kind in PLAIN) and not issubclass(type(full[owner]), CONTAINERS):
        # A row is a dictionary of lists of dictionaries; what it holds is an image.
        return owner
    return knot - 1


def below(held: Held) -> int:
    """The first index of a sample's path at which a container may be."""
    return int(held.leaf is not None)


def key_word(full: List[Any]) -> str:
    """`'pixels'`, if a table holds the leaf under this key."""
    if len(full) > 1 and type(full[1]) is dict and len(full[1]) < 1000:
        for key, value in full[1].items():
            if value is full[0] and isinstance(key, str) and len(key) < 40:
                return " '%s'" % key
    return ""


def finish(holders: Dict[tuple, Found], climb: Climb, old_fat: dict, old_big: dict, is_new: Any) -> List[dict]:
    """Names the holders and merges those with one name; keeps nothing of the program."""
    fold(holders)
    result = []
    for (address, element), holder in holders.items():
        full, knot = holder.full, holder.knot
        start = knot if knot is not None else 0
        name, at = name_above(full, start, climb)
        container = container_name(full[knot]) if knot is not None else None
        between = [container_name(obj) for obj in full[start + 1 : at + 1] if issubclass(type(obj), CONTAINERS) or obj is full[-1]]
        between = between if knot is not None else []
        beyond, _ = name_above(full, at + 1, climb) if name is not None and name.kind == "attribute" else (None, 0)
        added = None
        if knot is not None and any(type(full[knot]) is kind for kind in SIZED):
            length = len(full[knot])
            if address in old_fat:
                added = length - old_fat[address][2]
            elif length >= MANY and address not in old_big:
                # It was small or not there.
                added = length
        result.append(
            {
                "type": holder.element,
                "itself": element is None,
                "new": knot is None or is_new(full[knot]),
                "bytes": holder.bytes,
                "count": count_of(holder, added),
                "inner": max(holder.inner, key=lambda words: holder.inner[words]) if holder.inner else None,
                "container": container,
                "between": between,
                "name": name,
                "beyond": beyond,
            }
        )
        holder.full = None
    return result


def fold(holders: Dict[tuple, Found]) -> None:
    """Adds what a container needs itself, and the few things of other types in it, to what it mainly holds."""
    main: Dict[int, tuple] = {}
    for key, holder in holders.items():
        if key[1] is not None and (key[0] not in main or holder.bytes > holders[main[key[0]]].bytes):
            main[key[0]] = key
    for key in list(holders):
        host = holders.get(main.get(key[0], key))
        if host is not holders[key] and (key[1] is None or holders[key].bytes < MINOR * host.bytes):
            host.bytes += holders.pop(key).bytes


def container_name(obj: Any) -> str:
    return "" if issubclass(type(obj), LRU_CACHE) else type_name(type(obj))


def count_of(holder: Found, added: Optional[int]) -> int:
    """How many things came, or how many grew if none came."""
    own = holder.counts.get((holder.element, None), 0.0)
    if own >= 0.5:
        return round(own) if not added or not 0.5 < own / added < 2 else added
    if added and added > 0:
        return added
    main = max(holder.parts, key=lambda group: holder.parts[group])
    return max(1, round(holder.counts[main]))


def graphs_of(raw: List[dict]) -> List[Dict[str, Any]]:
    """Containers that gather tensors with an autograd graph; one that is new may be a part of the step that is under way."""
    found = named([one for one in raw if not one["new"] and not one["itself"]])
    kept = [one for one in found if one["count"] >= GRAPHS and one["chain"] is not None]
    return [{"type": one["type"], "count": one["count"], "chain": one["chain"], "place": one["place"]} for one in kept]


def graph_of(raw: List[dict], now: int, before: int) -> Optional[Dict[str, Any]]:
    """The tensor whose graph has grown from step to step, if there is one."""
    found = named(raw)
    if not found or found[0]["chain"] is None:
        return None
    return {"type": found[0]["type"], "chain": found[0]["chain"], "place": found[0]["place"], "operations": now, "before": before}


def least(holder: Dict[str, Any]) -> float:
    return LEAST_NAMELESS if holder["chain"] is None else LEAST_SHARE


def told_of(holder: Dict[str, Any], steps: Optional[int]) -> Dict[str, Any]:
    return dict(holder, bytes_per_step=round(holder["bytes"] / steps) if steps else None)


def named(raw: List[dict]) -> List[dict]:
    """Turns names into text, which may read source files, and merges holders of one name. The largest comes first."""
    merged: Dict[tuple, dict] = {}
    for one in raw:
        place = one["name"].place() if one["name"] is not None else None
        key = (one["type"], one["itself"], chain_of(one), one["inner"])
        other = merged.get(key)
        if other is None:
            merged[key] = {
                "type": one["type"],
                "itself": one["itself"],
                "count": one["count"],
                "bytes": one["bytes"],
                "what": one["inner"],
                "chain": key[2],
                "place": place,
            }
        else:
            other["bytes"] += one["bytes"]
            other["count"] += one["count"]
    found = sorted(merged.values(), key=lambda holder: -holder["bytes"])
    for holder in found:
        holder["bytes"] = round(holder["bytes"])
        holder["bytes_each"] = round(holder["bytes"] / max(1, holder["count"]))
    return found


def chain_of(one: Dict[str, Any]) -> Optional[str]:
    """`list 'rows' of ListDataset.__init__ (train.py:41), in 'data' of main (train.py:90)`; nothing where no name was found."""
    name: Optional[Name] = one["name"]
    if name is None:
        return None
    words = [word for word in [one["container"]] + one["between"] if word]
    if name.kind in ("default", "cache", "globals"):
        text = " in ".join([word for word in words if word != "tuple"] + [str(name)])
    else:
        text = " in ".join(words[:-1] + [" ".join(words[-1:] + [str(name)])])
    if one["beyond"] is not None:
        text += ", in %s" % one["beyond"]
    return text
