"""Score and loss against epochs, seconds and bytes, with a band over seeds (SANCUS Figure 23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sancus.report.chart import (
    Chart,
    Key,
    colour,
    label,
    series_colour,
    series_dash,
    thin,
    thinned_text,
    thinning,
)
from sancus.report.groups import RunGroup
from sancus.report.run_reader import RunFiles, loss_of, number, section
from sancus.report.units import byte_unit, number_text, score_text
from sancus.report.volume import all_bytes

WIDE = 10.0  # times more bytes of one run than of another: their axis is logarithmic then
SPLITS = {"train": "train", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Axis:
    """What a curve is drawn against: the epoch, or the sum of a figure until then."""

    name: str
    title: str
    sum_of: str | None = None
    step: Callable[[Mapping[str, Any]], float | None] = lambda epoch: None  # that figure, of one epoch


AXES = (
    Axis("epochs", "epoch"),
    Axis("seconds", "training seconds", "seconds", lambda epoch: number(epoch.get("seconds"))),
    Axis("bytes", "all bytes", "all_bytes", all_bytes),
)


@dataclass(frozen=True)
class Line:
    """A quantity of a group: mean, least and largest over its seeds, at every epoch that all seeds have."""

    label: str
    place: int  # its colour
    epochs: list[int]
    x: list[float | None]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


def curves(groups: Sequence[RunGroup]) -> list[Chart]:
    """Three charts of the score and three of the loss; of one group also training and test scores."""
    charts = []
    for axis in AXES:
        charts += _score(groups, axis)
    for axis in AXES:
        charts += _loss(groups, axis)
    return charts


def _score(groups: Sequence[RunGroup], axis: Axis) -> list[Chart]:
    if len(groups) == 1:
        lines = [_line(groups[0], key, axis, name, place) for place, (key, name) in enumerate(SPLITS.items())]
        what = "Score on the training, validation and test nodes"
    else:
        lines = [_line(group, "val", axis, group.label, place) for place, group in enumerate(groups)]
        what = "Validation score of every run"
    lines = [line for line in lines if _any(line.mean)]
    if not lines:
        return []
    metric = _metric(groups)
    words = []
    for line in lines:
        best = max(value for value in line.mean if value is not None)
        last = next(value for value in reversed(line.mean) if value is not None)
        words.append(f"{line.label} ends at {score_text(last)}, best {score_text(best)}")
    summary = _sentence(words)
    return [_chart(f"{metric} against {axis.name}", what, axis, lines, summary, "%", 100.0, groups)]


def _loss(groups: Sequence[RunGroup], axis: Axis) -> list[Chart]:
    lines = [_line(group, "loss", axis, group.label, place) for place, group in enumerate(groups)]
    lines = [line for line in lines if _any(line.mean)]
    if not lines:
        return []
    words = []
    for line in lines:
        losses = [value for value in line.mean if value is not None]
        who = f"{line.label} falls" if len(groups) > 1 else "It goes"
        words.append(f"{who} from {number_text(losses[0])} to {number_text(losses[-1])}")
    return [
        _chart(f"Loss against {axis.name}", "Training loss", axis, lines, _sentence(words), "", 1.0, groups)
    ]


def _chart(
    heading: str,
    what: str,
    axis: Axis,
    lines: Sequence[Line],
    summary: str,
    unit: str,
    scale: float,
    groups: Sequence[RunGroup],
) -> Chart:
    size = thinning(max(len(line.epochs) for line in lines))
    top = max((x for line in lines for x in line.x if x is not None), default=0.0)
    divide, x_unit = byte_unit(top) if axis.name == "bytes" else (1.0, "")
    traces: list[dict[str, Any]] = []
    legend = []
    banded = False
    for line in lines:
        x = [None if value is None else value / divide for value in thin(line.x, size)]
        mean, low, high = (_scale(thin(v, size), scale) for v in (line.mean, line.low, line.high))
        places = [place for place, value in enumerate(mean) if value is not None and x[place] is not None]
        x, mean, low, high = ([values[place] for place in places] for values in (x, mean, low, high))
        first = len(traces)
        if low != mean or high != mean:
            banded = True
            traces += _band(x, low, high, line.place)
        traces.append(_trace(line, x, mean, unit, x_unit or axis.title))
        legend.append(
            Key(
                line.label,
                series_colour(line.place),
                "line" if series_dash(line.place) == "solid" else series_dash(line.place),
                tuple(range(first, len(traces))),
            )
        )
    ends = [max((x for x in line.x if x is not None), default=0.0) for line in lines]
    wide = axis.name == "bytes" and min(ends) > 0 and max(ends) > WIDE * min(ends)
    title = (f"{axis.title}, {x_unit}" if x_unit else axis.title) + (" (log)" if wide else "")
    scaling: dict[str, Any] = {"type": "log", "dtick": 1} if wide else {"rangemode": "tozero"}
    band = " The band spans the seeds." if banded else ""
    several = any(len(group.runs) > 1 for group in groups)
    against = {
        "epochs": "epoch by epoch",
        "seconds": "against training time",
        "bytes": "against all bytes sent",
    }
    about = f"{what}, {against[axis.name]}" + (", mean over seeds." if several else ".")
    return Chart(
        heading,
        about,
        summary + band + thinned_text(size),
        _columns(lines, axis),
        traces,
        {
            "xaxis": {"title": {"text": title}, **scaling},
            "yaxis": {"title": {"text": unit}, "nticks": 6},
        },
        legend if len(legend) > 1 else (),
        [["", "first", "last", "lowest", "highest"], *(_row(line, unit) for line in lines)],
    )


def _trace(line: Line, x: list[Any], y: list[Any], unit: str, x_title: str) -> dict[str, Any]:
    few = len(x) < 3
    who = f"<b>{label(line.label)}</b>"
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": label(line.label),
        "x": x,
        "y": y,
        "line": {
            "color": colour(series_colour(line.place)),
            "dash": series_dash(line.place),
            "width": 2.2,
        },
        "hovertemplate": f"{who}<br>{x_title} %{{x:.4~g}}: %{{y:.4~g}} {unit}<extra></extra>",
    }


def _band(x: list[Any], low: list[Any], high: list[Any], place: int) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip"}
    fill = {"fill": "tonexty", "fillcolor": colour(f"b{place % 8}")}
    return [edge | {"y": low}, edge | {"y": high} | fill]


def _line(group: RunGroup, key: str, axis: Axis, name: str, place: int) -> Line:
    """The figure `key` of a group at the epochs that all its runs have; x and y are means over the runs."""
    runs = [_points(files, key, axis) for files in group.runs]
    runs = [points for points in runs if points]
    common = sorted(set.intersection(*(set(points) for points in runs))) if runs else []
    columns: list[list[float | None]] = [[], [], [], []]
    for epoch in common:
        xs = [points[epoch][0] for points in runs if points[epoch][0] is not None]
        ys = [points[epoch][1] for points in runs]
        values = [value for value in ys if value is not None] if None not in ys else []
        whole = len(xs) == len(runs)
        columns[0].append(sum(x for x in xs if x is not None) / len(xs) if whole else None)
        columns[1].append(sum(values) / len(values) if values else None)
        columns[2].append(min(values) if values else None)
        columns[3].append(max(values) if values else None)
    return Line(name, place, common, *columns)


def _points(files: RunFiles, key: str, axis: Axis) -> dict[int, tuple[float | None, float | None]]:
    """epoch -> (x, y) of one run."""
    epochs = [int(epoch["epoch"]) for epoch in files.epochs]
    values = [loss_of(epoch) if key == "loss" else number(epoch.get(key)) for epoch in files.epochs]
    if axis.sum_of is None:
        return {epoch: (float(epoch), y) for epoch, y in zip(epochs, values, strict=True)}
    steps = [axis.step(epoch) for epoch in files.epochs]
    if any(step is None for step in steps):
        return {}
    sums = accumulate(step or 0.0 for step in steps)
    return {epoch: (x, y) for epoch, x, y in zip(epochs, sums, values, strict=True)}


def _columns(lines: Sequence[Line], axis: Axis) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"series": [], "epoch": []}
    columns |= {axis.sum_of: []} if axis.sum_of else {}
    columns |= {"mean": [], "lowest": [], "highest": []}
    for line in lines:
        for place, epoch in enumerate(line.epochs):
            if line.mean[place] is None:
                continue
            columns["series"].append(line.label)
            columns["epoch"].append(epoch)
            if axis.sum_of:
                columns[axis.sum_of].append(line.x[place])
            for name, values in (("mean", line.mean), ("lowest", line.low), ("highest", line.high)):
                columns[name].append(values[place])
    return columns


def _row(line: Line, unit: str) -> list[str]:
    text = score_text if unit == "%" else number_text
    values = [value for value in line.mean if value is not None]
    return [line.label, *(text(value) for value in (values[0], values[-1], min(values), max(values)))]


def _metric(groups: Sequence[RunGroup]) -> str:
    names = [str(section(g.first.run, "result").get("metric") or "") for g in groups]
    name = next((name for name in names if name), "score")
    return f"{name[:1].upper()}{name[1:]}"


def _sentence(words: Sequence[str], most: int = 4) -> str:
    more = len(words) - most
    text = "; ".join(words[:most]) + (f"; and {more} more" if more > 0 else "")
    return f"{text[:1].upper()}{text[1:]}."


def _scale(values: Sequence[float | None], scale: float) -> list[float | None]:
    return [None if value is None else scale * value for value in values]


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)
