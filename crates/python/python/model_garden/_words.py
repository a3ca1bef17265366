"""Puts an explanation into words for a person.

Takes the dictionary that `_explain.explain` gives, and gives sentences.
"""

from __future__ import annotations

from typing import Any, Dict, List

from ._pause import OURS

OURS.add(__name__)


def sentences(told: Dict[str, Any]) -> List[str]:
    """An explanation for a person, a line each."""
    if told["growth"] <= 0:
        return ["Memory did not grow between the two censuses."]
    has_graphs = bool(told["graphs"]) or told["graph"] is not None
    lines = [sentence(holder, IN_GRAPHS if has_graphs and "Tensor" in holder["type"] else NAMELESS) for holder in told["holders"]]
    share = "%d %% of the growth of %s is explained" % (round(100 * told["share"]), size(told["growth"]))
    kinds = dict(KINDS, **{"native heap": FROZEN % told["frozen"]}) if told["frozen"] >= MANY_FROZEN else KINDS
    others = ["%s in %s" % (size(bytes_), kinds[kind]) for kind, bytes_ in told["rest"].items()]
    lines.append(share + ("; not the interpreter's: " + ", ".join(others) if others else ""))
    for graph in told["graphs"]:
        words = "%d %s with an autograd graph came into %s: a graph keeps what its backward pass needs, and detach() or item() drops it"
        lines.append(words % (graph["count"], graph["type"], graph["chain"]))
    if told["graph"] is not None:
        words = "the autograd graph of %s %s grew from %s to %s operations: add loss.item() or loss.detach(), so that no step's graph is kept"
        graph = told["graph"]
        lines.append(words % (graph["type"], graph["chain"], format(graph["before"], ","), format(graph["operations"], ",")))
    if told["gpu"] >= 1 << 20:
        lines.append("tensors in a GPU's memory grew by %s" % size(told["gpu"]))
    if not told["complete"]:
        lines.append("there were too many objects to count all of them in time: there may be other holders")
    return lines


KINDS = {
    "native heap": "the native heap (C and C++, and what the allocators keep)",
    "shared memory": "shared memory",
    "file": "mapped files",
}


# Python 3.12 freezes some hundreds of objects of its own as it starts.
MANY_FROZEN = 1_000
NAMELESS = "nothing that has a name: C or C++ code, or garbage that no collection has freed"
IN_GRAPHS = "nothing that has a name: most likely saved by the autograd graphs below"
FROZEN = "the native heap or in the %d objects that gc.freeze() hides from a census"


def sentence(holder: Dict[str, Any], nameless: str = NAMELESS) -> str:
    """`200 LazyImage, 2.0 MB each (bytearray 'pixels'), held by list 'images' of main (lazy_images.py:48)`."""
    if holder["itself"]:
        text = "%s of its own in %s" % (size(holder["bytes"]), holder["chain"] or holder["type"])
    else:
        each = ", %s%s" % (size(holder["bytes_each"]), " each" if holder["count"] != 1 else "")
        text = "%s %s%s" % (format(holder["count"], ","), holder["type"], each)
        text += " (%s)" % holder["what"] if holder["what"] else ""
        text += ", held by " + (holder["chain"] or nameless)
    if holder["bytes_per_step"]:
        text += "; %s per step" % size(holder["bytes_per_step"])
    return text


def size(count: float) -> str:
    """Bytes as people write them: 2.0 MB, 25 MB, 1.25 GB."""
    sign = "-" if count < 0 else ""
    count = abs(count)
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000.0
    digits = 2 if unit == "GB" else 1 if count < 9.95 and unit != "B" else 0
    return "%s%.*f %s" % (sign, digits, count, unit)
