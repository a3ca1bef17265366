"""What a census counts, and that it leaves the program as it was."""

from __future__ import annotations

import collections
import subprocess
import sys
import weakref
from typing import Any

import pytest
from test_holders import explained


def test_nothing_of_the_program_is_held_when_its_threads_run_again(monkeypatch):
    from model_garden import _census, _pause

    walks, held = [], []
    run, leave = _census.Walk.run, _pause.Undivided.__exit__

    def running(walk: Any) -> None:
        walks.append(weakref.ref(walk))
        run(walk)

    def leaving(pause: Any, *raised: object) -> None:
        held.extend(walk for walk in walks if walk() is not None)
        leave(pause, *raised)

    monkeypatch.setattr(_census.Walk, "run", running)
    monkeypatch.setattr(_pause.Undivided, "__exit__", leaving)
    explained(lambda: None)
    assert len(walks) == 2 and not held


def test_numbers_that_came_into_a_table_with_many():
    table = {number: number * 0.5 for number in range(100_000)}
    explanation = explained(lambda: table.update((number, number * 0.5) for number in range(100_000, 160_000)))
    numbers = sum(holder.count for holder in explanation.holders if holder.type in ("int", "float"))
    assert numbers == pytest.approx(120_000, rel=0.1), explanation


@pytest.mark.parametrize("kind", [dict, collections.Counter])
def test_keys_that_are_text_count(kind: type):
    table = kind()
    explanation = explained(lambda: [table.__setitem__("the text of row %d" % number, number) for number in range(100_000)] and None)
    assert explanation.share > 0.8, explanation
    assert any(holder.type == "str" for holder in explanation.holders), explanation


def test_of_a_large_table_that_no_collection_follows_a_part_is_looked_at():
    from model_garden import _census

    table = {number: number + 1 for number in range(1_000_000)}
    walk = _census.Walk()
    asked = [0]

    def size(number: int) -> int:
        asked[0] += 1
        return sys.getsizeof(number)

    walk.learn(int).size = size
    walk.run()
    assert len(table) == 1_000_000
    counted = sum(count for (name, _), (count, _, _) in walk.groups(walk.phases).items() if name == "int")
    assert counted == pytest.approx(2_000_000, rel=0.1)
    assert asked[0] < 200_000


def test_what_a_module_of_c_keeps_for_reuse_stays_dead():
    # Python 3.12's _asyncio shows dead objects to whoever asks what it refers to. Their second death made the next answer endless.
    program = """
import asyncio, gc, resource
from model_garden.holders import Holders

async def main():
    futures = [asyncio.get_running_loop().create_future() for _ in range(20)]
    async def wait(future):
        await future
    tasks = [asyncio.ensure_future(wait(future)) for future in futures]
    await asyncio.sleep(0)
    for future in futures:
        future.set_result(None)
    await asyncio.gather(*tasks)
    holders = Holders()
    holders.mark()
    kept.extend(bytearray(b"1" * 1_000_000) for _ in range(20))
    print(holders.explain().holders[0].chain)
    gc.collect()

kept = []
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "'kept'" in done.stdout, done.stdout + done.stderr[-2000:]
