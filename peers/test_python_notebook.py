"""examples/memory.ipynb, executed from top to bottom: no cell fails, and the verdicts are those that its text speaks of."""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "examples/memory.ipynb"


def text_of(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(str(output.get("text", "")) + str(output.get("data", {}).get("text/html", "")) for output in outputs)


def test_every_cell_runs_and_says_what_the_text_says(tmp_path, monkeypatch):
    (tmp_path / "model-garden").symlink_to(Path(os.environ["MODEL_GARDEN_BIN"]).absolute())
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, 4)
    kept = text_of(notebook)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    for said in (kept, text_of(notebook)):
        assert "a list of lazy images: <b>FILL</b>" in said
        assert "held by list 'rows' of ListDataset.__init__" in said
        assert "a leak: <b>LEAK</b>" in said
        assert "finished after 12 steps" in said
