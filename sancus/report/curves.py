"""The curves of the page, each with a caption that says in words what it shows."""

from __future__ import annotations

from typing import Any

from sancus.report.figures import MOST_BARS, MOST_POINTS, Series, line_chart, stacked_bars
from sancus.report.markup import Markup, tag
from sancus.report.run_files import number
from sancus.report.units import byte_unit, bytes_text, number_text, score_text, seconds_text, share_text

Epochs = list[dict[str, Any]]


def curves(epochs: Epochs, metric: str) -> list[Markup]:
    """Loss, scores, seconds and wire bytes against epochs; a curve without a point is left out."""
    charts = [*_loss(epochs), *_scores(epochs, metric), *_seconds(epochs), *_bytes(epochs)]
    return [tag("h2", "Epoch by epoch"), tag("div", *charts, class_="charts")] if charts else []


def _loss(epochs: Epochs) -> list[Markup]:
    """A loss that is not finite cannot be drawn, and is the first thing to know about a run."""
    bad = sum(isinstance(epoch.get("loss"), float) and number(epoch["loss"]) is None for epoch in epochs)
    lost = f" The loss was not finite in {bad} of {len(epochs)} epochs." if bad else ""
    points = _points(epochs, "loss")
    if not points:
        return [tag("p", lost.strip())] if bad else []
    (first, start), (last, end) = points[0], points[-1]
    text = f"From {number_text(start)} in epoch {first:.0f} to {number_text(end)} in epoch {last:.0f}."
    caption = text + lost + _thinned(len(points), MOST_POINTS)
    return [line_chart("Training loss", caption, [Series("loss", points)])]


def _scores(epochs: Epochs, metric: str) -> list[Markup]:
    names = (("train", "train"), ("val", "validation"), ("test", "test"))
    series = [Series(name, _points(epochs, key, scale=100)) for key, name in names]
    series = [each for each in series if each.points]
    if not series:
        return []
    ends = [f"{each.name} {score_text(each.points[-1][1] / 100)}" for each in series]
    last = max(each.points[-1][0] for each in series)
    longest = max(len(each.points) for each in series)
    caption = f"Last evaluated in epoch {last:.0f}: {', '.join(ends)}." + _thinned(longest, MOST_POINTS)
    return [line_chart(f"{metric[:1].upper()}{metric[1:]}, %", caption, series)]


def _seconds(epochs: Epochs) -> list[Markup]:
    keys = {"compute": "compute_seconds", "communication": "comm_seconds"}
    timed = [epoch for epoch in epochs if all(number(epoch.get(key)) is not None for key in keys.values())]
    if not timed:
        return []
    series = [Series(name, _points(timed, key)) for name, key in keys.items()]
    return [stacked_bars("Seconds an epoch", _split(series), series)]


def _bytes(epochs: Epochs) -> list[Markup]:
    points = _points(epochs, "wire_bytes")
    if not points:
        return []
    values = [value for _, value in points]
    size, unit = byte_unit(max(values))
    text = f"Mean {bytes_text(sum(values) / len(values))}, at most {bytes_text(max(values))}."
    series = Series("wire bytes", [(epoch, value / size) for epoch, value in points])
    caption = text + _thinned(len(points), MOST_POINTS)
    return [line_chart(f"Wire bytes an epoch, {unit}", caption, [series], zero=True)]


def _points(epochs: Epochs, key: str, scale: float = 1) -> list[tuple[float, float]]:
    pairs = [(number(epoch.get("epoch")), number(epoch.get(key))) for epoch in epochs]
    return [(epoch, scale * value) for epoch, value in pairs if epoch is not None and value is not None]


def _split(series: list[Series]) -> str:
    compute, comm = (sum(value for _, value in each.points) for each in series)
    count = len(series[0].points)
    text = f"Mean {seconds_text(compute / count)} compute and {seconds_text(comm / count)} communication"
    share = f", which is {share_text(comm / (compute + comm))} communication." if compute + comm else "."
    return text + share + _thinned(count, MOST_BARS)


def _thinned(count: int, most: int) -> str:
    return f" Means of {-(-count // most)} neighbouring points are drawn." if count > most else ""
