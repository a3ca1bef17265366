"""The types that the package ships: a checker takes a program that follows them, and finds what does not."""

import subprocess
import sys
from pathlib import Path

import pytest

USER = Path(__file__).parent / "typed_user.py"


def checked(program, folder):
    """What `mypy --strict` says of a program."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder), str(program)]
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_a_program_that_follows_the_types_is_accepted_and_a_slip_is_found(tmp_path):
    pytest.importorskip("mypy")
    assert checked(USER, tmp_path / "cache").startswith("Success")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(USER.read_text() + "\nlevel = found.verdict\nwork('three')\nrows[0].nonsense\n")
    said = checked(wrong, tmp_path / "cache")
    for slip in ['"str", variable has type "int | None"', 'Argument 1 to "work"', 'no attribute "nonsense"', "Found 3 errors"]:
        assert slip in said, said
