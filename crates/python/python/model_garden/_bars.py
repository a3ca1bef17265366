"""Writes lines beside the progress bars of tqdm rather than through them."""

from __future__ import annotations

import sys


class BesideBars:
    """Standard output of the moment.

    tqdm draws its bars again after each write, from the first column of the line that the cursor is on. So text is written only when
    its line has ended: `print` writes a text and its end apart.
    """

    def __init__(self) -> None:
        self._begun = ""

    def write(self, text: str) -> int:
        self._begun += text
        if self._begun.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        lines, self._begun = self._begun, ""
        if sys.stdout is None:
            return
        tqdm = sys.modules.get("tqdm")
        # While tqdm is being imported, the module is there and its class is not.
        bars = getattr(tqdm, "tqdm", None)
        if not lines or bars is None:
            sys.stdout.write(lines)
            sys.stdout.flush()
            return
        with bars.external_write_mode(file=sys.stdout):
            sys.stdout.write(lines)
            sys.stdout.flush()
