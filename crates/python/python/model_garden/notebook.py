"""A live chart of a run's memory in a notebook.

Shows an assessment in one output of the cell and puts the next one in its place: the curve, the verdict, and under it evidence and
advice to open. Outside a notebook nothing here is used.
"""

from __future__ import annotations

import html
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assessment import Assessment

# Drawing takes about ten milliseconds, and a picture is looked at for longer than this.
_SECONDS_BETWEEN = 2.0


def in_notebook() -> bool:
    """Whether this is a notebook's kernel, where pictures can be shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class LiveChart:
    """One output of a cell."""

    def __init__(self) -> None:
        self._display: Any = None
        self._shown = float("-inf")

    def is_due(self) -> bool:
        """Whether the last picture was shown long enough ago."""
        return time.monotonic() - self._shown >= _SECONDS_BETWEEN

    def show(self, line: str, assessment: Assessment, explanation: Any = None) -> None:
        """Puts this in the place of what was shown before."""
        from IPython.display import HTML, display

        self._shown = time.monotonic()
        words = "".join(f"<pre>{html.escape(str(text))}</pre>" for text in (line, explanation) if text)
        page = HTML(assessment._repr_html_() + words)
        if self._display is None:
            self._display = display(page, display_id=True)
        else:
            self._display.update(page)
