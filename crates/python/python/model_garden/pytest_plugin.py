"""The marker `flat_memory` for pytest: the test runs again and again, and fails if its memory leaks.

Loaded by pytest in every project where this package is installed, so it imports nothing before a test asks for it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        "flat_memory(repeat=200, growth=None, warmup=None, every=None, strict=False, explain=True): run the test that often in one "
        "process and fail on a leak, or on growth above a bound such as '50MB'",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Iterator[None]:
    with _gated(pyfuncitem):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    # A test of unittest runs itself, and never comes to the hook above.
    unittest = sys.modules.get("unittest")
    is_unittest = unittest is not None and isinstance(getattr(item, "cls", None), type) and issubclass(item.cls, unittest.TestCase)
    with _gated(item) if is_unittest else nullcontext():
        yield


@contextmanager
def _gated(item: Any) -> Iterator[None]:
    """Puts the gate around a test that is marked."""
    marker = item.get_closest_marker("flat_memory")
    if marker is None:
        yield
        return
    from .gate import flat_memory

    test = item.obj
    item.obj = flat_memory(*marker.args, **marker.kwargs)(test)
    try:
        yield
    finally:
        item.obj = test
