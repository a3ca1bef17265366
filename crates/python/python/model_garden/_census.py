"""Counts what the objects of this interpreter hold, so that two counts can be compared.

Takes nothing but the living interpreter and gives a `Census`: counts and bytes by type and by the type of the owner. Needs only the
standard library, since `model-garden memory run --who` carries it into programs that know nothing of it. A census keeps no object
alive, loads no image, counts none of its own objects, and is bounded in time and memory.
"""

from __future__ import annotations

import gc
import marshal
import sys
import time
import types
from array import array
from collections import Counter
from itertools import chain, compress, islice, repeat
from operator import mod, not_, rshift
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from . import _graphs, _pages, _pause, _samples, _sizes
from ._graphs import has_graph
from ._heavy import heavy, members
from ._kinds import CODE_PHASE, PER_TYPE, PHASES, SIZED, SIZED_IDS, SKIPPED, Kind, phase_of, stride_of
from ._pages import CURRENT
from ._pause import OURS, Budget, Undivided, frames, locals_of
from ._samples import Held, Sampler, sampler_of
from ._sizes import behind_array, storage_of

# A leaf of this size is remembered by its address, so that it counts once however many hold it.
BIG = 4096
# A container with so many referents is remembered by its address, so that it is known how much it grew.
FAT = 48
# Of the elements of all large containers of a type together, no more than about so many are looked at ...
PER_FAT = 300_000
# ... but so many of each.
LEAST_OF_FAT = 32
# Samples that are certain stand for a group if they are so much of its growth.
CERTAIN = 0.5
# So many of a container's last leaves stand for those that came into it.
LAST = 8
# So many tensors of one storage are asked who holds them.
SHARERS = 8
# A walk that takes more seconds of a core than this tells what it has seen.
DEADLINE = 4.0

CUDA = "memory of a GPU"

OURS.update((__name__, _pages.__name__, _pause.__name__, _samples.__name__, _sizes.__name__))


class Census:
    """One count. Its tables are packed into bytes, so that the next census does not meet them as objects."""

    __slots__ = ("_packed", "slots", "mask", "objects", "seconds", "phases", "shared", "operations", "latest")

    def __init__(self, tables: Tuple[dict, dict, dict], slots: bytearray, walk: "Walk"):
        self._packed = marshal.dumps(tables)
        self.slots, self.mask = slots, len(slots) - 1
        self.objects, self.phases, self.shared = walk.objects, walk.phases, walk.shared
        self.seconds = time.perf_counter() - walk.begun
        # The operations of the largest autograd graph, and the moment of the last one.
        graphs = _graphs.Graphs(walk.with_graph)
        self.operations, self.latest = len(graphs.moments), graphs.latest

    @property
    def complete(self) -> bool:
        return self.phases == PHASES

    def tables(self) -> Tuple[dict, dict, dict]:
        """Groups, big leaves and fat containers.

        `(type, owner) -> (count, bytes, phase)`; `address -> bytes`; `address -> (own bytes, bytes of leaves, length)`.
        """
        return marshal.loads(self._packed)


class Walk:
    """One pass over all objects. With `first`, samples what has come since."""

    def __init__(self, first: Optional[Census] = None):
        self.first = first
        self.begun = time.perf_counter()
        self.budget = Budget(DEADLINE)
        self.objects, self.looked = 0, 0
        # So many phases are over.
        self.phases = 0
        # Addresses of what was looked at, at most a part of each type.
        self.seen = array("Q")
        self.kinds: Dict[int, Kind] = {}
        self.fat_kinds: Dict[int, Kind] = {}
        self.counts: Any = {}
        self.fat_counts: Dict[type, int] = {}
        # Addresses of objects of large types that hold something large.
        self.heavy: Set[int] = set()
        self.big: Dict[int, int] = {}
        self.fat: Dict[int, Tuple[int, float, int]] = {}
        # Of the storages that came: some of the tensors that share each.
        self.sharers: Dict[int, List[Any]] = {}
        # Tensors with an autograd graph.
        self.with_graph: List[Held] = []
        self.old_big: dict = {}
        self.old_fat: dict = {}
        self.cuda = [0.0, 0.0]
        # Bytes of the objects that are shared memory.
        self.shared = 0

    def run(self) -> None:
        try:
            self.look_at_all()
        finally:
            CURRENT.close()

    def look_at_all(self) -> None:
        objects = gc.get_objects()
        if self.first is not None:
            _, self.old_big, self.old_fat = self.first.tables()
        self.objects = len(objects)
        self.counts = count_types(objects)
        for part in chosen(self, objects):
            if not self.look_at(part):
                return
            self.phases += 1
        self.visit_frames()

    def look_at(self, objects: Iterable[Any]) -> bool:
        """Whether there was enough time for all of them."""
        check, heavy_ones = self.looked, self.heavy
        for obj in objects:
            kind = type(obj)
            if kind is tuple:
                # A collection ceases to track tuples of leaves, so all tuples count with what holds them.
                continue
            known = self.kinds.get(id(kind)) or self.learn(kind)
            if (id(kind) in SIZED_IDS and len(obj) >= FAT) or id(obj) in heavy_ones:
                known.total -= 1
                known = self.fat_kind(kind)
            if kind is Census or kind is Walk or obj is self.seen or (kind is dict and obj is self.__dict__):
                continue
            self.looked += 1
            if self.looked > check:
                check = self.looked + 4096
                if self.budget.is_spent():
                    return False
            self.visit(obj, known)
        return True

    def learn(self, kind: type) -> Kind:
        count = self.counts.get(kind, 0)
        known = self.kinds[id(kind)] = Kind(kind, count, stride_of(kind, count))
        return known

    def fat_kind(self, kind: type) -> Kind:
        """All fat containers of a large type are looked at: what one of them holds cannot be estimated from the others."""
        known = self.fat_kinds.get(id(kind))
        if known is None:
            known = self.fat_kinds[id(kind)] = Kind(kind, 0, 1)
            known.most = max(LEAST_OF_FAT, PER_FAT // max(1, self.fat_counts.get(kind, 1)))
        return known

    def visit(self, obj: Any, known: Kind) -> None:
        CURRENT.shared = 0
        try:
            size = (known.size(obj) + 15) & ~15
        except Exception:
            return
        self.shared += CURRENT.take_shared()
        known.visited += 1
        self.seen.append(id(obj))
        known.own[0] += 1
        known.own[1] += size
        referents = known.referents(obj)
        fresh = True
        before = None
        if self.first is not None:
            fresh = not self.first.slots[(id(obj) >> 4) & self.first.mask]
            before = self.old_fat.get(id(obj))
        if known.storage:
            self.visit_storage(obj, known)
        was_there = before is not None and not fresh
        # Of the small leaves of a container that was there, those that came are found by how much it grew.
        samplers = known.certain if fresh else None if was_there else known.likely
        leaves = self.leaves(obj, referents, known, samplers) if referents else 0.0
        if len(referents) >= FAT or size >= BIG:
            self.fat[id(obj)] = (size, leaves, length_of(obj, referents))
        if self.first is None:
            return
        if was_there:
            if size > before[0]:
                sampler_of(known.certain, None).push(obj, None, None, size - before[0], 0)
            if leaves > before[1] + BIG:
                samplers = known.certain if leaves > before[1] * 1.01 + BIG else known.likely
                self.sample_grown(obj, None, referents, samplers, leaves - before[1])
        else:
            sampler_of(known.certain if fresh else known.likely, None).push(obj, None, None, size, 1)

    def sample_grown(self, obj: Any, between: Any, referents: list, samplers: Dict[Optional[str], Sampler], weight: float) -> None:
        """A container that was there has more leaves: its last ones, and what these hold, stand for them."""
        last = [leaf for leaf in referents[-64:] if (type(leaf) is tuple or not gc.is_tracked(leaf)) and id(type(leaf)) not in SKIPPED]
        for leaf in last[-LAST:]:
            kind = self.leaf_kind(leaf)
            sampler_of(samplers, kind.name).push(obj, between, leaf, weight / LAST, 1)
            if kind.inner and between is None:
                self.sample_grown(obj, leaf, kind.referents(leaf), samplers, weight / LAST)

    def leaf_kind(self, leaf: Any) -> Kind:
        kind = type(leaf)
        return self.kinds.get(id(kind)) or self.learn(kind)

    def leaves(self, owner: Any, referents: list, known: Kind, samplers: Optional[Dict[Optional[str], Sampler]]) -> float:
        """Counts the untracked leaves behind an owner; gives their bytes. Small ones are sampled if there are samplers for them."""
        every, part = self.part_of(referents, known)
        return self.count_leaves(owner, None, part, known, samplers, float(every), float(every), 0)

    def part_of(self, referents: list, known: Kind) -> Tuple[int, Iterable[Any]]:
        """Every so many of the referents of one object. The step is odd, since keys and values of a table come in turn."""
        every = (len(referents) // known.most) + 1 | 1
        self.looked += len(referents) // (16 * every)
        # A slice would be another holder of each leaf.
        return every, islice(referents, 0, None, every) if every > 1 else referents

    def count_leaves(
        self,
        owner: Any,
        between: Any,
        referents: Iterable[Any],
        known: Kind,
        samplers: Optional[Dict[Optional[str], Sampler]],
        share: float,
        every: float,
        depth: int,
    ) -> float:
        total = 0.0
        is_tracked, kinds, getrefcount, groups = gc.is_tracked, self.kinds, sys.getrefcount, known.groups
        sampled = self.first is not None
        for leaf in referents:
            kind = type(leaf)
            if is_tracked(leaf) and kind is not tuple:
                continue
            leaf_known = kinds.get(id(kind)) or self.learn(kind)
            if leaf_known.skip:
                continue
            try:
                size = (leaf_known.size(leaf) + 15) & ~15
            except Exception:
                continue
            if size < BIG:
                # A small leaf counts in parts, one for each that holds it, so it need not be remembered.
                count = share / (getrefcount(leaf) - REFERENCES or 1)
                weight, chosen = size * count, samplers
            elif id(leaf) in self.big:
                CURRENT.shared = 0
                continue
            else:
                self.big[id(leaf)] = size
                self.shared += CURRENT.take_shared()
                count = every
                weight = (size - self.old_big.get(id(leaf), 0)) * every
                chosen = known.certain
            group = groups.get(id(kind))
            if group is None:
                group = groups[id(kind)] = [leaf_known.name, 0.0, 0.0]
            group[1] += count
            group[2] += size * count
            total += size * count
            if sampled and weight > 0 and chosen is not None:
                sampler_of(chosen, leaf_known.name).push(owner, between, leaf, weight, count)
            if depth < 8 and (leaf_known.inner or leaf_known.base):
                inner = leaf_known.referents(leaf) if leaf_known.inner else behind_array(leaf)
                if inner:
                    above = leaf if between is None else between
                    step, part = self.part_of(inner, leaf_known)
                    total += self.count_leaves(owner, above, part, known, samplers, count * step, every * step, depth + 1)
        return total

    def visit_storage(self, tensor: Any, known: Kind) -> None:
        if len(self.with_graph) < _graphs.TENSORS and has_graph(tensor):
            self.with_graph.append(Held(tensor, None, None, 1, 1))
        found = storage_of(tensor)
        if found is None:
            return
        address, size, on_gpu = found
        key = -address
        if not address:
            return
        if key in self.big:
            # What keeps a storage may be a view of the tensor that was sampled for it.
            if key in self.sharers and len(self.sharers[key]) < SHARERS:
                self.sharers[key].append(tensor)
            return
        if not on_gpu:
            size = CURRENT.used(address, size)
            self.shared += CURRENT.take_shared()
        self.big[key] = size
        if on_gpu:
            self.cuda[0] += 1
            self.cuda[1] += size
            return
        group = known.groups.setdefault(0, ["storage", 0.0, 0.0])
        group[1] += 1
        group[2] += size
        if self.first is not None and size > self.old_big.get(key, 0):
            sampler_of(known.certain, "storage").push(tensor, None, None, size, 1)
            self.sharers[key] = [tensor]

    def visit_frames(self) -> None:
        """Leaves that only a variable of a running function holds."""
        for frame in frames():
            known = self.kinds.get(0)
            if known is None:
                known = self.kinds[0] = Kind(types.FrameType, 0, 1)
                known.name = "a variable"
            values = [value for _, value in locals_of(frame)]
            self.leaves(frame, [value for value in values if type(value) is tuple or not gc.is_tracked(value)], known, known.likely)

    def groups(self, phases: int) -> Dict[tuple, tuple]:
        """Counts, bytes and phase by type and owner; what was left out of a large type is estimated from what was not."""
        table: Dict[tuple, list] = {}
        for known in chain(self.kinds.values(), self.fat_kinds.values()):
            if known.phase >= phases:
                continue
            scale = known.scale()
            rows = [((known.name, None), *known.own)] if known.own[0] else []
            rows += [((name, known.name), count, size) for name, count, size in known.groups.values()]
            for key, count, size in rows:
                row = table.setdefault(key, [0.0, 0.0, known.phase])
                row[0] += count * scale
                row[1] += size * scale
                row[2] = max(row[2], known.phase)
        if self.cuda[0]:
            table[(CUDA, None)] = [*self.cuda, 0]
        return {key: tuple(row) for key, row in table.items()}

    def samples(self, group: tuple, growth: float) -> List[Held]:
        """Samples of what came into a group: those that are certain, and likely ones for the growth that these leave open."""
        certain, weight = self.kept("certain", group)
        if certain and weight >= CERTAIN * growth:
            return certain
        likely, other = self.kept("likely", group)
        part = max(0.0, growth - weight) / other if other else 0.0
        for held in likely:
            held.weight *= part
            held.number *= part
        return certain + likely

    def kept(self, source: str, group: tuple) -> Tuple[List[Held], float]:
        """The samples of a group from one source, and the bytes for which they stand."""
        owner, name = (group[1], group[0]) if group[1] is not None else (group[0], None)
        found: List[Held] = []
        weight = 0.0
        for known in chain(self.kinds.values(), self.fat_kinds.values()):
            sampler = getattr(known, source).get(name) if known.name == owner else None
            if sampler is not None:
                found += sampler.kept
                weight += known.scale() * sum(held.weight for held in sampler.kept)
        return found, weight

    def close(self) -> Census:
        """The census of this walk. Every address is marked in a table of slots: an object whose slot is empty later is new."""
        slots = bytearray(1 << max(16, (8 * len(self.seen) - 1).bit_length()))
        mask = len(slots) - 1
        for address in self.seen:
            slots[(address >> 4) & mask] = 1
        return Census((self.groups(self.phases), self.big, self.fat), slots, self)


def count_types(objects: list) -> Dict[type, int]:
    try:
        return Counter(map(type, objects))
    except Exception:
        # A class of classes may have an equality of its own that does not hash.
        names = Counter(map(id, map(type, objects)))
        kinds = {id(kind): kind for kind in map(type, objects)}
        return IdentityCounts((kinds[name], count) for name, count in names.items())


class IdentityCounts:
    """Counts by type, where types cannot be hashed."""

    def __init__(self, pairs: Any):
        self.counts = {id(kind): count for kind, count in pairs}

    def get(self, kind: type, default: int) -> int:
        return self.counts.get(id(kind), default)


def chosen(walk: Walk, objects: list) -> Iterator[Iterable[Any]]:
    """For each phase, all objects of small types, and of each large type those whose address falls on its stride."""
    counts = walk.counts
    if isinstance(counts, IdentityCounts):
        yield from ((), ())
        yield (obj for obj in objects if not (id(obj) >> 4) % stride_of(type(obj), counts.get(type(obj), 1)))
        return
    phases: List[Dict[int, set]] = [{} for _ in range(PHASES)]
    for kind, count in counts.items():
        if kind is not tuple:
            phases[phase_of(kind)].setdefault(stride_of(kind, count), set()).add(kind)
    for number, strides in enumerate(phases):
        present = members(objects, set().union(*strides.values()))
        yield chain.from_iterable(parts_of(walk, present, strides, number < CODE_PHASE))


def parts_of(walk: Walk, objects: list, strides: Dict[int, set], is_data: bool) -> Iterator[Iterable[Any]]:
    for stride, kinds in strides.items():
        found = members(objects, kinds)
        fat: List[Any] = []
        for kind in kinds.intersection(SIZED):
            sized = members(found, {kind})
            fat += compress(sized, map(FAT.__le__, map(len, sized)))
        if stride > 1 and is_data:
            # Later it is known of those that are not looked at, too, that they were there.
            walk.seen.extend(map(id, found))
            walk.heavy.update(heavy(found, PER_TYPE))
            fat += [obj for obj in compress(found, map(walk.heavy.__contains__, map(id, found))) if not is_fat(obj)]
        walk.fat_counts.update(Counter(map(type, fat)))
        if stride == 1:
            yield found
        else:
            yield compress(found, map(not_, remainders(found, stride)))
            # Those on the stride came already.
            yield compress(fat, remainders(fat, stride))


def is_fat(obj: Any) -> bool:
    return id(type(obj)) in SIZED_IDS and len(obj) >= FAT


def remainders(objects: list, stride: int) -> Iterator[int]:
    return map(mod, map(rshift, map(id, objects), repeat(4)), repeat(stride))


def length_of(obj: Any, referents: list) -> int:
    return len(obj) if id(type(obj)) in SIZED_IDS else len(referents)


def _references() -> int:
    """How many references `leaves` itself has to a leaf that one object holds."""
    counted: List[int] = []
    for leaf in gc.get_referents([bytearray(1)]):
        counted.append(sys.getrefcount(leaf))
    return counted[0]


# In `_references` the list that held the leaf is gone; what remains are the list of referents, the variable and the argument.
REFERENCES = _references()


def take() -> Tuple[Census, float]:
    """A first census, and the moment of the monotonic clock at which it was done."""
    with Undivided() as pause:
        walk = Walk()
        walk.run()
        census = walk.close()
        # It holds tensors of the program, which must not die later and in this thread.
        del walk
    return census, pause.until
