"""Two censuses name the holder of what came between them."""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from model_garden import _pause
from model_garden.holders import Explanation, Holders

MB = 1_000_000
GLOBAL_CACHE: dict[int, dict] = {}


class LazyImage:
    def __init__(self) -> None:
        self.pixels: bytearray | None = None

    def load(self, size: int = MB) -> None:
        self.pixels = bytearray(b"\x7f" * size)


class Dataset:
    def __init__(self, count: int) -> None:
        self.rows = [LazyImage() for _ in range(count)]


class Registry:
    kept: list = []


def explained(grow: Callable[[], object]) -> Explanation:
    holders = Holders()
    holders.mark(step=10)
    grow()
    return holders.explain(step=20)


def told(explanation: Explanation) -> list[str]:
    """The holders in words, without what pytest keeps of the test that runs."""
    return [words for words in map(str, explanation.holders) if "_pytest." not in words]


def main_holder(grow: Callable[[], object]):
    explanation = explained(grow)
    assert explanation.holders, explanation
    # A census keeps some megabytes itself, of which the first one takes the most.
    assert explanation.share > 0.8, explanation
    return explanation.holders[0]


def test_images_that_decode_in_place_are_named_with_their_list():
    dataset = Dataset(40)
    holder = main_holder(lambda: [image.load() for image in dataset.rows] and None)
    assert (holder.type, holder.count, holder.what) == ("LazyImage" if __name__ == "__main__" else holder.type, 40, "bytearray 'pixels'")
    assert holder.type.endswith("LazyImage")
    assert holder.bytes == pytest.approx(40 * MB, rel=0.01)
    assert holder.bytes_per_step == pytest.approx(4 * MB, rel=0.01)
    line = Dataset.__init__.__code__.co_firstlineno + 1
    assert holder.place == f"test_holders.py:{line}"
    assert holder.chain is not None and holder.chain.startswith("list 'rows' of Dataset.__init__ (test_holders.py:")


def test_a_variable_of_a_running_function():
    images: list[bytearray] = []
    holder = main_holder(lambda: images.extend(bytearray(b"1" * MB) for _ in range(30)))
    assert (holder.type, holder.count) == ("bytearray", 30)
    assert holder.chain is not None and "'images'" in holder.chain


def test_a_global_cache_of_small_objects():
    def grow() -> None:
        for number in range(60_000):
            GLOBAL_CACHE[number] = {"loss": number * 0.5, "text": "row %d" % number, "ids": [number, number + 1]}

    holder = main_holder(grow)
    GLOBAL_CACHE.clear()
    assert holder.type == "dict" and holder.count == pytest.approx(60_000, rel=0.03)
    assert holder.chain is not None and holder.chain.startswith("dict 'GLOBAL_CACHE' of module")
    assert holder.place is not None and holder.place.startswith("test_holders.py:")


def test_an_attribute_of_a_class():
    holder = main_holder(lambda: Registry.kept.extend(bytearray(b"1" * MB) for _ in range(30)))
    Registry.kept.clear()
    assert holder.chain is not None and holder.chain.startswith("list 'kept' of class ") and holder.chain.endswith("Registry")


def test_a_closure():
    def make() -> Callable[[], None]:
        seen = []

        def hook() -> None:
            seen.append(bytearray(b"1" * MB))

        return hook

    hook = make()
    holder = main_holder(lambda: [hook() for _ in range(30)] and None)
    assert holder.chain is not None and holder.chain.startswith("list 'seen' of the closure of ")


@pytest.mark.parametrize("most", [None, 1000])
def test_an_lru_cache(most: int | None):
    @functools.lru_cache(maxsize=most)
    def decoded(number: int) -> bytes:
        return bytes(100_000 + number)

    holder = main_holder(lambda: [decoded(number) for number in range(200)] and None)
    assert holder.type == "bytes" and holder.chain is not None and "the lru_cache of " in holder.chain


def test_a_variable_of_a_generator():
    def batches():
        kept = []
        while True:
            kept.append(bytearray(b"1" * MB))
            yield len(kept)

    running = batches()
    holder = main_holder(lambda: [next(running) for _ in range(30)] and None)
    assert holder.chain is not None and holder.chain.startswith("list 'kept' of ")


def test_a_variable_of_another_thread():
    begin, grown, end = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        mine = []
        begin.wait()
        mine.extend(bytearray(b"1" * MB) for _ in range(30))
        grown.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    holder = main_holder(lambda: (begin.set(), grown.wait()) and None)
    end.set()
    thread.join()
    assert holder.chain is not None and holder.chain.startswith("list 'mine' of ")


def test_exceptions_that_are_kept_with_the_frames_of_their_tracebacks():
    errors: list[Exception] = []

    def fail() -> None:
        pixels = bytearray(b"1" * MB)
        raise ValueError(len(pixels))

    def grow() -> None:
        for _ in range(30):
            try:
                fail()
            except ValueError as error:
                errors.append(error)

    holder = main_holder(grow)
    assert (holder.type, holder.count, holder.what) == ("ValueError", 30, "bytearray 'pixels'"), holder
    assert holder.chain is not None and holder.chain.startswith("list 'errors' of "), holder


def test_no_address_of_a_copy_outlives_its_census():
    def running() -> Holders:
        here = Registry  # a variable, which the census looks at
        holders = Holders()
        holders.mark(step=10)
        assert here is Registry
        return holders

    holders = running()
    # An object that is born at such an address later would be taken for the copy, and hide what it holds.
    assert not _pause.COPIES
    holders.explain(step=20)
    assert not _pause.COPIES


def test_a_growing_buffer_that_only_a_variable_holds():
    buffer = bytearray()
    holder = main_holder(lambda: buffer.extend(b"1" * 30 * MB))
    assert (holder.type, holder.count) == ("bytearray", 1)


def test_numbers_in_a_list():
    losses: list[float] = []
    holder = main_holder(lambda: losses.extend(number * 1.5 for number in range(300_000)))
    assert holder.type == "float" and holder.chain is not None and "'losses'" in holder.chain


def test_memory_of_c_is_called_native():
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    block = []

    def grow() -> None:
        block.append(library.malloc(50 * MB))
        ctypes.memset(block[0], 1, 50 * MB)

    explanation = explained(grow)
    library.free(ctypes.c_void_p(block[0]))
    assert explanation.share < 0.1, explanation
    assert explanation.rest["native heap"] == pytest.approx(50 * MB, rel=0.1)


def test_blocks_of_ctypes_are_named():
    kept = []
    holder = main_holder(lambda: kept.extend(ctypes.create_string_buffer(b"1" * MB, MB) for _ in range(30)))
    assert holder.count == 30 and "'kept'" in (holder.chain or ""), holder


def test_an_array_that_is_filled_in_place_is_named():
    np = pytest.importorskip("numpy")
    rows = {"predictions": np.zeros(40 * MB, np.uint8)}
    holder = main_holder(lambda: rows["predictions"].fill(1))
    assert holder.type == "numpy.ndarray" and holder.bytes == pytest.approx(40 * MB, rel=0.02)


def test_what_is_reserved_and_never_touched_is_no_holder():
    np = pytest.importorskip("numpy")
    kept, reserved = [], []

    def grow() -> None:
        reserved.append(np.zeros(2000 * MB, np.uint8))
        kept.extend(bytearray(b"1" * MB) for _ in range(20))

    explanation = explained(grow)
    assert [holder.type for holder in explanation.holders] == ["bytearray"], explanation


def test_a_mapped_file_is_no_holder(tmp_path):
    import mmap

    path = tmp_path / "weights"
    path.write_bytes(b"1" * 50 * MB)
    kept, mappings = [], []

    def grow() -> None:
        with path.open("rb") as file:
            mappings.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        assert sum(mappings[0][::4096]) > 0
        kept.extend(bytearray(b"1" * MB) for _ in range(20))

    explanation = explained(grow)
    assert [holder.type for holder in explanation.holders] == ["bytearray"], explanation
    assert explanation.rest["file"] == pytest.approx(50 * MB, rel=0.1)


def test_a_container_that_did_not_grow_is_no_holder_of_what_came():
    unchanged = ["word %d" % number for number in range(50_000)]
    rows: list[tuple] = []
    explanation = explained(lambda: rows.extend((number, number * 0.5, "row %d" % number) for number in range(200_000)))
    assert len(unchanged) == 50_000
    assert all("'rows'" in words for words in told(explanation)), str(explanation)


def test_a_census_is_none_of_its_own_holders():
    class Point:
        __slots__ = ("x", "y")

    kept = []

    def grow() -> None:
        for number in range(200_000):
            point = Point()
            point.x, point.y = number * 0.5, str(number)
            kept.append(point)

    explanation = explained(grow)
    assert all("'kept'" in words for words in told(explanation)), str(explanation)


def test_attributes_of_instances_count():
    class Row:
        def __init__(self, number: int) -> None:
            self.number, self.text, self.score = number, "row", 0.5

    rows: list[Row] = []
    explanation = explained(lambda: rows.extend(Row(number) for number in range(200_000)))
    assert explanation.share > 0.9, explanation


def test_what_a_census_needs_is_no_growth():
    class Point:
        __slots__ = ("x",)

    points = [Point() for _ in range(2_000_000)]
    explanation = explained(lambda: None)
    assert len(points) == 2_000_000
    assert explanation.growth < 8 * MB, explanation


def test_frozen_objects_are_not_called_native():
    rows = [LazyImage() for _ in range(2_000)]
    gc.freeze()
    try:
        explanation = explained(lambda: [image.load() for image in rows[:30]] and None)
    finally:
        gc.unfreeze()
    assert explanation.frozen > 2_000
    assert "objects that gc.freeze() hides" in str(explanation)


def test_a_variable_that_an_inner_function_shares():
    def running():
        shared = []

        def hook() -> None:
            shared.append(bytearray(b"1" * MB))

        while True:
            hook()
            yield

    generator = running()
    next(generator)
    holder = main_holder(lambda: [next(generator) for _ in range(30)] and None)
    assert holder.chain is not None and holder.chain.startswith("list 'shared' of "), holder


def test_no_code_of_the_program_runs(monkeypatch):
    import sys
    import types

    asked: list[str] = []

    def asks(name: str) -> Any:
        return property(lambda self: asked.append(name))

    class Loading(type):
        def __eq__(cls, other: object) -> bool:
            raise RuntimeError("a class was compared")

        __hash__ = type.__hash__

    class Row(metaclass=Loading):
        def __init__(self) -> None:
            self.pixels = bytearray(b"1" * MB)

    class StandIn:
        __class__ = asks("__class__")
        __dict__ = asks("__dict__")

        def __getattr__(self, name: str) -> None:
            asked.append(name)

    class LazyModule(types.ModuleType):
        __dict__ = asks("__dict__ of a module")

        def __getattr__(self, name: str) -> None:
            asked.append(name)

    class Sized:
        class Asked:
            def __get__(self, obj: object, kind: type) -> int:
                asked.append("__sizeof__")
                return 1

        __sizeof__ = Asked()

    for name in ("lazy", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, LazyModule(name))
    kept: list[object] = [StandIn(), Sized()]

    def grow() -> None:
        asked.clear()
        for _ in range(20):
            stand_in = StandIn()
            object.__setattr__(stand_in, "pixels", [bytearray(b"1" * MB)])
            kept.extend((stand_in, Sized(), Row()))
        asked.clear()

    holders = Holders()
    holders.mark()
    grow()
    explanation = holders.explain()
    assert not asked, asked
    assert explanation.share > 0.8, explanation


def test_shared_memory_is_named():
    from multiprocessing import shared_memory

    segments = []

    def grow() -> None:
        segment = shared_memory.SharedMemory(create=True, size=30 * MB)
        for start in range(0, 30 * MB, MB):
            segment.buf[start : start + MB] = b"1" * MB
        segments.append(segment)

    explanation = explained(grow)
    segments[0].unlink()
    named = sum(holder.bytes for holder in explanation.holders if "mmap" in str(holder) or "SharedMemory" in str(holder))
    assert named + explanation.rest.get("shared memory", 0) == pytest.approx(30 * MB, rel=0.1), explanation


def test_arrays_count_once_with_all_their_views():
    np = pytest.importorskip("numpy")
    views = []

    def grow() -> None:
        base = np.ones(20 * MB, np.uint8)
        views.extend(base[start:] for start in range(100))

    explanation = explained(grow)
    assert sum(holder.bytes for holder in explanation.holders) == pytest.approx(20 * MB, rel=0.05), explanation


def test_a_pil_image_is_never_loaded_and_its_pixels_count():
    image_module = pytest.importorskip("PIL.Image")
    files = []
    for _ in range(20):
        file = io.BytesIO()
        image_module.new("RGB", (500, 500)).save(file, "JPEG")
        files.append(file)
    rows = [image_module.open(file) for file in files]
    holders = Holders()
    holders.mark()
    assert all(image.__dict__.get("_im", image.__dict__.get("im")) is None for image in rows), "the census loaded an image"
    for image in rows:
        image.load()
    holder = holders.explain().holders[0]
    assert holder.type == "PIL.JpegImageFile" and holder.count == 20
    assert holder.bytes == pytest.approx(20 * MB, rel=0.05)
    assert "'rows'" in (holder.chain or "")


def test_steady_memory_has_no_holder():
    kept = [bytearray(MB) for _ in range(5)]
    explanation = explained(lambda: None)
    assert explanation.holders == [] or explanation.growth < MB, explanation
    assert len(kept) == 5


def test_nothing_is_kept_alive():
    images = [LazyImage() for _ in range(100)]
    watched = weakref.ref(images[0])
    holders = Holders()
    holders.mark()
    for image in images:
        image.load(100_000)
    holders.explain()
    gc.disable()
    try:
        del images, image
        assert watched() is None, "the census keeps an image, or made a cycle with it"
    finally:
        gc.enable()


def test_fifty_censuses_leave_memory_level():
    holders = Holders()

    def ten() -> None:
        for _ in range(10):
            holders.mark()
            holders.explain()

    ten()
    gc.collect()
    objects, resident = len(gc.get_objects()), owned()
    for _ in range(4):
        ten()
    gc.collect()
    assert len(gc.get_objects()) <= objects + 50
    assert owned() <= resident + 4 * MB


def owned() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_the_interpreter_is_left_as_it_was():
    import sys

    interval = sys.getswitchinterval()
    explained(lambda: None)
    assert sys.getswitchinterval() == interval and gc.isenabled()


def test_an_explanation_needs_a_first_census():
    with pytest.raises(RuntimeError, match="mark"):
        Holders().explain()


def test_it_is_told_in_words_and_numbers():
    images = [LazyImage() for _ in range(40)]
    explanation = explained(lambda: [image.load() for image in images] and None)
    told = explanation.to_dict()
    assert told["holders"][0]["count"] == 40 and told["share"] > 0.9
    first = str(explanation).splitlines()[0]
    assert "40 " in first and "1.0 MB each (bytearray 'pixels'), held by list 'images' of " in first and "per step" in first


def test_storages_of_tensors_count_once():
    # From here on with PyTorch: a census of what it brings along takes seconds, which the tests above need not.
    torch = pytest.importorskip("torch")
    kept = []

    def grow() -> None:
        for _ in range(10):
            tensor = torch.ones(500_000)
            kept.extend((tensor, tensor[10:], tensor.view(2, -1)))

    explanation = explained(grow)
    assert sum(holder.bytes for holder in explanation.holders) == pytest.approx(20 * MB, rel=0.05), explanation


def test_a_view_that_keeps_a_storage_is_named():
    torch = pytest.importorskip("torch")
    kept = []
    holder = main_holder(lambda: kept.extend(torch.ones(100, 2_500)[0] for _ in range(30)))
    assert holder.chain is not None and "'kept'" in holder.chain
