"""The founding case with a real Trainer: 663 lazily opened photos, batch 2 x 4, once with the usual collator and once with ours."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "founding_case.py"
ROWS, WIDTH, HEIGHT = 663, 1280, 960
# Pillow keeps four bytes for each pixel of a colour photo.
DECODED = 4 * WIDTH * HEIGHT


@pytest.fixture(scope="module")
def runs(garden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("founding")
    garden("init", "--preset", "tiny", "--output", folder / "model")
    garden("dataset", "create", "--kind", "photos", "--rows", ROWS, "--size", f"{WIDTH}x{HEIGHT}", "--output", folder / "photos")

    def run(collator):
        command = [sys.executable, SCRIPT, "--model", folder / "model", "--rows", folder / "photos/train.jsonl"]
        command += ["--collator", collator, "--output", folder / collator]
        # The products of a tiny model are too small to share: torch's threads would only wait for one another.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        (folder / f"{collator}.txt").write_text(done.stdout)
        return {**json.loads(done.stdout.splitlines()[-1]), "output": done.stdout}

    return {collator: run(collator) for collator in ["usual", "garden"]}


def test_the_usual_collator_is_a_fill_that_ends_with_the_first_epoch(runs):
    usual = runs["usual"]
    assert usual["verdict"] == "fill"
    assert abs(usual["knee"] - 83) <= 1, "663 rows, 8 a step"
    assert usual["bytes_per_sample"] == pytest.approx(DECODED, rel=0.05)


def test_before_that_both_endings_were_named(runs):
    early = [words for step, verdict, words in runs["usual"]["said"] if verdict == "undecided" and step and 20 <= step <= 80]
    assert early, runs["usual"]["said"]
    assert any("fill" in words and "leak" in words for words in early), early
    called = {verdict for step, verdict, _ in runs["usual"]["said"] if step and step <= 80}
    assert "leak" not in called and "fill" not in called, "nothing can tell them apart before the epoch ends"


def test_the_list_that_holds_the_images_is_named(runs):
    explanation = runs["usual"]["explanation"]
    assert "JpegImageFile" in explanation and "'rows'" in explanation and "ListDataset.__init__" in explanation, explanation
    assert re.search(r"founding_case\.py:\d+", explanation), explanation


def test_with_our_collator_the_same_rows_are_steady(runs):
    assert runs["garden"]["verdict"] == "steady", runs["garden"]["said"][-5:]
    assert runs["garden"]["explanation"] is None


def test_both_learn_the_same(runs):
    usual, ours = runs["usual"]["losses"], runs["garden"]["losses"]
    assert len(usual) == len(ours) == 180
    assert ours == pytest.approx(usual, abs=1e-4)


def test_lines_are_those_that_people_know(runs):
    line = re.compile(r"^Step 10: \d+ tensors \(CPU: \d+, GPU: 0\), Process RAM: \d+ MB \| ", re.MULTILINE)
    assert line.search(runs["usual"]["output"]), runs["usual"]["output"][:2000]
