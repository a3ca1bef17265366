"""A training loop that watches its own memory: what it is told, when it is told to stop, and that nothing ever disturbs it."""

import gc
import io
import logging
import mmap
import os
import re
import sys
import threading
import weakref

import pytest

from model_garden import ConfigError, MemoryMonitor, analyze

ROW = 1_000_000
EPOCH = {"dataset_size": 320, "samples_per_step": 8}  # 40 steps


def touch(count):
    """Memory that is really there."""
    return bytearray(b"1") * count


def train(monitor, steps, rows_until):
    """Steps that keep what they read until every row was read once."""
    kept = []
    for step in range(1, steps + 1):
        if step <= rows_until:
            kept.append(touch(ROW))
        monitor.step()
    return kept


def test_a_fill_is_undecided_first_with_both_endings_and_then_named_with_its_knee():
    out = io.StringIO()
    with MemoryMonitor(every=2, **EPOCH, name="founding", file=out, explain=False) as monitor:
        kept = train(monitor, 90, rows_until=40)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("Step ")]
    assert lines[0].startswith("Step 2: Process RAM: ") and len(lines) == 45
    assert "if it is a fill, out of memory at step" in lines[14] and "if it is a leak; known at step 44" in lines[14]
    found = monitor.close()
    assert found.verdict == "fill" and abs(found.plateau.step - 40) <= 2
    assert found.growth_per_sample == pytest.approx(ROW / 8, rel=0.05)
    assert "fill: stopped at step " in lines[-1]
    summary = out.getvalue()[out.getvalue().index("Memory of founding: FILL") :]
    assert "at the start" in summary and "Evidence" in summary and "What to do" in summary
    assert len(kept) == 40


def test_a_leak_goes_on_after_the_epoch():
    monitor = MemoryMonitor(every=2, **EPOCH, quiet=True, explain=False)
    kept = train(monitor, 90, rows_until=90)
    assert monitor.close().verdict == "leak" and len(kept) == 90


def test_a_reading_comes_every_so_many_steps_however_they_are_told():
    monitor = MemoryMonitor(every=5, quiet=True, explain=False)
    assert [bool(monitor.step()) for _ in range(10)] == [False] * 4 + [True] + [False] * 4 + [True]
    assert [bool(monitor.step(step)) for step in (12, 14, 16, 16, 30)] == [False, False, True, False, True]
    reading = monitor.sample(step=31, epoch=1.5)
    assert (reading.step, reading.epoch) == (31, 1.5)
    assert reading.owned > 1_000_000 and reading.resident >= reading.owned and reading.processes >= 1
    assert reading.assessment.samples == monitor.assessment.samples


def test_what_is_learned_late_sharpens_the_verdict_and_what_was_given_stands():
    monitor = MemoryMonitor(every=2, dataset_size=320, quiet=True, explain=False)
    monitor.learn(dataset_size=999, samples_per_step=8)
    kept = train(monitor, 90, rows_until=40)
    assert monitor.close().verdict == "fill" and kept


def test_the_trace_is_read_back_and_the_report_is_a_page(tmp_path):
    trace, report = tmp_path / "run.jsonl", tmp_path / "run.html"
    with MemoryMonitor(every=2, **EPOCH, trace=trace, report=report, quiet=True, explain=False) as monitor:
        kept = train(monitor, 90, rows_until=40)
    assert analyze(trace).verdict == monitor.assessment.verdict == "fill" and kept
    assert report.read_text().startswith("<!doctype html>")
    assert f"Trace: {trace}" in monitor.summary() and f"Report: {report}" in monitor.summary()


def test_a_file_that_is_no_trace_is_not_replaced(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('mine')")
    with pytest.raises(ConfigError, match="is not replaced"):
        MemoryMonitor(trace=script)
    assert script.read_text() == "print('mine')"
    with pytest.raises(FileNotFoundError):
        MemoryMonitor(trace=tmp_path / "no" / "folder.jsonl")


def test_it_is_time_to_stop_before_the_limit_is_reached():
    monitor = MemoryMonitor(every=5, quiet=True, explain=False)
    limit = monitor.sample().owned + 200_000_000
    monitor = MemoryMonitor(every=5, stop_before=limit, quiet=True, explain=False)
    kept = []
    while not monitor.should_stop:
        # Not from what the allocator kept of earlier tests.
        kept.append(mmap.mmap(-1, 2_000_000))
        kept[-1].write(bytes(2_000_000))
        monitor.step()
        assert len(kept) < 100, "the limit was crossed"
    assert len(kept) > 30, "far too early"
    assert "using " in monitor.stop_reason or "limit" in monitor.stop_reason
    assert f"stopped: {monitor.stop_reason}" in monitor.summary()
    monitor.close()


def test_without_a_limit_nothing_asks_to_stop():
    monitor = MemoryMonitor(quiet=True, explain=False)
    train(monitor, 30, rows_until=0)
    assert (monitor.should_stop, monitor.stop_reason) == (False, None)


def test_a_forked_child_does_nothing(tmp_path):
    trace = tmp_path / "run.jsonl"
    out = io.StringIO()
    monitor = MemoryMonitor(every=1, trace=trace, file=out, explain=False)
    monitor.step()
    before = (trace.read_text(), out.getvalue())
    child = os.fork()
    if child == 0:
        said = [monitor.step(), monitor.sample(), monitor.close().verdict, monitor.should_stop]
        silent = (trace.read_text(), out.getvalue()) == before
        del monitor
        os._exit(0 if said == [None, None, "undecided", False] and silent else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert monitor.step() is not None, "the parent goes on"
    assert monitor.close().samples == 3


def test_nothing_that_fails_reaches_the_training_and_it_is_said_once(tmp_path, caplog):
    def broken(*_):
        raise RuntimeError("no tensors here")

    monitor = MemoryMonitor(every=1, report=tmp_path / "no" / "folder.html", file=io.StringIO(), explain=False)
    monitor.describe = monitor.on_reading = broken
    with caplog.at_level(logging.WARNING, logger="model_garden"):
        train(monitor, 5, rows_until=0)
        monitor.close()
    assert len(caplog.records) == 1 and "no tensors here" in caplog.text and "the run goes on" in caplog.text
    closed = io.StringIO()
    closed.close()
    MemoryMonitor(every=1, file=closed, explain=False).step()


def test_the_middle_of_a_line_is_the_caller_s():
    out = io.StringIO()
    monitor = MemoryMonitor(every=1, file=out, explain=False)
    monitor.describe = lambda: "6529 tensors (CPU: 330, GPU: 6199)"
    monitor.step()
    assert out.getvalue().startswith("Step 1: 6529 tensors (CPU: 330, GPU: 6199), Process RAM: ")


def test_lines_stand_beside_a_progress_bar_and_are_not_drawn_over(monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with MemoryMonitor(every=5, explain=False) as monitor:
        for _ in tqdm.tqdm(range(20), file=terminal, ncols=60):
            monitor.step()
    # A line begins where the bar was taken away, and ends before the bar is drawn again.
    assert re.findall(r"(?:^|[\r\n])Step (\d+): [^\r\n]*\n", terminal.getvalue()) == ["5", "10", "15", "20"]


def test_steps_that_begin_again_in_each_epoch_are_counted_on():
    monitor = MemoryMonitor(every=5, quiet=True, explain=False)
    for _ in range(3):
        for step in range(1, 21):
            monitor.step(step)
    monitor.close()
    assert " in 60 steps" in monitor.summary()
    monitor = MemoryMonitor(quiet=True, explain=False)
    monitor.step()
    monitor.close()
    assert monitor.summary().count(" in 1 step\n") == 1


def test_threads_may_share_one_and_blocks_may_nest():
    with MemoryMonitor(every=10, quiet=True, explain=False) as monitor, monitor:
        threads = [threading.Thread(target=lambda: [monitor.step() for _ in range(50)]) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        with monitor:
            pass
        assert "live" in repr(monitor)
    assert repr(monitor) == f"<MemoryMonitor of {monitor.name}: closed, step 200>"
    assert monitor.step() is None and monitor.close() is monitor.close()
    with pytest.raises(ConfigError, match="closed"):
        monitor.__enter__()


def test_it_goes_without_the_collector_and_grows_by_nothing():
    gc.collect()
    gc.disable()
    try:
        monitor = MemoryMonitor(every=1, quiet=True, explain=False)
        train(monitor, 3, rows_until=0)
        monitor.close()
        ghost = weakref.ref(monitor)
        del monitor
        assert ghost() is None
    finally:
        gc.enable()
    monitor = MemoryMonitor(every=10, quiet=True, explain=False)
    train(monitor, 1_000, rows_until=0)
    before = monitor.sample().owned
    train(monitor, 10_000, rows_until=0)
    # The curve of 2048 points is kept, and no more.
    assert monitor.sample().owned - before < 8_000_000


def test_who_holds_it_is_in_the_summary_and_the_report(tmp_path):
    pytest.importorskip("model_garden.holders")
    report = tmp_path / "run.html"
    monitor = MemoryMonitor(every=2, **EPOCH, quiet=True, report=report)
    rows_that_stay = []
    for step in range(90):
        if step < 40:
            rows_that_stay.append(touch(ROW))
        monitor.step()
    monitor.close()
    assert "rows_that_stay" in str(monitor.explanation)
    assert "Who holds it" in monitor.summary() and "rows_that_stay" in report.read_text()


@pytest.mark.parametrize(
    "settings",
    [
        {"every": 0},
        {"every": 1.5},
        {"explain": "sometimes"},
        {"stop_before": "28 apples"},
        {"stop_before": 28},
        {"stop_before": "0.8"},
        {"stop_before": 10**20},
        {"dataset_size": 0},
        {"steps_per_epoch": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        MemoryMonitor(**settings)


def test_a_step_that_is_no_number_is_the_caller_s_mistake():
    monitor = MemoryMonitor(quiet=True, explain=False)
    with pytest.raises(ConfigError, match="step=-1"):
        monitor.step(-1)
