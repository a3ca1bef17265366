"""The gate: a leak fails, and everything that comes to an end by itself passes."""

import functools
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import model_garden
from model_garden import ConfigError, MemoryGrew, analyze, flat_memory
from model_garden.gate import MemoryUndecided

SEEDS = 100
STEPS = 150


def churn(rng):
    """What any step does: it takes memory and gives it back."""
    return len([bytes(rng.randrange(1_000, 200_000)) for _ in range(rng.randrange(1, 8))])


def leaking(rng):
    kept, size = [], rng.randrange(30_000, 400_000)

    def step():
        kept.append(bytearray(size))
        churn(rng)

    return step


def filling_a_cache(rng):
    places, size = rng.randrange(20, 90), rng.randrange(40_000, 400_000)

    @functools.lru_cache(maxsize=places)
    def load(key):
        return bytearray(size)

    def step():
        load(rng.randrange(10 * places))
        churn(rng)

    return step


def warming_up(rng):
    kept, size, rate = [], rng.randrange(1_000_000, 20_000_000), rng.uniform(0.6, 0.93)

    def step():
        kept.append(bytearray(int(size * rate ** len(kept))))
        churn(rng)

    return step


def sawing(rng):
    kept, size, teeth = [], rng.randrange(30_000, 400_000), rng.randrange(5, 40)

    def step():
        kept.append(bytearray(size))
        churn(rng)
        if len(kept) >= teeth:
            kept.clear()

    return step


def wrong_answers(make, *, leaks):
    """The seeds for which the gate answers wrongly."""
    wrong = []
    for seed in range(SEEDS):
        step = make(random.Random(seed))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", MemoryUndecided)
                flat_memory(repeat=STEPS, explain=False)(step)()
            failed = None
        except (MemoryGrew, MemoryUndecided) as error:
            failed = error
        if isinstance(failed, MemoryGrew) != leaks or isinstance(failed, MemoryUndecided):
            wrong.append((seed, str(failed)))
    return wrong


def test_a_hundred_leaks_fail():
    assert wrong_answers(leaking, leaks=True) == []


@pytest.mark.parametrize("make", [filling_a_cache, warming_up, sawing])
def test_a_hundred_of_what_comes_to_an_end_pass(make):
    assert wrong_answers(make, leaks=False) == []


@pytest.mark.parametrize(
    ("shape", "verdicts"),
    [
        (lambda x, rng: x, {"leak"}),
        (lambda x, rng: np.minimum(x / rng.uniform(0.2, 0.75), 1), {"warm-up"}),
        (lambda x, rng: 1 - np.exp(-x / rng.uniform(0.02, 0.15)), {"warm-up"}),
        (lambda x, rng: 0.3 * ((x * rng.integers(5, 20) + rng.uniform()) % 1), {"steady"}),
        (lambda x, rng: 0 * x, {"steady"}),
    ],
    ids=["leak", "fill", "warm-up", "sawtooth", "steady"],
)
def test_the_curves_behind_it_over_many_levels_lengths_and_noises(shape, verdicts):
    """The gate's question to the analyst, a hundred curves each, without a process."""
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        x = np.linspace(0, 1, rng.integers(60, 400))
        noise = rng.normal(0, rng.uniform(1e4, 4e5), len(x))
        curve = rng.uniform(40e6, 90e6) + rng.uniform(8e6, 200e6) * shape(x, rng) + noise
        assert analyze(curve, steps_per_epoch=1).verdict in verdicts, seed


def test_a_block_that_leaks_fails_with_the_bytes_a_step():
    kept = []
    with pytest.raises(MemoryGrew, match=r"memory grew by .* MB in 190 steps and does not stop: \d+ kB a step") as caught:
        with flat_memory(steps=200) as gate:
            for _ in range(200):
                kept.append(bytearray(300_000))
                gate.step()
    assert isinstance(caught.value, AssertionError)
    assert caught.value.assessment.verdict == "leak"
    assert caught.value.growth == pytest.approx(190 * 300_000, rel=0.1)
    assert caught.value.assessment.growth_per_step == pytest.approx(300_000, rel=0.1)
    assert "epoch" not in str(caught.value), "nobody spoke of epochs"


def test_a_block_that_does_not_passes_and_tells_its_assessment():
    with flat_memory() as gate:
        for _ in range(100):
            bytearray(300_000)
            gate.step()
    assert gate.assessment.verdict == "steady" and abs(gate.growth) < 4_000_000


def test_who_holds_a_leak_is_said():
    pytest.importorskip("model_garden.holders")
    forgotten = []

    @flat_memory(repeat=60)
    def step():
        forgotten.append(bytearray(b"1") * 400_000)

    with pytest.raises(MemoryGrew, match="forgotten"):
        step()


def test_garbage_that_the_collector_did_not_reach_is_no_leak():
    class Node:
        def __init__(self):
            self.itself, self.bytes = self, bytearray(300_000)

    with flat_memory(steps=100) as gate:
        for _ in range(100):
            Node()
            gate.step()


def test_a_leak_beside_a_large_array_of_each_step_is_not_hidden_by_what_the_allocator_keeps():
    kept = []

    @flat_memory(repeat=120, explain=False)
    def step():
        kept.append(np.ones(100_000, dtype=np.uint8))
        np.ones(3_000_000)

    with pytest.raises(MemoryGrew):
        step()


def test_growth_over_a_bound_fails_whatever_its_kind():
    def fill(kept):
        with flat_memory(steps=200, growth="20MB") as gate:
            for _ in range(200):
                if len(kept) < 100:
                    kept.append(bytearray(400_000))
                gate.step()

    with pytest.raises(MemoryGrew, match="more than the 20 MB that growth= allows"):
        fill([])
    fill([bytearray(400_000) for _ in range(95)])


def test_the_growth_of_a_few_large_steps_is_not_halved():
    kept = []
    with pytest.raises(MemoryGrew, match="more than the 50 MB that growth= allows") as caught:
        with flat_memory(growth="50MB", warmup=0) as gate:
            for _ in range(8):
                kept.append(bytearray(b"1") * 10_000_000)
                gate.step()
    assert caught.value.growth == pytest.approx(70_000_000, rel=0.05)


def test_a_loop_over_a_dataset_may_grow_until_its_first_epoch_ends():
    kept = []
    with flat_memory(steps=120, steps_per_epoch=80) as gate:
        for step in range(120):
            if step < 80:
                kept.append(bytearray(400_000))
            gate.step()
    assert gate.assessment.verdict == "fill"


def a_short_block(strict):
    with flat_memory(strict=strict, warmup=0) as gate:
        for _ in range(5):
            gate.step()


def test_a_test_too_short_to_tell_passes_with_a_warning_or_fails_if_it_is_strict():
    with pytest.warns(MemoryUndecided, match="5 steps do not tell"):
        a_short_block(strict=False)
    with pytest.raises(MemoryGrew, match="do not tell"):
        a_short_block(strict=True)


def test_a_decorated_function_runs_on_until_it_is_decided():
    calls = []
    flat_memory(repeat=6, warmup=0)(lambda: calls.append(None))()
    assert len(calls) == 12, "ten readings decide"


def test_a_decorated_function_keeps_its_name_its_arguments_and_its_result():
    @flat_memory
    def double(x, *, more=0):
        """Doubles."""
        return 2 * x + more

    assert double(4, more=1) == 9 and double(1) == 2
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")


def test_what_the_block_raises_is_not_hidden():
    with pytest.raises(ZeroDivisionError), flat_memory() as gate:
        gate.step()
        1 / 0


def test_a_long_test_keeps_few_readings():
    with flat_memory(warmup=0) as gate:
        for _ in range(3_000):
            gate.step()
    assert 100 < gate.assessment.samples <= 320


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: flat_memory(growth="some"), "growth='some'"),
        (lambda: flat_memory(repeat=0), "repeat=0"),
        (lambda: flat_memory(every=1.5), "every=1.5"),
        (lambda: flat_memory(steps=5, repeat=5), "give one of them"),
        (lambda: flat_memory("50MB"), "settings by name"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()


def test_a_gate_without_steps_says_what_is_missing():
    with pytest.raises(ConfigError, match=r"call gate\.step\(\) once a step"):
        with flat_memory():
            pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": 100}, "lower every=100"),
        ({"steps": 100_000}, "the first 5000 are warm-up: .* steps=100000 promised more"),
        ({"warmup": 30}, "the first 30 are warm-up: .* lower warmup="),
    ],
)
def test_a_gate_that_read_nothing_says_why(settings, words):
    with pytest.raises(ConfigError, match=f"saw 20 steps and read none of them.*{words}"):
        with flat_memory(**settings) as gate:
            for _ in range(20):
                gate.step()


async def a_coroutine():
    pass


def a_generator():
    yield


async def an_asynchronous_generator():
    yield


def test_an_async_function_is_refused_with_what_to_write():
    with pytest.raises(ConfigError, match=r"calls asyncio\.run\(a_coroutine\(\)\)"):
        flat_memory(a_coroutine)


@pytest.mark.parametrize("later", [a_coroutine, a_generator, an_asynchronous_generator])
def test_work_that_is_done_later_is_refused(later):
    with pytest.raises(ConfigError, match="does its work later"):
        flat_memory(later)


def test_a_class_is_refused_for_no_test_of_it_would_run():
    with pytest.raises(ConfigError, match="Tests is a class: decorate its methods"):

        @flat_memory(repeat=60)
        class Tests:
            pass


def test_a_method_gets_its_object():
    class Tests:
        @flat_memory
        def bare(self):
            return self

        @flat_memory(repeat=20)
        def with_settings(self):
            return self

    tests = Tests()
    assert tests.bare() is tests and tests.with_settings() is tests


MARKED = """
import logging
import unittest

import pytest

kept = []

@pytest.fixture
def size():
    return 300_000

@pytest.mark.flat_memory(repeat=100, explain=False)
def test_leaks(size):
    kept.append(bytearray(size))

@pytest.mark.flat_memory(repeat=100)
def test_is_flat(size):
    bytearray(size)

@pytest.mark.flat_memory(repeat=60)
def test_logs(caplog):
    for number in range(200):
        logging.warning("%d %s", number, 100 * "x")
    assert len(caplog.records) == 200, "those of other rounds are gone"

class TestOfUnittest(unittest.TestCase):
    @pytest.mark.flat_memory(repeat=100, explain=False)
    def test_leaks_too(self):
        kept.append(bytearray(300_000))

def test_runs_once():
    assert len(kept) >= 100
"""


def test_the_marker_runs_a_test_again_and_again(tmp_path):
    (tmp_path / "test_marked.py").write_text(MARKED)
    home = Path(model_garden.__file__).parent.parent
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(home)}
    command = [sys.executable, "-m", "pytest", "-p", "model_garden.pytest_plugin", "--strict-markers", "-q", "."]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "gate.py" not in done.stdout, "a failure shows the test, not how the gate runs it"
    assert done.stdout.count("MemoryGrew: memory grew by") >= 2
