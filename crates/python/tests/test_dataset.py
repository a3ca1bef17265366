"""Rows of files without torch: the same rows as the trainer reads, one at a time, in any process."""

import base64
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_garden import ConfigError, RowError, VisionCollator, VisionDataset

# One pixel.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(tmp_path):
    """Ten rows of one shape, each with its number in it."""
    (tmp_path / "a.png").write_bytes(PNG)
    return write(tmp_path / "train.jsonl", [{"prompt": f"Row {n}?", "completion": f"{n}", "image": "a.png"} for n in range(10)])


def said(row):
    return row["messages"][0]["content"][-1]["text"]


def test_a_row_is_messages_with_the_bytes_of_its_images(rows):
    row = VisionDataset(rows)[3]
    assert row == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": PNG}, {"type": "text", "text": "Row 3?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "3"}]},
        ]
    }
    assert row.id.endswith("train.jsonl, row 4")
    again = pickle.loads(pickle.dumps(row))
    assert again == row and again.id == row.id


def test_rows_are_counted_as_in_a_list(rows):
    dataset = VisionDataset(rows)
    assert len(dataset) == 10
    assert said(dataset[-1]) == "Row 9?" and said(dataset[np.int64(2)]) == "Row 2?"
    assert [said(row) for row in dataset[2:9:3]] == ["Row 2?", "Row 5?", "Row 8?"]
    assert [said(row) for row in dataset.__getitems__([4, 0, -1])] == ["Row 4?", "Row 0?", "Row 9?"]
    assert [said(row) for row in dataset] == [f"Row {n}?" for n in range(10)]
    for gone in [10, -11, 1 << 70]:
        with pytest.raises(IndexError):
            dataset[gone]
    with pytest.raises(TypeError):
        dataset["3"]


def test_what_a_row_says_beside_its_words_reaches_the_collator(tmp_path, tiny_model):
    """Weights, tools and calls: the row is read twice, and means the same both times."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": [1, 2.5, None, True, "x"]}}}
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}}
    written = {
        "tools": [tool],
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "Well.", "weight": 0},
            {"role": "user", "content": "Do."},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "A lake.", "name": "look", "tool_call_id": "1"},
            {"role": "assistant", "content": "A <image> of a lake."},
        ],
    }
    row = VisionDataset(write(tmp_path / "a.jsonl", [written]))[0]
    model = shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copy(Path(__file__).parents[2] / "data/tests/goldens/tools.jinja", model / "chat_template.jinja")
    collator = VisionCollator(model, return_tensors="np")
    expected = collator([written])
    for name, value in collator([row]).items():
        assert np.array_equal(value, expected[name]), name


def test_a_bad_row_is_named_and_the_next_can_be_read(tmp_path):
    good = {"prompt": "a", "completion": "b"}
    dataset = VisionDataset(write(tmp_path / "a.jsonl", [good, {"colour": "red"}, good, {**good, "image": "../secret.png"}]))
    with pytest.raises(RowError, match="a.jsonl, row 2: "):
        dataset[1]
    assert said(dataset[2]) == "a"
    (tmp_path.parent / "secret.png").write_bytes(PNG)
    with pytest.raises(RowError, match="outside"):
        dataset[3]
    widened = VisionDataset(tmp_path / "a.jsonl", image_roots=[tmp_path.parent])
    assert widened[3]["messages"][0]["content"][0]["image"] == PNG


def test_a_file_that_got_shorter_is_said(rows):
    dataset = VisionDataset(rows)
    assert said(dataset[9]) == "Row 9?"
    os.truncate(rows, 100)
    with pytest.raises(ConfigError, match="train.jsonl: it has fewer rows than when it was opened"):
        dataset[9]


def test_the_collator_names_a_row_as_the_dataset_does(rows, tiny_model):
    (rows.parent / "a.png").write_bytes(b"no image")
    with pytest.raises(RowError, match="train.jsonl, row 6: image 1: not an image") as raised:
        VisionCollator(tiny_model)([VisionDataset(rows)[5]])
    assert raised.value.row.endswith("train.jsonl, row 6")


def test_columns_and_splits_are_chosen_by_name(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    write(tmp_path / "train.jsonl", [{"q": "One?", "a": "1", "photo": "a.png"}])
    write(tmp_path / "test.jsonl", [{"q": "Two?", "a": "2", "photo": "a.png"}])
    columns = {"prompt": "q", "response": "a", "image": "photo"}
    assert said(VisionDataset(tmp_path, columns=columns)[0]) == "One?"
    assert said(VisionDataset(tmp_path, split="test", columns=columns)[0]) == "Two?"
    for wrong in [{"split": "valid"}, {"columns": {"colour": "q"}}, {"image_roots": ["/no/such/folder"]}]:
        with pytest.raises(ConfigError):
            VisionDataset(tmp_path, **wrong)
    with pytest.raises(ConfigError, match="gone"):
        VisionDataset(tmp_path / "gone")


def _read(dataset, places, results):
    results.put([said(dataset[place]) for place in places])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_processes_read_the_same_files_at_once(tmp_path, method):
    path = write(tmp_path / "a.jsonl", [{"prompt": f"Row {n}?" + "x" * (n % 7 * 100), "completion": "a"} for n in range(500)])
    dataset = VisionDataset(path)
    expected = [said(row) for row in dataset]
    context = multiprocessing.get_context(method)
    results = context.Queue()
    children = [context.Process(target=_read, args=(dataset, range(500), results)) for _ in range(3)]
    for child in children:
        child.start()
    assert [said(row) for row in dataset] == expected
    assert [results.get(timeout=60) for _ in children] == [expected] * 3
    for child in children:
        child.join(60)


def test_a_pickled_dataset_reads_the_same(rows, monkeypatch):
    monkeypatch.chdir(rows.parent)
    dataset = VisionDataset("train.jsonl")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(dataset))[7] == dataset[7]


GROWTH = """
import os, sys
from model_garden import VisionDataset

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

dataset = VisionDataset(sys.argv[1])
passes = [(sum(1 for _ in dataset), resident()) for _ in range(5)]
print(passes[-1][1] - passes[0][1])
"""


def test_reading_a_hundred_thousand_rows_holds_none_of_them(tmp_path):
    """In a process of its own: what other tests freed would come and go in this one's memory."""
    path = write(tmp_path / "a.jsonl", ({"prompt": f"{n}" * 40, "completion": "a"} for n in range(20_000)))
    done = subprocess.run([sys.executable, "-c", GROWTH, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The rows of one pass are 10 MB as objects.
    assert int(done.stdout) < 1_000_000
