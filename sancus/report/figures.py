"""Two small charts as inline SVG: lines, and stacked bars, both against epochs.

A chart is a `figure` with a heading, a legend in HTML (it wraps and scales with the text), the drawing,
and a caption that says in words what the drawing shows. Colours and dashes come from the style sheet,
through the classes `s0`, `s1`, `s2`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sancus.report.markup import Markup, tag

Points = Sequence[tuple[float, float]]  # (epoch, value), epochs ascending

WIDTH, HEIGHT = 480, 250  # drawing units: about one pixel on a phone, so that text stays readable
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 36
MOST_POINTS, MOST_BARS = 400, 120


@dataclass(frozen=True)
class Series:
    """A named curve."""

    name: str
    points: Points


@dataclass(frozen=True)
class Frame:
    """The rectangle that is drawn in, and the values at its edges."""

    first: float
    last: float
    low: float
    high: float

    def x(self, epoch: float) -> float:
        """Horizontal place of an epoch."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (epoch - self.first) / (self.last - self.first), 1)

    def y(self, value: float) -> float:
        """Vertical place of a value; SVG counts downwards."""
        return round(
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low), 1
        )


def line_chart(heading: str, caption: str, series: Sequence[Series], zero: bool = False) -> Markup:
    """One line a series; an amount, such as bytes, is drawn from `zero` up.

    With more than `MOST_POINTS` epochs, means of neighbouring ones are drawn.
    """
    drawn = [Series(each.name, thin(each.points, MOST_POINTS)) for each in series if each.points]
    epochs = [epoch for each in drawn for epoch, _ in each.points]
    values = [value for each in drawn for _, value in each.points]
    low, high = _rounded(0.0 if zero else min(values), max(values))
    frame = Frame(*_apart(min(epochs), max(epochs)), max(0.0, low) if zero else low, high)
    lines = []
    for place, each in enumerate(drawn):
        corners = [f"{frame.x(epoch)} {frame.y(value)}" for epoch, value in each.points]
        path = f"M{corners[0]}L" + " ".join(corners)  # the first point twice: one epoch alone is a dot
        lines.append(tag("path", d=path, class_=f"line s{place}"))
    marks = [tag("path", d="M2 6H26", class_=f"line s{place}") for place in range(len(drawn))]
    return _figure(heading, caption, _legend(drawn, marks), [*_axes(frame), *lines])


def stacked_bars(heading: str, caption: str, series: Sequence[Series]) -> Markup:
    """One bar an epoch, the series on top of each other; all series have the same epochs."""
    drawn = [Series(each.name, thin(each.points, MOST_BARS)) for each in series]
    stacks = [[each.points[place][1] for each in drawn] for place in range(len(drawn[0].points))]
    epochs = [epoch for epoch, _ in drawn[0].points]
    step = (epochs[-1] - epochs[0]) / max(1, len(epochs) - 1) or 1.0
    high = _rounded(0.0, max(sum(stack) for stack in stacks))[1]
    frame = Frame(epochs[0] - step / 2, epochs[-1] + step / 2, 0.0, high)
    width = frame.x(epochs[0] + step) - frame.x(epochs[0])
    width *= 0.85 if width > 6 else 1.0  # a gap between bars, unless they are thin
    bars = []
    for epoch, stack in zip(epochs, stacks, strict=True):
        base = 0.0
        for place, value in enumerate(stack):
            top, bottom = frame.y(base + value), frame.y(base)
            left = round(frame.x(epoch) - width / 2, 1)
            size = {"width": round(width, 1), "height": round(bottom - top, 1)}
            bars.append(tag("rect", x=left, y=top, **size, class_=f"bar s{place}"))
            base += value
    marks = [tag("rect", width=28, height=12, class_=f"bar s{place}") for place in range(len(drawn))]
    return _figure(heading, caption, _legend(drawn, marks), [*_axes(frame), *bars])


def thin(points: Points, most: int) -> Points:
    """At most `most` points: where there are more, neighbours are replaced by their mean."""
    size = math.ceil(len(points) / most)
    groups = [points[start : start + size] for start in range(0, len(points), max(1, size))]
    return [
        (sum(epoch for epoch, _ in group) / len(group), sum(value for _, value in group) / len(group))
        for group in groups
    ]


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round values from `low` to `high`, both within; whole numbers for epochs."""
    step = _step(low, high)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + place) * step for place in range(count)]


def _step(low: float, high: float) -> float:
    """1, 2 or 5 times a power of ten, so that about five of them fill the range."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _apart(low: float, high: float) -> tuple[float, float]:
    """The same range, or one around it where it has no length that can be drawn."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = 0.5 * abs(low) or 0.5
    return low - margin, high + margin


def _rounded(low: float, high: float) -> tuple[float, float]:
    """The range widened to whole steps."""
    low, high = _apart(low, high)
    step = _step(low, high)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _legend(series: Sequence[Series], marks: Sequence[Markup]) -> list[Markup]:
    if len(series) < 2:
        return []
    entries = [
        tag("li", tag("svg", mark, viewBox="0 0 28 12", aria_hidden="true"), each.name)
        for each, mark in zip(series, marks, strict=True)
    ]
    return [tag("ul", *entries, class_="legend")]


def _figure(heading: str, caption: str, legend: list[Markup], drawing: list[Markup]) -> Markup:
    size, label = f"0 0 {WIDTH} {HEIGHT}", f"{heading}. {caption}"
    chart = tag("svg", *drawing, viewBox=size, role="img", aria_label=label)
    return tag("figure", tag("h3", heading), *legend, chart, tag("figcaption", caption))


def _axes(frame: Frame) -> list[Markup]:
    parts = []
    for value in ticks(frame.low, frame.high):
        y = frame.y(value)
        parts.append(tag("path", d=f"M{LEFT} {y}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(tag("text", f"{value:.3g}", x=LEFT - 6, y=y + 4, text_anchor="end"))
    for epoch in ticks(frame.first, frame.last, whole=True):
        parts.append(tag("text", f"{epoch:.0f}", x=frame.x(epoch), y=HEIGHT - 20, text_anchor="middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, tag("text", "epoch", x=middle, y=HEIGHT - 4, text_anchor="middle")]
