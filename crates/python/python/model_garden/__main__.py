"""`python -m model_garden`: the `model-garden` command that came with this package, where it is not on the path."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def command() -> str:
    """The command beside this package: where pip puts it with `--target`, in an environment, or with `--user`."""
    beside = Path(__file__).parent.parent / "bin"
    folders = [beside, sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))]
    for file in (Path(folder, "model-garden") for folder in folders):
        if file.is_file():
            return str(file)
    found = shutil.which("model-garden")
    if found is None:
        sys.exit("the model-garden command is not installed beside this package: install its wheel again")
    return found


if __name__ == "__main__":
    path = command()
    # The command takes this process over, so that its exit code and its signals are the user's.
    os.execv(path, [path, *sys.argv[1:]])
