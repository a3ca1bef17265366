"""Sizes of single objects, for a census.

Takes an object and gives its own bytes, without what it refers to: a list's table, a decoded image's pixels, the storage of a tensor. Runs
no code of the program and loads nothing.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any, Optional, Tuple

from ._pages import CURRENT, LEAST, LIBRARY, address_of

# Of an array with more objects than this, none is looked at.
LONGEST_ARRAY = 20_000

# The keys of a smaller table are mostly names in the program, which are not its data.
LEAST_KEYS = 48

_getattribute = type.__getattribute__
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_flags = type.__dict__["__flags__"].__get__

TABLES = (types.GetSetDescriptorType, types.MemberDescriptorType)
BUILT_IN = (types.MethodDescriptorType, types.WrapperDescriptorType)


def table_of(obj: Any) -> Optional[dict]:
    """The attributes of an instance or a module. A `__dict__` that the program wrote itself is passed over, since it may load things."""
    member = member_of(type(obj), "__dict__", TABLES)
    try:
        table = member.__get__(obj) if member is not None else None
    except Exception:
        return None
    return table if type(table) is dict else None


def referents_of_module(module: Any) -> list:
    """What a module refers to: its attributes. The C code of a module may also visit what it has for reuse, dead objects that come to
    life if they are touched (Python 3.12's `_asyncio`), so it is not asked."""
    table = table_of(module)
    return [] if table is None else [table]


def referents_of_table(table: Any) -> list:
    """Values and keys in turn. The collector is not told of keys that are all text, which holds nothing; but it has a size."""
    found = gc.get_referents(table)
    count = dict.__len__(table)
    if count < LEAST_KEYS or len(found) >= 2 * count:
        return found
    if len(found) != count:
        # The table of a class of the program refers to the class as well.
        return list(dict.keys(table)) + found
    both: list = [None] * (2 * count)
    both[::2], both[1::2] = found, dict.keys(table)
    return both


def referents_of(obj: Any) -> list:
    """What an object refers to, as the collector sees it."""
    return referents_of_module(obj) if issubclass(type(obj), types.ModuleType) else gc.get_referents(obj)


def member_of(kind: type, name: str, kinds: tuple) -> Any:
    """What a type has under a name, if it is of one of some kinds; does not ask the type, which may have answers of its own."""
    for base in _mro(kind):
        member = _namespace(base).get(name)
        if any(type(member) is one for one in kinds):
            return member
    return None


def is_class(obj: Any) -> bool:
    """Whether an object is a class; a stand-in for one is not asked what it claims to be."""
    return issubclass(type(obj), type)


def type_name(kind: type) -> str:
    """`LazyImage`, `PIL.JpegImageFile`, `numpy.ndarray`: the package and the name."""
    try:
        module = _getattribute(kind, "__module__")
        name = _qualname(kind).replace("<locals>.", "")
    except Exception:
        return "?"
    package = module.split(".")[0] if isinstance(module, str) else ""
    return name if package in ("", "builtins", "__main__", "__mp_main__") else package + "." + name


def is_kind(kind: type, module: str, name: str) -> bool:
    """Whether a type is a subclass of a class of a module that is loaded."""
    base = loaded(module, name)
    return base is not None and any(one is base for one in _mro(kind))


def loaded(module: str, name: str) -> Optional[type]:
    """A class of a module, if the module is loaded."""
    found = sys.modules.get(module)
    base = (table_of(found) or {}).get(name) if found is not None else None
    return base if is_class(base) else None


def sizer_of(kind: type) -> Any:
    """The function that gives the bytes of an object without its referents; runs no code of the program."""
    name = type_name(kind)
    if name.rsplit(".", 1)[-1] == "ImagingCore":
        return image_bytes
    if name == "mmap.mmap":
        return mapped_bytes
    if is_kind(kind, "numpy", "ndarray"):
        return array_bytes
    if is_kind(kind, "_ctypes", "_SimpleCData") or is_kind(kind, "_ctypes", "Array") or is_kind(kind, "_ctypes", "Structure"):
        return ctypes_bytes
    method = next((found for found in (_namespace(base).get("__sizeof__") for base in _mro(kind)) if found is not None), None)
    if not any(type(method) is one for one in BUILT_IN):
        return shallow_bytes
    if inline_values(kind):
        return inline_bytes
    return sys.getsizeof


class _Probe:
    def __init__(self) -> None:
        self.a = self.b = self.c = self.d = self.e = self.f = None


# From Python 3.11 on, instances have their attributes in a table that `sys.getsizeof` may leave out.
LEAVES_OUT = sys.version_info >= (3, 11) and sys.getsizeof(_Probe()) <= _Probe.__basicsize__ + 32


def inline_values(kind: type) -> bool:
    """Whether `sys.getsizeof` leaves out the attributes of this type's instances."""
    return LEAVES_OUT and bool(_flags(kind) & (1 << 4)) and not issubclass_of_container(kind)


def issubclass_of_container(kind: type) -> bool:
    return any(issubclass(kind, base) for base in (dict, list, tuple, set, type, types.FunctionType, types.ModuleType))


def inline_bytes(obj: Any) -> int:
    # The table has a place for each key that the class shares, and a header.
    return sys.getsizeof(obj) + 16 + 8 * len(gc.get_referents(obj))


def shallow_bytes(obj: Any) -> int:
    return object.__sizeof__(obj) + 16


def image_bytes(core: Any) -> int:
    """The pixels of a decoded PIL image."""
    width, height = core.size
    mode = core.mode
    depth = 1 if mode in ("1", "L", "P") else 2 if mode.startswith("I;16") else 4
    return width * height * depth


def mapped_bytes(mapping: Any) -> int:
    """What a mapping costs this process: nothing of a file."""
    try:
        size = len(mapping)
        return CURRENT.used(address_of(mapping), size) if LIBRARY is not None else size
    except Exception:
        return 0


def array_bytes(array: Any) -> int:
    """A numpy array with the part of its elements that was ever touched; those of a view belong to another array."""
    size = sys.getsizeof(array)
    if size < LEAST:
        return size
    kind = loaded("numpy", "ndarray")
    address = _namespace(kind)["__array_interface__"].__get__(array)["data"][0]
    count = _namespace(kind)["nbytes"].__get__(array)
    return max(0, size - count) + CURRENT.used(address, count)


def ctypes_bytes(obj: Any) -> int:
    """An array or a structure of ctypes with its block, if it has one of its own."""
    base = loaded("_ctypes", "_SimpleCData")
    root = _mro(base)[1]
    if not _namespace(root)["_b_needsfree_"].__get__(obj):
        return sys.getsizeof(obj)
    return sys.getsizeof(obj) + sys.modules["_ctypes"].sizeof(obj)


def storage_of(tensor: Any) -> Optional[Tuple[int, int, bool]]:
    """Address and bytes of a tensor's storage, and whether it lies in a GPU's memory."""
    torch = sys.modules["torch"]
    try:
        with torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            kind = storage.device.type
            if kind == "meta":
                return None
            return storage.data_ptr(), storage.nbytes(), kind != "cpu"
    except Exception:
        return None


def behind_array(array: Any) -> list:
    """What an array without a traversal of its own holds: the base of a view, the elements of an array of objects."""
    members = _namespace(loaded("numpy", "ndarray"))
    base, dtype = members["base"].__get__(array), members["dtype"].__get__(array)
    found = [] if base is None else [base]
    if dtype.hasobject and base is None and members["size"].__get__(array) <= LONGEST_ARRAY:
        try:
            found += [value for value in members["flat"].__get__(array) if not gc.is_tracked(value)]
        except Exception:
            pass
    return found
