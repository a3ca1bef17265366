"""The tours of docs/python.md, run as they stand in the page, in their order and in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/python.md").read_text()

def blocks(language):
    """The fenced blocks of the page: under which heading, and the text."""
    # A comment in a block begins like a heading, so blocks are found first.
    found, heading = [], ""
    for title, named, text in re.findall(r"^(?:#+ ([^\n]*)|```(\w+)\n(.*?)^```)$", PAGE, re.MULTILINE | re.DOTALL):
        heading = title or heading
        found += [(heading, text)] if named == language else []
    return found


TOURS = blocks("python")
NEEDS_CUDA = "# not run: needs CUDA"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tours")
    (folder / "bin").mkdir()
    (folder / "bin/model-garden").symlink_to(Path(os.environ["MODEL_GARDEN_BIN"]).absolute())
    for _, commands in blocks("sh"):
        follow(folder, ["bash", "-euo", "pipefail", "-c", commands])
    return folder


def follow(folder, command):
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("number", range(len(TOURS)), ids=[heading for heading, _ in TOURS])
def test_a_tour_runs_as_it_is_written(folder, number):
    heading, text = TOURS[number]
    if text.startswith(NEEDS_CUDA):
        compile(text, heading, "exec")
        pytest.skip("needs CUDA")
    script = folder / "script.py"
    script.write_text(text)
    said = follow(folder, [sys.executable, "-u", str(script)])
    expected = {
        "Hugging Face's Trainer": ["Step 5: ", "Process RAM: ", "Memory of "],
        "TRL's SFTTrainer": ["Step 2: ", "Memory of "],
        "Lightning": ["Step 10: ", "Memory of "],
        "A loop of your own": ["Step 10: ", "Memory of ", "Trace: loop.jsonl"],
        "Who holds it?": ["50 bytearray, 1.0 MB each, held by list 'rows' of ListDataset.__init__ (script.py:6), in 'dataset' of module script (script.py:9); 1.0 MB per step"],
        "A collator that keeps no image": ["'pixel_values': ", "'mm_token_type_ids': "],
        "A gate for tests": [],
        "Verdicts, plans and runs": ["LEAK", "fits", "finished after 4 steps"],
    }
    for words in expected[heading]:
        assert words in said, said
