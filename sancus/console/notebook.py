"""Progress in a notebook: a bar that is drawn anew in the cell's output, and lines that stay.

Nothing is imported of IPython unless the program runs in its kernel. The bar is plain HTML, so that no widget
has to be installed, and a saved notebook shows how far training came.
"""

from __future__ import annotations

import html
import sys
from typing import Any

from sancus.console.words import Pace, Record, figures


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Notebook:
    """A bar with figures in the output of the cell; every epoch is also printed where `verbose`."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._handle: Any = None
        self._pace = Pace()

    def __call__(self, line: str) -> None:
        print(line, flush=True)

    def step(self, line: str, *, passing: bool = False) -> None:
        self._show(f"<span>{html.escape(line)} …</span>", line)

    def epoch(self, record: Record, epochs: int) -> None:
        number, remaining = int(record["epoch"] or 0) + 1, self._pace.remaining(record, epochs)
        words = "  ".join(figures(record))
        if self._verbose:
            print(f"epoch {number}/{epochs}  {words}", flush=True)
        left = f", {remaining} left" if remaining else ""
        bar = f'<progress value="{number}" max="{epochs}" style="width: 20em"></progress>'
        text = f"epoch {number}/{epochs}{left}"
        self._show(f"{bar} {text}<br><small>{html.escape(words)}</small>", f"{text}  {words}")

    def close(self) -> None:
        """The last epoch stays where it is; the next run has a bar of its own."""
        self._handle = None

    def _show(self, markup: str, text: str) -> None:
        from IPython.display import display

        content = {"text/html": markup, "text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
