"""Tells how much of a block of memory is in use: pages that were touched, not pages that were only reserved.

Takes the address and the size of a block and gives the bytes of it that belong to this process. A large array may have been reserved and
never written, or may be the content of a file: it has a size, and costs nothing. Reads without giving up the interpreter's lock, so it is
for an undivided moment, too. Also sums up the mappings of the process by kind, which reads a file.
"""

from __future__ import annotations

import bisect
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from ._pause import OURS

try:
    import ctypes

    # Calls through it keep the interpreter's lock.
    LIBRARY: Any = ctypes.PyDLL(None)
    LIBRARY.pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
    LIBRARY.pread.restype = ctypes.c_ssize_t
except Exception:
    # Some interpreters are built without it.
    LIBRARY = None

OURS.add(__name__)

# A smaller block shares its pages with others, and counts whole.
LEAST = 1 << 18
# So many pages are read at once.
PAGES = 1 << 16
# Bytes of an entry of the page map; its last byte holds the flags.
ENTRY = 8
PRESENT, SWAPPED, SHARED = 0x80, 0x40, 0x20
# For each last byte: 1 for a page of this process alone, 2 for one of a file or of shared memory, 0 for one that was not touched.
KINDS = bytes((2 if flags & SHARED else 1) if flags & (PRESENT | SWAPPED) else 0 for flags in range(256))

SHARED_MAPPINGS = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero (deleted)", "/anon_hugepage", "/i915", "/run/shm/")
# Beginnings and ends of the mappings of shared memory, as they were when the process was last measured.
RANGES: List[Tuple[int, int]] = []


class Pages:
    """The page map of this process, open for as long as a walk."""

    __slots__ = ("file", "buffer", "shared")

    def __init__(self) -> None:
        self.file: Optional[int] = None
        self.buffer: Any = None
        # Bytes of the last block that are shared memory.
        self.shared = 0

    def open(self) -> bool:
        if self.file is None:
            readable = LIBRARY is not None and sys.byteorder == "little"
            self.file = LIBRARY.open(b"/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC) if readable else -1
            self.buffer = ctypes.create_string_buffer(PAGES * ENTRY) if readable else None
        return self.file >= 0

    def used(self, address: int, size: int) -> int:
        """The bytes of a block that belong to this process; its size, where nobody tells."""
        self.shared = 0
        if size < LEAST or not self.open():
            self.shared = size if is_shared(address) else 0
            return size
        page = os.sysconf("SC_PAGE_SIZE")
        first, last = address // page, (address + size - 1) // page
        alone = shared = 0
        while first <= last:
            count = min(PAGES, last - first + 1) * ENTRY
            read = LIBRARY.pread(self.file, self.buffer, count, first * ENTRY)
            if read < ENTRY:
                return size
            kinds = self.buffer[ENTRY - 1 : read : ENTRY].translate(KINDS)
            alone += kinds.count(1)
            shared += kinds.count(2)
            first += read // ENTRY
        alone, shared = alone * page, shared * page if is_shared(address) else 0
        self.shared = min(shared, size)
        return min(size, alone + shared)

    def close(self) -> None:
        if self.file is not None and self.file >= 0:
            LIBRARY.close(self.file)
        self.file = self.buffer = None

    def take_shared(self) -> int:
        """Bytes of the last block that are shared memory, once."""
        shared, self.shared = self.shared, 0
        return shared


def is_shared(address: int) -> bool:
    """Whether an address lies in shared memory; what lies in a file is not the process's."""
    at = bisect.bisect_right(RANGES, (address, sys.maxsize)) - 1
    return at >= 0 and RANGES[at][0] <= address < RANGES[at][1]


# The one of the walk that is under way.
CURRENT = Pages()


def address_of(mapping: Any) -> int:
    """Where the block of an object begins that gives its bytes, such as an `mmap.mmap`."""
    view = (ctypes.c_size_t * 16)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapping), ctypes.byref(view), 0)
    address = view[0]
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address


def mapped() -> Dict[str, int]:
    """Bytes of this process by kind of mapping: anonymous, shared, file."""
    kinds = {"anonymous": 0, "shared": 0, "file": 0}
    try:
        with open("/proc/self/smaps", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return kinds
    shared, resident = False, 0
    ranges = []
    for line in lines:
        word, _, value = line.partition(b":")
        if word == b"Rss":
            resident = int(value.split()[0])
        elif word == b"Anonymous" or word == b"Swap":
            size = int(value.split()[0])
            kinds["anonymous"] += size
            if word == b"Anonymous":
                kinds["shared" if shared else "file"] += max(0, resident - size)
        elif b" " in word and b"-" in word:
            path = line.split(None, 5)[5:]
            shared = bool(path) and path[0].decode(errors="replace").startswith(SHARED_MAPPINGS)
            if shared:
                begin, _, end = line.split(None, 1)[0].partition(b"-")
                ranges.append((int(begin, 16), int(end, 16)))
    RANGES[:] = ranges
    return {kind: size * 1024 for kind, size in kinds.items()}


def owned_now(maps: Dict[str, int]) -> int:
    return maps["anonymous"] + maps["shared"]


def rest(after: Dict[str, int], before: Dict[str, int], objects: float, shared_objects: float) -> Dict[str, int]:
    """What grew and is no object of the interpreter, by kind of mapping."""
    grown = {kind: after[kind] - before[kind] for kind in after}
    in_shared = max(0.0, min(shared_objects, grown["shared"]))
    left = {
        "native heap": grown["anonymous"] - max(0.0, objects - in_shared),
        "shared memory": grown["shared"] - in_shared,
        "file": grown["file"],
    }
    return {kind: round(size) for kind, size in left.items() if size >= 1 << 20}
