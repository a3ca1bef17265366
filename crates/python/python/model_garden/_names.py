"""Names what holds an object, as a programmer knows it: `'rows' of ListDataset.__init__ (train.py:41)`.

Takes a path of objects and gives the names that it passes: variables, globals, attributes, closures, defaults and caches. Where a name is
stored is read from the bytecode, so it is known without anything having been traced. Runs no code of the program.
"""

from __future__ import annotations

import dis
import gc
import os
import types
from bisect import bisect_right
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from . import _sizes
from ._chain import LRU_CACHE, SUSPENDED
from ._pause import OURS, locals_of
from ._sizes import is_class, table_of, type_name

OURS.add(__name__)

# A source file larger than this is not compiled to find where a global is stored.
LARGEST_SOURCE = 2_000_000
# Keys that are looked through for the name of a value.
LONGEST_SEARCH = 100_000

Place = Tuple[str, str, int]


class Name:
    """A name in the program: its kind, the name, what it is a name of, and where it is stored."""

    __slots__ = ("kind", "name", "of", "file", "line", "source")

    def __init__(self, kind: str, name: Optional[str], of: str, file: Optional[str] = None, line: int = 0, source: Optional[str] = None):
        self.kind, self.name, self.of = kind, name, of
        self.file, self.line, self.source = file, line, source

    def place(self) -> Optional[str]:
        """`train.py:41`, if it is known."""
        if self.file is None and self.source is not None:
            self.find_in_source()
        return "%s:%d" % (os.path.basename(self.file), self.line) if self.file else None

    def find_in_source(self) -> None:
        """Looks for a global in the source of its module, which is not kept once it has run. Reads a file: not for an undivided moment."""
        path, self.source = self.source, None
        try:
            if os.path.getsize(path) > LARGEST_SOURCE:
                return
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
        except Exception:
            return
        found = stored(nested(code), self.name, ("STORE_NAME", "STORE_GLOBAL"))
        if found:
            self.file, self.line = found[1], found[2]

    def __str__(self) -> str:
        place = self.place()
        name = "'%s' of " % self.name if self.name is not None else ""
        return name + self.of + (" (%s)" % place if place else "")


def name_above(path: List[Any], start: int, climb: Any) -> Tuple[Optional[Name], int]:
    """The first name at or above an object of a path, and the index of the object that has it."""
    for index in range(start, len(path)):
        name = name_at(path, index, climb)
        if name is not None:
            return name, index
    # A variable that a function inside shares lies in a cell, which only the running function holds.
    for index in range(start, len(path)):
        name = variable(path[index], climb)
        if name is not None:
            return name, index
    return None, len(path)


def name_at(path: List[Any], index: int, climb: Any) -> Optional[Name]:
    """The name under which the object at an index of a path is held, if its holder has names."""
    obj = path[index]
    if issubclass(type(obj), LRU_CACHE):
        return cache_name(obj)
    if id(obj) in climb.modules:
        return Name("globals", None, "the globals of module " + climb.modules[id(obj)])
    if index + 1 == len(path):
        return variable(obj, climb)
    holder = path[index + 1]
    above = path[index + 2] if index + 2 < len(path) else None
    kind = type(holder)
    if id(holder) in climb.modules:
        return global_name(obj, holder, climb.modules[id(holder)])
    if kind is dict:
        return attribute_in(obj, holder, above)
    if issubclass(kind, (list, tuple, set, frozenset, dict)) and not has_attribute(holder, obj):
        return None
    if kind is types.CellType:
        return closure_name(holder, path[index + 2 :]) or shared_variable(obj, above)
    if issubclass(kind, types.FrameType):
        return local_name(obj, holder)
    if issubclass(kind, SUSPENDED):
        return shared_variable(obj, holder)
    if kind is types.FunctionType:
        return function_name(obj, holder)
    if issubclass(kind, LRU_CACHE):
        return cache_name(holder)
    if issubclass(kind, type):
        return class_attribute(obj, holder)
    return attribute(obj, holder)


def variable(obj: Any, climb: Any) -> Optional[Name]:
    for name, code in climb.variables.get(id(obj), ()):
        return local_of_code(name, code)
    return None


def local_name(obj: Any, frame: Any) -> Optional[Name]:
    for name, value in locals_of(frame):
        if value is obj:
            return local_of_code(name, frame.f_code)
    return None


def shared_variable(obj: Any, holder: Any) -> Optional[Name]:
    """The variable of a frame or of a suspended function, if the holder is one."""
    kind = type(holder)
    frame = holder if kind is types.FrameType else None
    if issubclass(kind, SUSPENDED):
        frame = getattr(holder, "gi_frame", None) or getattr(holder, "cr_frame", None) or getattr(holder, "ag_frame", None)
    return local_name(obj, frame) if frame is not None else None


def local_of_code(name: str, code: Any) -> Name:
    found = stored([code], name, ("STORE_FAST", "STORE_DEREF"))
    _, file, line = found or (None, code.co_filename, code.co_firstlineno)
    return Name("variable", name, code_name(code), file, line)


def code_name(code: Any) -> str:
    return getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")


def global_name(obj: Any, namespace: dict, module: str) -> Optional[Name]:
    key = key_of(obj, namespace)
    if key is None:
        return None
    path = namespace.get("__file__")
    source = path if isinstance(path, str) and path.endswith(".py") else None
    if module in ("__main__", "__mp_main__"):
        module = os.path.splitext(os.path.basename(source))[0] if source else "__main__"
    return Name("global", key, "module " + module, source=source)


def key_of(obj: Any, table: dict) -> Optional[str]:
    if len(table) > LONGEST_SEARCH:
        return None
    for key, value in list(table.items()):
        if value is obj:
            return key if isinstance(key, str) else None
    return None


def attribute_in(obj: Any, table: dict, above: Any) -> Optional[Name]:
    """The name of an attribute, if the table is that of an instance, a class or a module."""
    if above is None or not owns_table(above, table):
        return None
    key = key_of(obj, table)
    if key is None:
        return None
    return class_name(key, above) if is_class(above) else instance_name(key, above)


def owns_table(holder: Any, table: dict) -> bool:
    if is_class(holder):
        return gc.get_referents(_sizes._namespace(holder))[0] is table
    return table_of(holder) is table


def attributes(holder: Any) -> Iterator[Tuple[str, Any]]:
    """Names and values of an instance's attributes, in its table and in its slots."""
    yield from list((table_of(holder) or {}).items())
    for kind in _sizes._mro(type(holder)):
        for name, member in list(_sizes._namespace(kind).items()):
            if type(member) is types.MemberDescriptorType:
                try:
                    yield name, member.__get__(holder)
                except Exception:
                    continue


def has_attribute(holder: Any, obj: Any) -> bool:
    is_container = any(type(holder) is kind for kind in (list, tuple, set, frozenset, dict))
    return not is_container and any(value is obj for _, value in attributes(holder))


def attribute(obj: Any, holder: Any) -> Optional[Name]:
    for name, value in attributes(holder):
        if value is obj:
            return instance_name(name, holder)
    return None


def instance_name(name: str, holder: Any) -> Name:
    kind = type(holder)
    for code, owner in methods(kind):
        found = stored([code], name, ("STORE_ATTR",))
        if found:
            # Before Python 3.11 code does not know its class.
            of = found[0] if "." in found[0] else _sizes._qualname(owner) + "." + found[0]
            return Name("attribute", name, of, found[1], found[2])
    return Name("attribute", name, type_name(kind))


def class_name(name: str, kind: type) -> Name:
    return Name("class attribute", name, "class " + type_name(kind), source=None)


def class_attribute(obj: Any, kind: type) -> Optional[Name]:
    for name, value in list(_sizes._namespace(kind).items()):
        if value is obj:
            return class_name(name, kind)
    return None


def closure_name(cell: Any, above: List[Any]) -> Optional[Name]:
    function = next((obj for obj in above[:2] if type(obj) is types.FunctionType), None)
    if function is None:
        return None
    code = function.__code__
    for name, other in zip(code.co_freevars, function.__closure__ or ()):
        if other is cell:
            outer = enclosing(function)
            found = stored([outer], name, ("STORE_DEREF",)) if outer is not None else None
            _, file, line = found or (None, code.co_filename, code.co_firstlineno)
            return Name("closure", name, "the closure of " + code_name(code), file, line)
    return None


def enclosing(function: Any) -> Any:
    """The code in which a function is defined, if it is found by its name."""
    first = function.__qualname__.split(".<locals>")[0].split(".")
    found: Any = function.__globals__.get(first[0])
    for part in first[1:]:
        found = _sizes._namespace(found).get(part) if is_class(found) else None
    found = getattr(found, "__code__", None) if type(found) is types.FunctionType else None
    return next((code for code in nested(found) if function.__code__ in code.co_consts), None) if found else None


def function_name(obj: Any, function: Any) -> Optional[Name]:
    code = function.__code__
    if obj is function.__defaults__ or obj is function.__kwdefaults__:
        return Name("default", None, "a default of " + code_name(code), code.co_filename, code.co_firstlineno)
    if obj is function.__dict__:
        return Name("attribute", None, "an attribute of " + code_name(code), code.co_filename, code.co_firstlineno)
    return None


def cache_name(cache: Any) -> Name:
    function = getattr(cache, "__wrapped__", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return Name("cache", None, "an lru_cache")
    return Name("cache", None, "the lru_cache of " + code_name(code), code.co_filename, code.co_firstlineno)


def keeps_all(cache: Any) -> bool:
    """Whether a cache has a table of results, as one without a bound has."""
    try:
        return cache.cache_parameters()["maxsize"] is None
    except Exception:
        return False


def methods(kind: type) -> List[Tuple[Any, type]]:
    """The code of a class's methods, the one that makes it first, each with the class that has it."""
    found: Dict[str, Any] = {}
    for base in _sizes._mro(kind):
        for name, member in list(_sizes._namespace(base).items()):
            member = member.__func__ if type(member) is classmethod or type(member) is staticmethod else member
            if type(member) is types.FunctionType:
                found.setdefault(name, (member.__code__, base))
    order = sorted(found, key=making_first)
    return [found[name] for name in order]


def making_first(name: str) -> bool:
    return name not in ("__init__", "__post_init__", "__new__")


def nested(code: Any) -> List[Any]:
    """A code object and all that is defined in it."""
    found = [code]
    for inner in found:
        found += [const for const in inner.co_consts if type(const) is types.CodeType]
    return found


def stored(codes: Iterable[Any], name: Optional[str], operations: Tuple[str, ...]) -> Optional[Place]:
    """Where a name is stored first: the function, the file and the line."""
    for code in codes:
        lines = [(offset, line) for offset, line in dis.findlinestarts(code) if line is not None]
        for instruction in dis.get_instructions(code):
            # Some versions of Python join two operations: STORE_FAST_STORE_FAST has two names.
            words = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            if name in words and stores(instruction.opname, words.index(name), operations):
                at = bisect_right(lines, (instruction.offset, 1 << 60)) - 1
                line = lines[at][1] if at >= 0 else None
                return code_name(code), code.co_filename, line or code.co_firstlineno
    return None


def stores(operation: str, position: int, operations: Tuple[str, ...]) -> bool:
    if operation in operations:
        return True
    joined = {"STORE_FAST_STORE_FAST": (0, 1), "STORE_FAST_LOAD_FAST": (0,), "STORE_FAST_MAYBE_NULL": (0,)}
    return "STORE_FAST" in operations and position in joined.get(operation, ())
