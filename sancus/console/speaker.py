"""Speakers, which print progress: a live line on a terminal, plain lines anywhere else, or nothing.

A *speaker* is called with a line that stays. `step` says what is being done right now, with a spinner on a
terminal; a *passing* step is part of a longer one, leaves no line there, and is printed elsewhere only when
nothing has been said for a while. `epoch` shows the figures of a training epoch. Only rank 0 has one that
speaks.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

from sancus.console.notebook import Notebook, in_notebook
from sancus.console.words import Pace, Record, figures
from sancus.report.units import seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

PROGRESS_LINES = 20  # of a whole run, where they are plain
QUIET_SECONDS = 10.0  # after which a plain speaker tells the step or the epoch that it is at


class Speaker(Protocol):
    """Tells a person what the program does."""

    def __call__(self, line: str) -> None:
        """Print a line that stays."""
        ...

    def step(self, line: str, *, passing: bool = False) -> None:
        """Show what is being done now; `passing` if it is part of a longer step."""
        ...

    def epoch(self, record: Record, epochs: int) -> None:
        """Show the figures of an epoch that has ended, one of `epochs`."""
        ...

    def close(self) -> None:
        """Stop drawing; the terminal is as it was before."""
        ...


class Silent:
    """Says nothing: `--quiet`, and every rank but 0."""

    def __call__(self, line: str) -> None: ...

    def step(self, line: str, *, passing: bool = False) -> None: ...

    def epoch(self, record: Record, epochs: int) -> None: ...

    def close(self) -> None: ...


class Plain:
    """Lines for files, pipes and batch jobs.

    Of a run some twenty epochs, and one where nothing was said for a while; every epoch where `verbose`.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._spoke = time.monotonic()
        self._pace = Pace()

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        self._spoke = time.monotonic()

    def step(self, line: str, *, passing: bool = False) -> None:
        if not passing or time.monotonic() - self._spoke > QUIET_SECONDS:
            self(line)

    def epoch(self, record: Record, epochs: int) -> None:
        remaining = self._pace.remaining(record, epochs)
        number = int(record["epoch"] or 0) + 1
        every = 1 if self._verbose else max(1, epochs // PROGRESS_LINES)
        late = time.monotonic() - self._spoke > QUIET_SECONDS
        if number % every == 0 or number == epochs or late:
            name = f"epoch {number:>{len(str(epochs))}}/{epochs}"
            self("  ".join([name, *figures(record), *([f"{remaining} left"] if remaining else [])]))

    def close(self) -> None: ...


class Live:
    """A bar and a line of figures that are drawn anew, below the lines that stay; for terminals."""

    def __init__(self, *, verbose: bool = False) -> None:
        from rich.console import Console
        from rich.live import Live as Display

        self._console = Console(highlight=False)
        self._verbose = verbose
        self._display: Display | None = None
        self._pace = Pace()
        self._step, self._step_start = "", 0.0

    def __call__(self, line: str) -> None:
        self._settle()
        self._console.print(line, markup=False)

    def step(self, line: str, *, passing: bool = False) -> None:
        from rich.spinner import Spinner
        from rich.text import Text

        if not passing:
            self._settle()
            self._step, self._step_start = line, time.monotonic()
        self._draw(Spinner("dots", Text(line)))

    def epoch(self, record: Record, epochs: int) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        self._end_step()
        remaining, number = self._pace.remaining(record, epochs), int(record["epoch"] or 0) + 1
        if self._verbose:
            self._console.print("  ".join([f"epoch {number}/{epochs}", *figures(record)]), markup=False)
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=epochs, completed=number, width=min(40, self._console.width // 2))
        head.add_row(f"epoch {number}/{epochs}", bar, f"{remaining} left" if remaining else "")
        *words, seconds = figures(record)
        self._draw(
            Group(
                head, *(Text(line, no_wrap=True, overflow="ellipsis") for line in ("  ".join(words), seconds))
            )
        )

    def close(self) -> None:
        self._settle()
        if self._display is not None:
            self._display.stop()
            self._display = None

    def _draw(self, content: RenderableType) -> None:
        """Replace the live part. When it ends, a step's is erased, and the last epoch's stays."""
        from rich.live import Live as Display

        if self._display is None:
            self._display = Display(console=self._console, refresh_per_second=8, transient=bool(self._step))
            self._display.start()
            self._console.show_cursor(True)  # whatever ends this process, the cursor is there
        self._display.update(content)

    def _settle(self) -> None:
        """Print the step that is over as a line that stays, with the time it took."""
        if self._step:
            line, took = self._step, time.monotonic() - self._step_start
            self._end_step()
            self._console.print(f"{line} ({seconds_text(took)})", markup=False, style="dim")

    def _end_step(self) -> None:
        if self._step:
            self._step = ""
            if self._display is not None:
                self._display.stop()
                self._display = None


SILENT: Speaker = Silent()


def speaker(*, quiet: bool = False, verbose: bool = False) -> Speaker:
    """The speaker for this process's standard output: silent, live on a terminal, or plain lines."""
    if quiet:
        return SILENT
    if in_notebook():
        return Notebook(verbose=verbose)
    if os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb":
        return Live(verbose=verbose)
    return Plain(verbose=verbose)
