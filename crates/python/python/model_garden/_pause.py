"""One undivided moment of an interpreter: bounded in time, without other Python threads, and without the frames of a census.

Gives a `Budget` of seconds, the `Undivided` moment, and the variables of running functions.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from typing import Any, List, Set, Tuple

# Other threads wait at most this long for a walk, then they run in between.
PAUSE = 10.0
# A thread that waits already when the pause begins has asked for its turn after this time (the usual switch interval is 5 ms).
STALE_WAIT = 0.006
# On a busy machine, a second of a core may take so many by the clock.
BUSY = 8.0

OPTIMIZED = 1


class Budget:
    """A bound on the time of this thread: seconds of a core, so that other programs do not use it up, and many more by the clock."""

    __slots__ = ("core", "clock")

    def __init__(self, seconds: float):
        self.core = time.thread_time() + seconds
        self.clock = time.perf_counter() + BUSY * seconds

    def is_spent(self) -> bool:
        return time.thread_time() > self.core or time.perf_counter() > self.clock


class Undivided:
    """While it is entered, no other Python thread runs and no collection begins, for up to `PAUSE` seconds.

    So nothing dies in the wrong thread while the walk holds references, and a walk sees one moment.
    """

    __slots__ = ("interval", "collects", "until")

    def __enter__(self) -> "Undivided":
        self.interval, self.collects = sys.getswitchinterval(), gc.isenabled()
        self.until = 0.0
        gc.disable()
        sys.setswitchinterval(PAUSE)
        begun = time.perf_counter()
        while time.perf_counter() - begun < STALE_WAIT:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        # By the clock that all processes share.
        self.until = time.monotonic()
        # Later, other objects live at these addresses.
        COPIES.clear()
        sys.setswitchinterval(self.interval)
        if self.collects:
            gc.enable()


def frames() -> List[Any]:
    """The frames of all threads, without those of a census."""
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            if not is_ours(frame):
                found.append(frame)
            frame = frame.f_back
    return found


def is_ours(frame: Any) -> bool:
    return frame.f_globals.get("__name__") in OURS


# The modules of a census, whose frames are not looked at.
OURS = {__name__}


# Addresses of the copies that frames keep of their variables (before Python 3.13); such a copy holds nothing. Known for one moment.
COPIES: Set[int] = set()


def locals_of(frame: Any) -> List[Tuple[str, Any]]:
    """Names and values of a function's variables."""
    if not frame.f_code.co_flags & OPTIMIZED:
        return []
    namespace = frame.f_locals
    found = [(name, contents(value)) for name, value in list(namespace.items())]
    if isinstance(namespace, dict):
        COPIES.add(id(namespace))
        # The copy would hold what the variables hold now for as long as the function runs. One that only the frame knows is emptied.
        if sys.getrefcount(namespace) <= 4:
            namespace.clear()
    return found


def contents(value: Any) -> Any:
    """The value of a variable that functions share; Python 3.11 gives its cell at times."""
    if type(value) is not types.CellType:
        return value
    try:
        return value.cell_contents
    except ValueError:
        return None
