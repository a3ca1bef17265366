"""What torch holds: how many tensors, on which device, the largest of them, and what CUDA has reserved.

Everything here looks at objects that exist already. It imports torch only where the program did, and never reads a tensor's values.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass
from typing import Any, Iterator

# The share of a run's time that counting may take. Walking the collector's list costs tens of milliseconds in a large program.
_SHARE_OF_TIME = 0.0005


@dataclass(frozen=True)
class TensorCount:
    """Tensors that the program can reach, by device."""

    cpu: int
    gpu: int

    @property
    def total(self) -> int:
        return self.cpu + self.gpu

    def __str__(self) -> str:
        return f"{self.total} tensors (CPU: {self.cpu}, GPU: {self.gpu})"


@dataclass(frozen=True)
class CudaMemory:
    """Bytes of all CUDA devices of this process, as torch's allocators count them."""

    allocated: int
    reserved: int
    pinned: int | None

    def __str__(self) -> str:
        pinned = "" if self.pinned is None else f", pinned: {megabytes(self.pinned)}"
        return f"GPU allocated: {megabytes(self.allocated)}, reserved: {megabytes(self.reserved)}{pinned}"


@dataclass(frozen=True)
class LargeTensor:
    """One tensor that owns much memory."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    kind: str
    """`parameter` or `tensor`."""

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape)) or "one value"
        return f"{megabytes(self.bytes):>10}  {self.kind} {size}, {self.dtype}, {self.device}"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


def count() -> TensorCount | None:
    """Counts tensors; None where torch is not in use."""
    if _tensor_type() is None:
        return None
    cpu = gpu = 0
    for tensor in _tensors():
        if _is_on_cpu(tensor):
            cpu += 1
        else:
            gpu += 1
    return TensorCount(cpu, gpu)


class Counter:
    """Counts again only when that stays below its share of the run's time; the last count stands until then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._spent = 0.0
        self._last: TensorCount | None = None

    def now(self) -> TensorCount | None:
        """The count of this moment, or the last one where counting again would cost too much."""
        begin = time.monotonic()
        if self._last is None or self._spent <= _SHARE_OF_TIME * (begin - self._began):
            self._last = count()
            self._spent += time.monotonic() - begin
        return self._last


def largest(most: int = 10) -> list[LargeTensor]:
    """The tensors that own the most memory, each storage once."""
    by_storage: dict[tuple[str, int], LargeTensor] = {}
    for tensor in _tensors():
        described = _describe(tensor)
        if described is not None:
            key, large = described
            # Of the views on a storage, a parameter is what people know it by.
            if key not in by_storage or large.kind == "parameter":
                by_storage[key] = large
    return sorted(by_storage.values(), key=lambda large: -large.bytes)[:most]


def cuda_memory() -> CudaMemory | None:
    """What torch's CUDA allocators hold; None where CUDA is not in use."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return None
        devices = range(torch.cuda.device_count())
        allocated = sum(torch.cuda.memory_allocated(device) for device in devices)
        reserved = sum(torch.cuda.memory_reserved(device) for device in devices)
    except (AttributeError, RuntimeError):
        return None
    return CudaMemory(allocated, reserved, _pinned(torch))


def _pinned(torch: Any) -> int | None:
    """Page-locked host memory; torch tells it since 2.5."""
    try:
        return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    except (AttributeError, KeyError, RuntimeError):
        return None


def _tensor_type() -> type | None:
    torch = sys.modules.get("torch")
    # While torch is being imported, the module is there and its classes are not.
    return getattr(torch, "Tensor", None)


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in type.__subclasses__(cls):
        yield subclass
        yield from _subclasses(subclass)


def _tensors() -> Iterator[Any]:
    tensor_type = _tensor_type()
    if tensor_type is None:
        return
    # A program has a handful of tensor classes among a million objects: looking the class up is cheap, while isinstance would run the
    # code of lazy proxies, and could load what they stand for.
    classes = {tensor_type, *_subclasses(tensor_type)}
    for found in gc.get_objects():
        if type(found) in classes:
            yield found


def _is_on_cpu(tensor: Any) -> bool:
    try:
        return not tensor.is_cuda
    except (AttributeError, RuntimeError):
        return True


def _describe(tensor: Any) -> tuple[tuple[str, int], LargeTensor] | None:
    try:
        storage = tensor.untyped_storage()
        kind = "parameter" if type(tensor).__name__.endswith("Parameter") else "tensor"
        large = LargeTensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), str(tensor.device), storage.nbytes(), kind)
        return (large.device, storage.data_ptr()), large
    except (AttributeError, NotImplementedError, RuntimeError):
        # Tensors without storage: meta, sparse, functional and fake ones.
        return None


class TensorLine:
    """What the line of a reading says of torch: tensors, and CUDA's memory. None where torch is not in use."""

    def __init__(self) -> None:
        self._counter = Counter()

    def __call__(self) -> str | None:
        parts = [str(part) for part in (self._counter.now(), cuda_memory()) if part is not None]
        return ", ".join(parts) or None
