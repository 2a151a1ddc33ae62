"""A chart: what it shows in words, what is drawn, and the numbers behind it.

Charts are plain data: traces and layout are plotly.js's, colours are names that the page looks up in its
style sheet, so that one drawing serves light, dark and paper. Text that comes from a run goes through
`label`, since plotly reads markup in its labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SERIES = 8  # colours of the style sheet: --s0 to --s7
DASHES = ("solid", "dash", "dot", "dashdot")
MOST_POINTS = 400

Swatch = Literal["box", "hatch", "line", "dash", "dot", "dashdot", "ramp"]


@dataclass(frozen=True)
class Key:
    """An entry of a legend; pressing it hides or shows its traces."""

    label: str
    colour: str  # a name of the style sheet, without dashes
    swatch: Swatch = "box"
    traces: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    heading: str
    about: str  # one sentence: what it shows
    summary: str  # what is to be seen in it, in words
    columns: Mapping[str, Sequence[Any]]  # the numbers, for CSV
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    legend: Sequence[Key] = ()
    table: Sequence[Sequence[str]] = ()  # head and a few rows
    height: int = 280  # pixels
    wide: bool = False  # takes the whole width of the page


def colour(name: str) -> str:
    """A colour of the style sheet, by the name that the page's script looks up."""
    return f"\x01{name}"


def series_colour(place: int) -> str:
    """The colour of the series at `place`; they repeat, with another dash."""
    return f"s{place % SERIES}"


def series_dash(place: int) -> Any:
    """The dash of the series at `place`: neighbours differ, so that lines differ by more than colour."""
    return DASHES[(place + place // SERIES) % len(DASHES)]


def label(text: str, most: int = 48) -> str:
    """Text as plotly shows it: no markup, and not too long."""
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def thin(values: Sequence[float | None], size: int) -> list[float | None]:
    """Means of `size` neighbours; a group without a number is `None`."""
    if size <= 1:
        return list(values)
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [_mean([value for value in group if value is not None]) for group in groups]


def thinning(count: int, most: int = MOST_POINTS) -> int:
    """How many neighbours become one point, so that at most `most` are drawn."""
    return max(1, math.ceil(count / most))


def thinned_text(size: int) -> str:
    """A remark for the reader of a thinned drawing."""
    return f" Drawn as means of {size} neighbouring epochs; the CSV has every one." if size > 1 else ""


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
