"""Recorded memory from Python: what can be given, what comes back, and what is refused in words."""

import datetime
import pickle
import subprocess
import sys

import numpy as np
import pytest

import model_garden
from model_garden import Assessment, ConfigError, TraceError, analyze, watch

EPOCH = {"dataset_size": 800, "samples_per_step": 8}  # 100 steps


def leak(count=300):
    """4 GB that grow by 5 MB a step, without end."""
    return 4_000_000_000 + 5_000_000 * np.arange(count)


def fill(count=300):
    """The same growth, which ends with the first epoch."""
    return 4_000_000_000 + 5_000_000 * np.minimum(np.arange(count), 99)


def test_a_leak_in_an_array():
    found = analyze(leak(), **EPOCH)
    assert found.verdict == "leak" and found.confidence > 0.9
    assert found.growth_per_step == pytest.approx(5e6, rel=0.01)
    assert found.growth_per_sample == pytest.approx(5e6 / 8, rel=0.01)
    assert found.brief().startswith("leak: 5.0 MB a step = 625 kB a sample")


def test_a_fill_in_an_array():
    found = analyze(fill(), **EPOCH)
    assert found.verdict == "fill"
    assert found.plateau.bytes == pytest.approx(4_495_000_000, rel=0.01)
    assert abs(found.plateau.step - 100) <= 3


def test_an_undecided_run_names_both_endings_and_when_it_is_known():
    found = analyze(leak(60), **EPOCH, limit="6GB")
    assert found.verdict == "undecided"
    assert {ending.verdict for ending in found.endings} >= {"fill", "leak"}
    brief = found.brief()
    assert "if it is a fill, out of memory at step" in brief and "if it is a leak" in brief
    assert brief.endswith(f"known at step {found.decidable_at_step}")


@pytest.mark.parametrize("convert", [list, tuple, np.float32, np.float64, np.int64, np.uint64, lambda x: x.astype(">i8"), lambda x: x[:]])
def test_numbers_of_any_kind_are_the_same(convert):
    assert analyze(convert(leak()), **EPOCH).verdict == "leak"


def test_a_column_of_a_table_is_read_where_it_lies():
    table = np.zeros((300, 5), dtype=np.int64)
    table[:, 2] = leak()
    assert analyze(table[:, 2], **EPOCH) == analyze(leak(), **EPOCH)


def test_readings_without_a_number_are_left_out():
    memory = leak().astype(float)
    memory[10:20] = np.nan
    assert analyze(memory, **EPOCH).samples == 290


def test_what_is_masked_is_no_reading():
    memory = np.ma.masked_array(leak(), mask=np.arange(300) % 3 == 0)
    assert analyze(memory, **EPOCH).samples == 200


def test_shuffled_readings_are_judged_in_the_order_of_their_steps_or_times():
    order = np.random.default_rng(0).permutation(300)
    found = analyze(leak()[order], steps=order + 1, **EPOCH)
    assert found.verdict == "leak" and found.growth_per_step == pytest.approx(5e6, rel=0.01)
    assert any("were sorted" in sentence for sentence in found.evidence)
    assert analyze(leak()[order], times=order).growth_per_minute == pytest.approx(60 * 5e6, rel=0.01)
    # A run that began again writes its steps anew: that is no disorder.
    twice = analyze(np.concatenate([leak(200), leak(300)]), steps=np.concatenate([np.arange(200), np.arange(300)]))
    assert not any("were sorted" in sentence for sentence in twice.evidence)


def test_times_in_a_time_zone_are_times():
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    times = [start + datetime.timedelta(seconds=second) for second in range(300)]
    assert analyze(leak(), times=times).growth_per_minute == pytest.approx(60 * 5e6, rel=0.01)


def test_a_reading_without_a_time_is_left_out_wherever_it_is():
    start = datetime.datetime(2026, 1, 1)
    dates = np.datetime64(start) + np.arange(300).astype("m8[s]")
    for column, nothing in [(dates, np.datetime64("NaT")), (1.7e9 + np.arange(300), np.nan)]:
        column[[0, 7]] = nothing
        found = analyze(leak(), times=column)
        assert found.samples == 298 and found.growth_per_minute == pytest.approx(60 * 5e6, rel=0.01)
        assert "from second 0 to second 298" in found.evidence[0]
        with pytest.raises(ConfigError, match="times has no time"):
            analyze(leak(), times=np.full_like(column, nothing))


def test_an_undecided_level_is_told_in_english():
    assert "if it stays steady" in analyze([4e9, 4e9, 4e9], steps=[1, 2, 3], **EPOCH).brief()


def test_units_steps_and_times():
    in_megabytes = analyze(leak() / 1e6, unit="MB", steps=10 * np.arange(1, 301), steps_per_epoch=1000)
    assert in_megabytes.growth_per_step == pytest.approx(5e5, rel=0.01)
    by_clock = analyze(leak(), times=2.0 * np.arange(300))
    assert by_clock.growth_per_step is None and by_clock.growth_per_minute == pytest.approx(150e6, rel=0.02)
    start = datetime.datetime(2026, 1, 1)
    by_date = analyze(leak(), times=[start + datetime.timedelta(seconds=2 * i) for i in range(300)])
    assert by_date.growth_per_minute == pytest.approx(by_clock.growth_per_minute)
    assert analyze(leak(), times=np.arange(300) / 30, time_unit="min").growth_per_minute == pytest.approx(150e6, rel=0.02)


def test_a_series_of_pandas():
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(leak(), index=pandas.date_range("2026-01-01", periods=300, freq="2s"))
    assert analyze(series).growth_per_minute == pytest.approx(150e6, rel=0.02)
    since = pandas.Series(leak(), index=pandas.to_timedelta(2 * np.arange(300), unit="s"))
    assert analyze(since).growth_per_minute == pytest.approx(150e6, rel=0.02)
    times = [pandas.NaT, *series.index[1:]]
    assert analyze(leak(), times=times).samples == 299


def test_numbers_without_a_place_are_counted_and_that_is_said():
    assert any("300 readings are counted as steps" in sentence for sentence in analyze(leak()).evidence)


def test_advice_names_parameters_and_no_flags():
    said = " ".join(analyze(leak(100)).advice)
    assert "dataset_size=" in said and "--" not in said


def test_a_log_of_another_tool(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"Step {step}: loss 0.5, RAM: {5552 + step % 3} MB\n" for step in range(1, 80)))
    found = analyze(log)
    assert (found.verdict, found.name) == ("steady", "train")
    assert analyze(str(log)).to_dict() == found.to_dict()


def test_an_assessment_prints_draws_and_travels(tmp_path):
    found = analyze(fill(), **EPOCH, name="<script>run</script>")
    assert str(found).startswith("<script>run</script>: FILL") and "What to do" in str(found)
    shown = found._repr_html_()
    assert "<script>" not in shown and "data:image/svg+xml;base64," in shown
    assert found.svg().startswith("<svg") and "<script>run" not in found.svg()
    page = found.to_html(tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and "http-equiv" in page
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found and str(copy).startswith("<script>run</script>: FILL")
    with pytest.raises(ConfigError, match="no curve"):
        copy.svg()


def test_plot_draws_with_matplotlib():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = analyze(fill(), **EPOCH, limit="5GB").plot()
    assert axes.get_xlabel() == "step" and axes.lines


def test_plot_without_matplotlib_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        analyze(fill()).plot()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: analyze(leak() / 1e6), "unit='MB'"),
        (lambda: analyze(-leak()), r"memory\[0\] is -4000000000"),
        (lambda: analyze(["a", "b"]), "no numbers"),
        (lambda: analyze([]), "nothing to judge"),
        (lambda: analyze(np.full(9, np.nan)), "nothing to judge"),
        (lambda: analyze(np.zeros((3, 3))), "2 dimensions"),
        (lambda: analyze(None), "0 dimensions"),
        (lambda: analyze(leak() + 1j), "complex128"),
        (lambda: analyze(leak(2), times=[datetime.datetime(2026, 1, 1), None]), "no column of times"),
        (lambda: analyze(leak(), steps=[1, 2]), "steps has 2 values and memory 300"),
        (lambda: analyze(leak(), unit="apples"), "is not a unit"),
        (lambda: analyze(leak(), limit="28 apples"), "limit='28 apples'"),
        (lambda: analyze(leak(), limit=0), "leaves nothing"),
        (lambda: analyze(leak(), limit="120%"), "1% to 100%"),
        (lambda: analyze(leak(), dataset_size=-3), "dataset_size=-3"),
        (lambda: analyze(leak(), steps_per_epoch=float("nan")), "steps_per_epoch=nan"),
        (lambda: analyze(leak(), column="rss"), "column= is for files"),
        (lambda: analyze(__file__, steps=[1]), "steps= is for arrays"),
        (lambda: analyze(__file__, step_pattern="("), "step_pattern"),
        (lambda: watch(1.5), "pid=1.5"),
        (lambda: watch(1, interval="never"), "interval='never'"),
        (lambda: watch(1, interval=0), "out of range"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_words(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        analyze(tmp_path / "no-such-file")
    (tmp_path / "empty").write_text("")
    with pytest.raises(TraceError, match="empty"):
        analyze(tmp_path / "empty")
    (tmp_path / "table.csv").write_text("time,weight\n1,2\n")
    with pytest.raises(TraceError, match="column="):
        analyze(tmp_path / "table.csv")


GROWING = """
import time
kept = []
print("on", flush=True)
while True:
    kept.append(bytearray(b"1") * 200_000)
    time.sleep(0.002)
"""


@pytest.fixture
def growing():
    """A process that grows until it is stopped."""
    process = subprocess.Popen([sys.executable, "-c", GROWING], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_watching_another_process_until_the_callback_has_enough(growing, tmp_path):
    readings = []

    def enough(reading):
        readings.append(reading)
        return len(readings) < 30

    found = watch(growing.pid, interval="20ms", callback=enough, trace=tmp_path / "trace.jsonl")
    assert isinstance(found, Assessment) and found.samples == 30
    assert readings[-1].owned > readings[0].owned
    assert analyze(tmp_path / "trace.jsonl").samples == 30


def test_ctrl_c_ends_a_watch_and_gives_what_was_seen(growing):
    def interrupt(reading):
        if reading.t > 0.2:
            raise KeyboardInterrupt

    assert watch(growing.pid, interval=0.02, callback=interrupt).samples > 3


def test_a_watch_ends_with_its_process_and_with_its_time(growing):
    assert watch(growing.pid, interval="20ms", duration="100ms").samples >= 3
    assert watch(growing.pid, interval="20ms", callback=lambda reading: reading.t < 0.1 or growing.kill()).samples >= 3


def test_a_process_that_is_not_there():
    with pytest.raises(ProcessLookupError, match="there is no process"):
        watch(2**31 - 1)


def test_ten_thousand_judgements_leave_nothing_behind():
    memory = leak(15)
    measure = model_garden._native.Readings(1)
    for _ in range(500):
        str(analyze(memory))
    before = measure.now()
    for _ in range(10_000):
        analyze(memory)
    assert measure.now() - before < 8_000_000
